"""Does the live panel stay still and light? Ten minutes of 8 ranks that log 10 values each, in a page in Chromium.

    python stress/panel_in_a_page.py                # ten minutes
    python stress/panel_in_a_page.py --seconds 120

It counts what a person sees: redraws a second, and each change of the panel's height from when its curves are there
until a second after the run has ended. And what the machine feels: the page's JavaScript memory and nodes after a
collection of garbage, and the kernel's memory, after a tenth of the time and at its end. Exit status 0 when nothing has
jumped or grown, and at least 20 redraws a second came, which two idle cores are enough for; else its last lines say
which of them was not so.
"""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import psutil

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from browser import CHROMIUM, CHROMIUM_FLAGS, Notebook, kernels, server, until, write

CELL = """import math, os, time
from ddplab import launch, log
def log_values():
    step = 0
    while not os.path.exists("enough"):
        log(**{f"value_{n}": math.sin(0.01 * step + n) + 0.1 * int(os.environ["RANK"]) for n in range(10)})
        step += 1
        time.sleep(0.05)
launch(log_values, nproc_per_node=8, device="cpu")
None"""
# Each redraw that a person sees, and each height in a frame, once the panel has curves.
WATCH = """cell => {
    const node = window.panel.content.widgets[cell].outputArea.node;
    window.watched = {redraws: [], heights: [], alone: 0};
    let before = '';
    new MutationObserver(() => {
        const now = node.querySelector('table')?.innerText ?? before;
        if (now === before) return;
        if (!node.querySelector('polyline')) { window.watched.alone = node.getBoundingClientRect().height; return; }
        before = now;
        window.watched.redraws.push(performance.now() / 1000);
    }).observe(node, {childList: true, subtree: true, characterData: true});
    const frame = () => {
        if (window.watched.ended) return;
        const {redraws, heights} = window.watched, height = node.getBoundingClientRect().height;
        if (redraws.length && height !== heights.at(-1)) heights.push(height);
        requestAnimationFrame(frame);
    };
    frame();
}"""


class Held(NamedTuple):
    """What is held at a moment: megabytes of JavaScript, nodes of the page, megabytes of the kernel."""

    heap: float
    nodes: int
    kernel: float


class Watched(NamedTuple):
    """What was seen of a panel: redraws a second, its heights one after the other, and memory early and late.

    heights: with its curves, and of what stays when the run has ended. alone: of the table, before there are curves.
    """

    rate: float
    heights: list[float]
    early: Held
    late: Held
    alone: float


def held(session: Any, kernel: psutil.Process) -> Held:
    """Measure what is held now; session: Chromium's own protocol for the page.

    The page goes on drawing while it collects, so what a collection has missed counts only if three have missed it.
    """
    seen = []
    for _ in range(3):
        session.send("HeapProfiler.collectGarbage")
        of_page = {it["name"]: it["value"] for it in session.send("Performance.getMetrics")["metrics"]}
        seen.append((of_page["JSHeapUsedSize"] / 1e6, int(of_page["Nodes"])))
    heap, nodes = map(min, zip(*seen, strict=True))
    return Held(heap, nodes, kernel.memory_info().rss / 1e6)


def watch(notebook: Notebook, kernel: psutil.Process, seconds: float) -> Watched:
    """Run the notebook's first cell, which is CELL, watch its panel for so many seconds, and end the run."""
    session = notebook.page.context.new_cdp_session(notebook.page)
    session.send("Performance.enable")
    notebook.page.evaluate(WATCH, 0)
    notebook.start(0)
    until(lambda: notebook.page.evaluate("() => window.watched.redraws.length > 0"), 60)
    time.sleep(0.1 * seconds)
    early = held(session, kernel)
    time.sleep(0.9 * seconds)
    late = held(session, kernel)
    moments = notebook.page.evaluate("() => window.watched.redraws")
    with notebook.enough():
        notebook.wait(60)
    rate = (len(moments) - 1) / (moments[-1] - moments[0])
    time.sleep(1)
    seen = notebook.page.evaluate("() => ({...window.watched, ended: (window.watched.ended = true)})")
    return Watched(rate, seen["heights"], early, late, seen["alone"])


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seconds", type=float, default=600)
    seconds = options.parse_args().seconds
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder, server(Path(folder)) as (url, jupyter), sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=CHROMIUM_FLAGS)
        page = browser.new_page(viewport={"width": 1280, "height": 1400})
        page.goto(f"{url}lab?token=test&reset")
        page.wait_for_function("() => window.jupyterapp?.started")
        page.evaluate("() => window.jupyterapp.started")
        write(Path(folder) / "home" / "panel.ipynb", CELL)
        notebook = Notebook(page, Path(folder) / "home", "panel.ipynb")
        [kernel] = kernels(jupyter)
        seen = watch(notebook, kernel, seconds)
        browser.close()
    print(f"8 ranks, 10 values each, {seconds:g} s: {seen.rate:.1f} redraws a second")
    print(f"heights of the panel with its curves and of what stays: {seen.heights}; before the curves, {seen.alone}")
    for name, at in (("early", seen.early), ("late", seen.late)):
        print(f"{name:5}  JavaScript {at.heap:.1f} MB, {at.nodes} nodes; kernel {at.kernel:.0f} MB")
    missed = [f"{name} has grown by more than a fifth" for name, early, late in
              zip(("JavaScript", "the number of nodes", "the kernel"), seen.early, seen.late, strict=True)
              if late > 1.2 * early]  # fmt: skip
    missed += ["the height of the panel has changed"] * (len(seen.heights) > 1)
    missed += [f"fewer than 20 redraws a second, at {os.getloadavg()[1]:.1f} processes in the last five minutes that "
               f"would run, on {os.cpu_count()} cores"] * (seen.rate < 20)  # fmt: skip
    print("\n".join(f"✗ {it}" for it in missed) or "✓ it stood still, nothing has grown, and 20 redraws a second came")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())

"""Does the live panel stay still and light? Ten minutes of 8 ranks that log 10 values each, in a page in Chromium.

    python stress/panel_in_a_page.py                # ten minutes
    python stress/panel_in_a_page.py --seconds 120

It counts what a person sees: redraws a second, and each change of the panel's height once its curves are there. And
what the machine feels: the page's JavaScript memory and nodes after a collection of garbage, and the kernel's memory,
after a tenth of the time and at its end. Exit status 0 when nothing has jumped or grown, and at least 20 redraws a
second came, which two idle cores are enough for.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import psutil

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from browser import CHROMIUM, CHROMIUM_FLAGS, Notebook, server, until, write

CELL = """from ddplab import launch, log
import math, os, time
def train(seconds):
    end, step = time.time() + seconds, 0
    while time.time() < end:
        log(**{f"value_{n}": math.sin(0.01 * step + n) + 0.1 * int(os.environ["RANK"]) for n in range(VALUES)})
        step += 1
        time.sleep(0.05)
launch(train, SECONDS, nproc_per_node=RANKS, device="cpu")
None"""
# Each redraw that a person sees, and each height that the panel then has, once it has curves.
WATCH = """cell => {
    const node = window.panel.content.widgets[cell].outputArea.node;
    window.watched = {redraws: [], heights: []};
    let before = '';
    new MutationObserver(() => {
        const now = node.querySelector('table')?.innerText ?? before;
        if (now === before || !node.querySelector('polyline')) return;
        before = now;
        window.watched.redraws.push(performance.now() / 1000);
        const height = node.getBoundingClientRect().height, last = window.watched.heights.at(-1);
        if (height !== last) window.watched.heights.push(height);
    }).observe(node, {childList: true, subtree: true, characterData: true});
}"""


class Held(NamedTuple):
    """What is held at a moment: megabytes of JavaScript, nodes of the page, megabytes of the kernel."""

    heap: float
    nodes: int
    kernel: float


class Watched(NamedTuple):
    """What was seen of a panel: redraws a second, its heights one after the other, and memory early and late."""

    rate: float
    heights: list[float]
    early: Held
    late: Held


def held(session: Any, kernel: psutil.Process) -> Held:
    """Measure what is held now; session: Chromium's own protocol for the page."""
    session.send("HeapProfiler.collectGarbage")
    of_page = {it["name"]: it["value"] for it in session.send("Performance.getMetrics")["metrics"]}
    return Held(of_page["JSHeapUsedSize"] / 1e6, int(of_page["Nodes"]), kernel.memory_info().rss / 1e6)


def watch(notebook: Notebook, kernel: psutil.Process, cell: int, seconds: float) -> Watched:
    """Run a cell that lasts so many seconds, and watch its panel from a tenth of the time on."""
    session = notebook.page.context.new_cdp_session(notebook.page)
    session.send("Performance.enable")
    notebook.page.evaluate(WATCH, cell)
    notebook.start(cell)
    until(lambda: notebook.page.evaluate("() => window.watched.redraws.length > 0"), 60)
    began = time.monotonic()
    time.sleep(seconds / 10)
    early = held(session, kernel)
    while notebook.busy and time.monotonic() - began < seconds - 2:
        time.sleep(0.5)
        late = held(session, kernel) if time.monotonic() - began > seconds - 4 else early
    seen = notebook.page.evaluate("() => window.watched")
    assert notebook.busy, "the run had ended before the measurement"
    notebook.wait(60)
    moments = seen["redraws"]
    return Watched((len(moments) - 1) / (moments[-1] - moments[0]), seen["heights"], early, late)


def cell_of(seconds: float, ranks: int = 8, values: int = 10) -> str:
    """Return the cell that is watched."""
    return CELL.replace("SECONDS", f"{seconds:g}").replace("RANKS", str(ranks)).replace("VALUES", str(values))


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seconds", type=float, default=600)
    options.add_argument("--ranks", type=int, default=8)
    seconds, ranks = (chosen := options.parse_args()).seconds, chosen.ranks
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder, server(Path(folder)) as (url, jupyter), sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=CHROMIUM_FLAGS)
        page = browser.new_page(viewport={"width": 1280, "height": 1400})
        page.goto(f"{url}lab?token=test&reset")
        page.wait_for_function("() => window.jupyterapp?.started")
        page.evaluate("() => window.jupyterapp.started")
        write(Path(folder) / "home" / "panel.ipynb", cell_of(seconds, ranks))
        notebook = Notebook(page, Path(folder) / "home", "panel.ipynb")
        [kernel] = psutil.Process(jupyter.pid).children()
        seen = watch(notebook, kernel, 0, seconds)
        browser.close()
    print(f"{ranks} ranks, 10 values each, {seconds:g} s: {seen.rate:.1f} redraws a second")
    print(f"heights of the panel, one after the other: {seen.heights}")
    for name, at in (("early", seen.early), ("late", seen.late)):
        print(f"{name:5}  JavaScript {at.heap:.1f} MB, {at.nodes} nodes; kernel {at.kernel:.0f} MB")
    grown = seen.late.heap > 1.2 * seen.early.heap or seen.late.kernel > 1.2 * seen.early.kernel
    return int(len(seen.heights) > 1 or grown or seen.rate < 20)


if __name__ == "__main__":
    sys.exit(main())

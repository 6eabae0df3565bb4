"""A real JupyterLab in Chromium for the browser tests: one server, one page, and what a person does with it."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nbformat
import psutil
from nbformat.v4 import new_code_cell, new_notebook

ROOT = Path(__file__).parent.parent
WARM_LAB = Path(__file__).with_name("warm_lab.py")
FOLDERS = ("lessons", "exercises", "solutions")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
CHROMIUM_FLAGS = [
    "--no-sandbox",  # CI runs as root, where Chromium's sandbox refuses to start
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
]
SETTINGS = {
    "notebook-extension/tracker": {"windowingMode": "none"},  # else cells out of sight are not in the page
    "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
    "docmanager-extension/plugin": {"autosave": False},
}


@contextmanager
def server(folder: Path) -> Iterator[tuple[str, subprocess.Popen]]:
    """Start JupyterLab on a free port over a copy of the notebooks, with settings of its own.

    Yields its address and its process.
    """
    home = folder / "home"
    for name, values in SETTINGS.items():
        path = folder / "settings" / "@jupyterlab" / f"{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(values))
    for name in FOLDERS:
        shutil.copytree(ROOT / name, home / name)
    runtime = folder / "runtime"
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTEST_CURRENT_TEST", "DDPLAB_PANEL")}
    environment |= {
        "JUPYTER_CONFIG_DIR": str(folder / "config"),
        "JUPYTER_RUNTIME_DIR": str(runtime),
        "JUPYTERLAB_SETTINGS_DIR": str(folder / "settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(folder / "workspaces"),
        "IPYTHONDIR": str(folder / "ipython"),
    }
    command = [sys.executable, WARM_LAB, "--no-browser", "--allow-root", "--ip=127.0.0.1", "--port=0"]
    options = ["--IdentityProvider.token=test", "--LabApp.expose_app_in_browser=True"]
    with open(folder / "server.log", "wb") as log:
        process = subprocess.Popen(
            [*command, *options, f"--ServerApp.root_dir={home}"], env=environment, stdout=log, stderr=log
        )
    try:

        def written() -> list[Path]:  # it is there before anything is in it
            return [path for path in runtime.glob("jpserver-*.json") if path.stat().st_size]

        found = until(lambda: written() or process.poll() is not None, 60)
        if found is True:
            raise RuntimeError(f"JupyterLab did not start:\n{(folder / 'server.log').read_text()}")
        yield json.loads(found[0].read_text())["url"], process
    finally:
        process.terminate()  # it ends its kernels
        process.wait(20)


def kernels(server: subprocess.Popen) -> list[psutil.Process]:
    """Return its kernels: its children, but for the spare whose forks they are, which it starts first."""
    children = sorted(psutil.Process(server.pid).children(), key=psutil.Process.create_time)
    return children[1:] if sys.platform == "linux" else children


def until(look: Callable[[], Any], seconds: float, every: float = 0.1) -> Any:
    """Return what `look` returns as soon as that is true; raises TimeoutError. A question to the page costs 7 ms."""
    deadline = time.monotonic() + seconds
    while not (found := look()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {seconds} s for nothing")
        time.sleep(every)
    return found


# What the page is asked to do. `lab` is JupyterLab's own application object.
OPEN = """async ([path, id]) => {
    const lab = window.jupyterapp, kernel = id ? {id} : undefined;
    const panel = await lab.commands.execute('docmanager:open', {path, factory: 'Notebook', kernel});
    await panel.context.ready; await panel.revealed; await panel.sessionContext.ready;
    window.panel = panel;
    for (let i = 0; i < 600; i++) {
        const kernel = panel.sessionContext.session?.kernel;
        if (kernel && kernel.connectionStatus === 'connected' && kernel.status === 'idle') return kernel.id;
        await new Promise(done => setTimeout(done, 50));
    }
    throw new Error('the kernel did not become idle');
}"""
COMMAND = "([name, args]) => { window.jupyterapp.commands.execute(name, args); }"
# Run All's promise ends at the first error, also an expected one after which the kernel goes on. A question asked
# after all cells is answered after all cells.
RUN = """command => {
    window.ran = false;
    const kernel = window.panel.sessionContext.session.kernel;
    window.jupyterapp.commands.execute(command)
        .then(() => kernel.requestExecute({code: '', silent: true, stop_on_error: false}).done)
        .finally(() => { window.ran = true; });
}"""
WATCH = """cell => {
    const node = window.panel.content.widgets[cell].outputArea.node;
    window.redraws = [];
    let before = '';
    new MutationObserver(() => {
        const now = node.querySelector('table')?.innerText ?? before;
        if (now !== before) { window.redraws.push(performance.now() / 1000); before = now; }
    }).observe(node, {childList: true, subtree: true, characterData: true});
}"""
# WCAG 2's contrast ratio of each piece of text with what lies behind it
CONTRASTS = """cell => {
    const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
    const onto = (colours) => {
        canvas.clearRect(0, 0, 1, 1);
        for (const colour of colours) { canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1); }
        return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
    };
    const luminance = rgb => rgb.map(c => c / 255)
        .map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
        .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
    const found = [];
    const node = window.panel.content.widgets[cell].outputArea.node;
    const texts = document.createTreeWalker(node, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) {
        const text = texts.currentNode.textContent.trim(), parent = texts.currentNode.parentElement;
        if (!text || !parent.checkVisibility() || parent.closest('style, script, .jp-OutputPrompt')) continue;
        const behind = [];
        for (let it = parent; it; it = it.parentElement) behind.unshift(getComputedStyle(it).backgroundColor);
        if (parent instanceof SVGElement) {  // what is written on a shape
            const box = parent.getBoundingClientRect(), x = box.x + box.width / 2, y = box.y + box.height / 2;
            for (const under of parent.ownerSVGElement.querySelectorAll('rect')) {
                const it = under.getBoundingClientRect();
                const inside = it.left <= x && x <= it.right && it.top <= y && y <= it.bottom;
                if (inside) behind.push(getComputedStyle(under).fill);
            }
        }
        const style = getComputedStyle(parent);
        const ink = parent instanceof SVGElement ? style.fill : style.color;
        const [a, b] = [luminance(onto([...behind, ink])), luminance(onto(behind))];
        found.push([text, (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05)]);
    }
    return found;
}"""
# Charts and figures of each code cell that a person sees; a line's sample in a table is no picture.
PICTURES = """() => window.panel.content.widgets.filter(it => it.model.type === 'code').map(
    it => [...it.outputArea.node.querySelectorAll('img, svg')]
        .filter(it => it.checkVisibility() && it.getBoundingClientRect().width > 100).length
)"""
CLOSE = """async shutDown => {
    if (window.panel.isDisposed) return;
    await window.panel.context.save();
    if (shutDown) await window.panel.sessionContext.shutdown();
    window.panel.dispose();
}"""


class Notebook:
    """The notebook that is open in the page, with the deeds of a person at it.

    kernel: the id of a running kernel to use; it gets one of its own without.
    """

    def __init__(self, page: Any, home: Path, path: str, kernel: str | None = None):
        self.page, self.file = page, home / path
        self.kernel = page.evaluate(OPEN, [path, kernel])

    @property
    def cells(self) -> list[nbformat.NotebookNode]:
        """The code cells as they stand in the page (not yet saved)."""
        stored = self.page.evaluate("() => window.panel.content.model.sharedModel.toJSON()")
        return [c for c in nbformat.from_dict(stored).cells if c.cell_type == "code"]

    @property
    def busy(self) -> bool:
        return not self.page.evaluate("() => window.ran")

    def start(self, cell: int | None = None) -> None:
        """Start the cell with this number (of all cells), or Run All; does not wait for it."""
        if cell is None:
            self.page.evaluate("() => window.panel.content.widgets.forEach(c => c.model.clearExecution?.())")
            self.page.evaluate(RUN, "notebook:run-all-cells")
        else:
            self.page.evaluate(
                "i => { window.panel.content.activeCellIndex = i; window.panel.content.deselectAll(); }", cell
            )
            self.page.evaluate(RUN, "notebook:run-cell")

    def run(self, cell: int | None = None, seconds: float = 60) -> None:
        """Run a cell, or all of them, to the end."""
        self.start(cell)
        self.wait(seconds)

    def wait(self, seconds: float = 60) -> None:
        """Wait until what was started has ended."""
        until(lambda: not self.busy, seconds, every=0.2)

    @contextmanager
    def enough(self) -> Iterator[None]:
        """Let ranks see a file "enough" beside the notebook; they have gone on until now, however slow the page is."""
        file = self.file.with_name("enough")
        file.touch()
        try:
            yield
        finally:
            file.unlink()  # the next test's ranks would find it

    def text(self, cell: int) -> str:
        """What a person reads in the cell's output."""
        return self.page.evaluate("i => window.panel.content.widgets[i].outputArea.node.innerText", cell)

    def output(self, cell: int) -> Any:
        """Return the place of a cell's output in the page."""
        return self.page.locator(".jp-Notebook:visible .jp-Cell").nth(cell).locator(".jp-OutputArea").first

    def watch(self, cell: int) -> None:
        """Write down from now on when the table in the cell's output changes; `redraws` tells."""
        self.page.evaluate(WATCH, cell)

    def redraws(self) -> list[float]:
        """Return when the watched table changed, in seconds."""
        return self.page.evaluate("() => window.redraws")

    def contrasts(self, cell: int) -> list[tuple[str, float]]:
        """Return every piece of text in the cell's output with its contrast to what is behind it."""
        return self.page.evaluate(CONTRASTS, cell)

    def pictures(self) -> list[int]:
        """Return how many pictures each code cell shows."""
        return self.page.evaluate(PICTURES)

    def pids(self) -> list[int]:
        """Return the process ids that ranks have written into files called pid… beside the notebook."""
        return [int(path.read_text()) for path in self.file.parent.glob("pid*")]

    def command(self, name: str, **arguments: Any) -> None:
        self.page.evaluate(COMMAND, [name, arguments])

    def save(self) -> nbformat.NotebookNode:
        """Save through JupyterLab and read the file."""
        self.page.evaluate("() => window.panel.context.save()")
        return nbformat.read(self.file, as_version=4)

    def close(self, shut_down: bool) -> None:
        """Save and close it, and end its kernel if asked to."""
        self.page.evaluate(CLOSE, shut_down)


def write(path: Path, *cells: str) -> None:
    """Write a notebook of code cells."""
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    nbformat.write(new_notebook(cells=[new_code_cell(c) for c in cells], metadata=kernel), path)

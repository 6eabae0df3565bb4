"""What a person sees and presses, in a real JupyterLab in Chromium, with real ranks behind it."""

import os
import time
from pathlib import Path

import pytest
from browser import CHROMIUM, CHROMIUM_FLAGS, FOLDERS, ROOT, Notebook, server, until, write

pytestmark = pytest.mark.browser

NOTEBOOKS = [path.relative_to(ROOT) for folder in FOLDERS for path in sorted((ROOT / folder).glob("*.ipynb"))]
IMPORTS = "import os, time\nfrom ddplab import claim, launch, log, predict"
SLOW = """
def train(seconds):
    open(f"pid{os.environ['RANK']}", "w").write(str(os.getpid()))
    end = time.time() + seconds
    step = 0
    while time.time() < end:
        log(loss=1 / (1 + 0.1 * step), seen=32 * step)
        step += 1
        time.sleep(0.02)
    return step
"""
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"


@pytest.fixture(scope="session")
def lab(tmp_path_factory):
    """The page with JupyterLab in it, and the folder that JupyterLab shows."""
    if CHROMIUM is None:
        missing = "Chromium is missing; install it, for example with: sudo apt-get install chromium"
        if "CI" in os.environ:
            pytest.fail(missing)
        pytest.skip(missing)
    from playwright.sync_api import sync_playwright

    folder = tmp_path_factory.mktemp("lab")
    with server(folder) as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=CHROMIUM_FLAGS)
        page = browser.new_page(viewport={"width": 1280, "height": 1000})
        page.goto(f"{url}lab?token=test&reset")
        page.wait_for_function("() => window.jupyterapp?.started")
        page.evaluate("() => window.jupyterapp.started")
        yield page, folder / "home"
        browser.close()


@pytest.fixture
def notebook(lab, request):
    """A function that opens a notebook made of the given cells, or the one at a path."""
    page, home = lab
    opened = []

    def open_notebook(*cells: str, path: str = "") -> Notebook:
        if cells:
            path = path or f"{request.node.originalname}.ipynb"
            write(home / path, *cells)
        opened.append(Notebook(page, home, path))
        return opened[-1]

    yield open_notebook
    for it in opened:
        it.close()


@pytest.fixture
def picture(request, tmp_path):
    """A function that keeps a screenshot, in the folder that DDPLAB_SCREENSHOTS names if it does."""
    folder = Path(os.environ.get("DDPLAB_SCREENSHOTS", tmp_path))
    folder.mkdir(parents=True, exist_ok=True)
    return lambda place, name="": place.screenshot(path=folder / f"{request.node.originalname[5:]}{name}.png")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_run_all(notebook, path):
    it = notebook(path=str(path))
    it.run(seconds=180)
    for number, cell in enumerate(it.cells, 1):
        assert cell.execution_count == number, f"code cell {number} was not run"
        errors = [output for output in cell.outputs if output.output_type == "error"]
        expected = "raises-exception" in cell.metadata.get("tags", [])
        assert expected or not errors, f"code cell {number} raised {errors[0].ename}: {errors[0].evalue}"


def test_panel_moves_while_the_cell_runs(notebook, lab, picture):
    it = notebook(IMPORTS, SLOW, "run = launch(train, 3)\nrun.results")
    it.run(0)
    it.run(1)
    it.start(2)
    panel = it.output(2)
    panel.locator("polyline").first.wait_for()
    time.sleep(1.5)
    picture(panel)
    print(panel.inner_text())
    assert it.busy
    until(lambda: not it.busy, 30)
    picture(panel, "_after")
    print(panel.inner_text())

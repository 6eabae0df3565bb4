"""What a person sees and presses, in a real JupyterLab in Chromium, with real ranks behind it."""

import os
import re
import time
from itertools import pairwise
from pathlib import Path
from statistics import median

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


def test_panel_moves_while_the_cell_runs(notebook, picture):
    it = notebook(IMPORTS, SLOW, "run = launch(train, 3)\nrun.results")
    it.run(0)
    it.run(1)
    it.watch(2)
    it.start(2)
    panel = it.output(2)
    panel.locator("polyline").nth(3).wait_for()  # two ranks, two logged values
    assert re.search(r"rank 0\s+running\s+\d+.*rank 1\s+running\s+\d+", panel.inner_text(), re.DOTALL)
    assert panel.get_by_role("img", name="curves of loss, seen").count() == 1
    time.sleep(1)
    picture(panel)
    assert it.busy, "the panel was seen only after the cell had ended"
    it.wait()
    seen = it.redraws()
    gaps = [later - earlier for earlier, later in pairwise(seen)]
    assert len(seen) > 20, "the panel stood still"
    assert median(gaps) <= 0.1, f"{1 / median(gaps):.0f} redraws a second"


@pytest.mark.parametrize("how", ["mouse", "keyboard"])
def test_stop_button(notebook, lab, picture, how):
    it = notebook(IMPORTS, SLOW, "run = launch(train, 60, wait=False)", "run.wait().state", path=f"stop_{how}.ipynb")
    for cell in (0, 1, 2):
        it.run(cell)
    panel = it.output(2)
    panel.locator("polyline").first.wait_for()
    picture(panel, how)
    pids = it.pids()
    assert len(pids) == 2
    button = panel.get_by_role("button", name="Stop")
    if how == "mouse":
        button.click()
    else:
        page, _ = lab
        page.keyboard.press("Escape")
        until(lambda: page.keyboard.press("Tab") or button.evaluate("it => it === document.activeElement"), 5)
        page.keyboard.press("Enter")
    until(lambda: not any(map(alive, pids)), 1)
    it.run(3)
    assert "stopped" in it.text(3)
    picture(panel, f"{how}_after")


@pytest.mark.parametrize("how", ["toolbar", "keyboard"])
def test_interrupt_ends_every_rank(notebook, lab, picture, how):
    it = notebook(IMPORTS, SLOW, "launch(train, 60)", "print('still here')", path=f"interrupt_{how}.ipynb")
    it.run(0)
    it.run(1)
    it.start(2)
    it.output(2).locator("polyline").first.wait_for()
    pids = it.pids()
    assert len(pids) == 2
    page, _ = lab
    if how == "toolbar":
        page.locator('.jp-NotebookPanel:visible [data-jp-item-name="interrupt"]').click()
    else:
        page.keyboard.press("Escape")
        page.keyboard.press("i")
        page.keyboard.press("i")
    until(lambda: not it.busy and not any(map(alive, pids)), 1.5)
    assert "KeyboardInterrupt" in it.text(2)
    picture(it.output(2), how)
    it.run(3)
    assert it.text(3).strip() == "still here"


def test_a_saved_panel_is_a_picture_and_text(notebook, picture):
    it = notebook(IMPORTS, SLOW, "launch(train, 1)\nNone", "launch(train, 1, wait=False).wait()\nNone")
    it.run()
    for cell in it.save().cells[2:]:
        [shown] = [output.data for output in cell.outputs if output.output_type == "display_data"]
        assert set(shown) == {"image/png", "text/plain"}
        assert shown["text/plain"].startswith("2 ranks on cpu (gloo): finished\nrank 0: step ")
        assert WIDGET_VIEW not in str(cell)
    path = it.file.name
    it.close()
    again = notebook(path=path)
    for cell in (2, 3):
        image = again.output(cell).locator("img")
        image.wait_for()
        assert image.evaluate("it => it.complete && it.naturalWidth > 300")
        picture(again.output(cell), f"_{cell}")


def test_error_in_a_rank_is_short_and_names_the_line(notebook, picture):
    broken = """
def train():
    log(loss=1.0)
    if os.environ["RANK"] == "1":
        raise ValueError("a bad batch")

launch(train)
"""
    it = notebook(IMPORTS, broken.strip(), "print('next')")
    it.run(0)
    it.run(1)
    text = it.text(1)
    picture(it.output(1))
    assert "rank 1 raised ValueError: a bad batch" in text
    assert "Cell In[2], line 4, in train" in text
    assert '--> raise ValueError("a bad batch")' in text
    assert "site-packages" not in text and "Traceback" not in text
    assert len(text.splitlines()) < 15


def test_torchrun_cell(notebook, picture):
    script = """%%torchrun --nproc-per-node 2 --out run
import time
import torch.distributed as dist
from ddplab import cleanup, log
dist.init_process_group("gloo")
for step in range(50):
    log(loss=1 / (1 + step))
    time.sleep(0.02)
print("rank", dist.get_rank(), "is done")
cleanup()"""
    it = notebook(IMPORTS, script, "len(run.metrics)", script.replace("for step", "1 / 0\nfor step"))
    it.run(0)
    it.start(1)
    it.output(1).locator("polyline").nth(1).wait_for()
    picture(it.output(1))
    assert it.busy
    it.wait()
    picture(it.output(1), "_after")
    assert "2 ranks on cpu (torchrun): finished" in it.text(1)
    assert "[rank 1] rank 1 is done" in it.text(1)
    it.run(2)
    assert "100" in it.text(2)
    it.run(3)
    picture(it.output(3), "_error")
    assert "ZeroDivisionError" in it.text(3) and "Cell In[4], line 6" in it.text(3)
    assert "site-packages" not in it.text(3)


@pytest.mark.parametrize("theme", ["JupyterLab Light", "JupyterLab Dark"])
def test_everything_is_legible(notebook, lab, picture, theme):
    claims = ["true", "true if", "misleading", "false"]
    cells = [
        "run = launch(train, 60, wait=False)",
        'guess = predict("Does `loss.backward()` wait for the other ranks?", "it waits", "it does not")',
        *(
            f'claim("folklore about `DDP`", verdict={v!r}, because="of `this`.", measured="3 bytes", holds=True, row=7)'
            for v in claims
        ),
    ]
    it = notebook(IMPORTS, SLOW, *cells, path=f"{theme}.ipynb")
    page, _ = lab
    it.command("apputils:change-theme", theme=theme)
    it.run()
    it.output(2).locator("polyline").first.wait_for()
    time.sleep(1)
    picture(page, theme[10:])
    try:
        for cell in range(2, 4 + len(claims)):
            for text, ratio in it.contrasts(cell):
                assert ratio >= 4.5, f"{text!r} in cell {cell} has a contrast of {ratio:.1f}"
    finally:
        it.command("apputils:change-theme", theme="JupyterLab Light")


def test_predict_from_the_keyboard(notebook, lab, picture):
    question = 'guess = predict("Which is it?", "the first", "the second", "the third")'
    verdict = (
        'claim("it is the third", verdict="false", because="it is the second.", measured="2", holds=True,\n'
        '      prediction=guess, answer="the second")'
    )
    it = notebook(IMPORTS, question, "guess.choice", verdict)
    for cell in (0, 1):
        it.run(cell)
    page, _ = lab
    radios = it.output(1).get_by_role("radio")
    assert radios.count() == 3
    page.keyboard.press("Escape")
    until(lambda: page.keyboard.press("Tab") or radios.first.evaluate("it => it === document.activeElement"), 5)
    page.keyboard.press("Space")
    page.keyboard.press("ArrowDown")
    picture(it.output(1))
    it.run(2)
    assert "the second" in it.text(2)
    it.run(3)
    picture(it.output(3), "_claim")
    assert "You predicted “the second”, and so it is." in it.text(3)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True

"""What a person sees and presses, in a real JupyterLab in Chromium, with real ranks behind it."""

import os
import re
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from statistics import median
from types import SimpleNamespace

import psutil
import pytest
from browser import CHROMIUM, CHROMIUM_FLAGS, FOLDERS, ROOT, Notebook, kernels, server, until, write
from leftovers import ranks_alive, run_folders
from leftovers import until as soon
from panel_in_a_page import CELL, watch
from run_notebooks import code_cells, read

from ddplab.course.step_explorer import StepModel
from ddplab.plots import SHAPES

pytestmark = pytest.mark.browser

# nbval runs every notebook. A page adds what only a page has: panels, widgets, predictions, magics, errors that Run All
# passes over. These have all of it between them; `make browser` takes half an hour and runs every notebook in the page.
IN_A_PAGE = ["lessons/1_one_device/1.1", "lessons/2_dataparallel/2.1"]
EVERY = [path.relative_to(ROOT) for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.ipynb"))]
NOTEBOOKS = [path for path in EVERY if "DDPLAB_EVERY_PAGE" in os.environ or str(path).startswith(tuple(IN_A_PAGE))]
IMPORTS = "import os, time\nfrom ddplab import claim, launch, log, predict, settle"
SLOW = """
def train(seconds):
    open(f"pid{os.environ['RANK']}", "w").write(str(os.getpid()))
    end = time.time() + seconds
    step = 0
    while time.time() < end and not os.path.exists("enough"):
        log(loss=1 / (1 + 0.1 * step), seen=32 * step)
        step += 1
        time.sleep(0.02)
    return step
"""
CHECKLIST = """import torch
from ddplab.course.checklist import dataparallel_checklist
dataparallel_checklist(torch.nn.Linear(2, 2))"""
PLANNER = "from ddplab.course.plan_explorer import planner\nplanner(gpus=64)"
SWITCHES = "from ddplab.course.switches import four_switches\nfour_switches((8, 1.0), epochs=1)"
SENTENCES = """import torch
from ddplab.course.sentence_cut import across_the_cut, outcome, told
gradients = torch.tensor([[3.0, 1], [1, 2], [-1, 0], [0, 5]])
sentences = [line.split() for line in ("a quick fox jumps over the dog", "the tea is ready", "sleep well", "hush")]
for look, sizes in (("words", [1, 3]), ("unpacked", [1, 3]), ("loss", [1, 2, 1])):
    print(told(outcome(sentences, sizes, (gradients @ gradients.T).tolist()), look))"""
CUT = "across_the_cut(sentences, gradients=gradients)"
MEMORY = "from ddplab.course.memory_layers import memory_by_layer\nmemory_by_layer('CNN')"
FILM = """from ddplab.course.films import Frame, play
frames = [Frame([(1,), (10,)], []), Frame([(1,), (1,)], [(0, 1, 4)]), Frame([(1,), (2,)], [(1, 1, 4)])]
play({"two": frames, "one": frames[:2], "of four": [Frame([(1,)] * 4, [])]}, first="two")"""
STEP = "from ddplab.course.step_explorer import explore_step\nexplore_step()"
PAGER = "from ddplab.course.incidents import closed_nights, incident\nclosed_nights()\npage = incident(19)\npage"
HOLDERS = """from types import SimpleNamespace
from ddplab.course.holding import Board
said = ["typed, and holds the store", "[default] Rendezvous'ing worker group", "group_rank=0 Rendezvous complete"
        " group_world_size=1 global_ranks=[0]"]
server = SimpleNamespace(name="server1", diary=[{"time": n, "said": it} for n, it in enumerate(said)])
board = Board([server], buttons=["kill a rank"])
board.appear()"""
DARTS = """import torch, torch.distributed as dist
from ddplab.course.darts import fall, logging_darts
def darts():
    hits = (torch.rand(300, 2, generator=torch.Generator().manual_seed(dist.get_rank())).norm(dim=1) < 1).sum()
    dist.all_reduce(hits)
    return hits.item()
fall(launch(logging_darts(darts), device="cpu", quiet=True))"""
MOVING = """from ddplab.course.moving import move
from ddplab.plots import drawing
lines = []
def doubled(rows, line):
    lines.append(line)
    with drawing(4, 0.5 + rows / 10) as figure:
        figure.text(0.1, 0.5, f"{rows}")
    if rows == 4:
        raise ValueError("no four")
    return f"{line}: {2 * rows}", figure
move(doubled, rows=range(1, 9), line=["one", "other"])"""
WAITING_ROOM = """from ddplab.course.timeline import Row
from ddplab.course.waiting_room import JOBS, WaitingRoom
step = [Row("phase", name, n, n + 1, "") for n, name in enumerate(("data", "forward", "backward", "optimiser"))]
WaitingRoom({name: 3 * [3 * [step]] for name in JOBS}, seed=12)"""
HUNT = "from ddplab.course.shortest import hunt\nhunt(lights=4, out=['set_epoch'])"
DEALER = "from ddplab.course.cards import dealer\ndealer()"
DEAL = "dealer(shuffle=False, drop_last=False, epochs=1, wrong=[0, 1], offer=['samples', 'ranks'])"
THEATRE = """import torch, torch.distributed as dist
from ddplab.course.stage import theatre
def scene():
    for _ in range(2):
        time.sleep(0.1)
        dist.all_reduce(torch.ones(1))
film = theatre(scene, rank=1, deed="dies before", call=2)"""
OVER_EACH_OTHER = """svg => {
  const texts = [...svg.querySelectorAll("text")].map((it) => [it.textContent, it.getBoundingClientRect()]);
  const shared = (a, b, from, to) => Math.min(a[to], b[to]) - Math.max(a[from], b[from]); // pixels
  const over = (a, b) => shared(a, b, "left", "right") > 1 && shared(a, b, "top", "bottom") > 4;
  return texts.flatMap(([mine, a], n) => texts.slice(n + 1).flatMap(([its, b]) => over(a, b) ? [[mine, its]] : []));
}"""
GUESS = 'from ddplab.course.folklore import guess\n\nguess("9.4", "lessons")'
BETS = """from ddplab.course.bets import Bets

bets = Bets()
for row in (1, 2):
    says = {"verdict": "false", "because": "so"}
    bets.on(row, f"sentence {row}", "which?", "a", "b", "c", **says)(lambda row=row: ("b", f"measured {row}"))"""
FORGET = "from ddplab.course import claims\n\nclaims.right.clear()\n"  # another notebook of this kernel has guessed
QUIZ = 'from ddplab.course.folklore import board, boxes, quiz\n\nsaid = quiz(boxes("lessons"))'
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"


@pytest.fixture(scope="module")  # it would go on taking time from the tests after these
def lab(tmp_path_factory):
    """JupyterLab in a page, the folder it shows, the server's process, and the kernel that small notebooks share."""
    if CHROMIUM is None:
        missing = "Chromium is missing; install it, for example with: sudo apt-get install chromium"
        if "CI" in os.environ:
            pytest.fail(missing)
        pytest.skip(missing)
    from playwright.sync_api import sync_playwright

    folder = tmp_path_factory.mktemp("lab")
    with server(folder) as (url, process), sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=CHROMIUM_FLAGS)
        page = browser.new_page(viewport={"width": 1280, "height": 1000})
        page.goto(f"{url}lab?token=test&reset")
        page.wait_for_function("() => window.jupyterapp?.started")
        page.evaluate("() => window.jupyterapp.started")
        yield SimpleNamespace(page=page, home=folder / "home", server=process, kernel=None)
        browser.close()


@pytest.fixture(autouse=True)
def nothing_left_behind(lab):
    there_before = set(run_folders())  # nbval kills its kernels, which then cannot tidy up
    yield
    running = kernels(lab.server)
    assert len(running) == (lab.kernel is not None), "closing a notebook did not end its kernel"
    until(lambda: not any(ranks_alive(kernel.pid) for kernel in running), 20)
    assert soon(lambda: set(run_folders()) <= there_before), f"folders left behind: {run_folders()}"


@pytest.fixture
def notebook(lab, request):
    """A function that opens a notebook: one of ours at a path, or one made of the given cells.

    Those made of cells share a kernel that has run IMPORTS and SLOW, which spares the time to start one each.
    """
    opened = []

    def open_notebook(*cells: str, path: str = "") -> Notebook:
        if cells:
            path = f"{request.node.originalname}.ipynb"
            write(lab.home / path, *cells)
        opened.append(Notebook(lab.page, lab.home, path, shared_kernel(lab) if cells else None))
        return opened[-1]

    yield open_notebook
    for it in opened:
        it.close(shut_down=it.kernel != lab.kernel)


def shared_kernel(lab) -> str:
    if lab.kernel is None:
        write(lab.home / "start.ipynb", IMPORTS, SLOW)
        start = Notebook(lab.page, lab.home, "start.ipynb")
        start.run()
        start.close(shut_down=False)
        lab.kernel = start.kernel
    return lab.kernel


@pytest.fixture
def picture(request):
    """A function that keeps a screenshot in the folder that DDPLAB_SCREENSHOTS names, if it names one."""
    if "DDPLAB_SCREENSHOTS" not in os.environ:
        return lambda place, name="": None
    folder = Path(os.environ["DDPLAB_SCREENSHOTS"])
    folder.mkdir(parents=True, exist_ok=True)
    return lambda place, name="": place.screenshot(path=folder / f"{request.node.originalname[5:]}{name}.png")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_run_all(notebook, path):
    it = notebook(path=str(path))
    it.run(seconds=400)
    for number, cell in enumerate(it.cells, 1):
        assert cell.execution_count == number, f"code cell {number} was not run"
        errors = [output for output in cell.outputs if output.output_type == "error"]
        expected = "raises-exception" in cell.metadata.get("tags", [])
        assert expected or not errors, f"code cell {number} raised {errors[0].ename}: {errors[0].evalue}"
    stored = [sum("image/png" in it.get("data", {}) for it in cell.outputs) for cell in code_cells(read(ROOT / path))]

    def complete() -> bool:  # a panel shows more than is stored
        return all(shown >= kept for shown, kept in zip(it.pictures(), stored, strict=True))

    with suppress(TimeoutError):  # a picture may take a moment
        until(complete, 10)
    assert complete(), f"each code cell's pictures: stored {stored}, shown {it.pictures()}"


def test_a_stored_lesson_keeps_its_boxes_untrusted_and_is_saved_as_it_was(notebook, picture):
    path = "lessons/4_ddp/4.1_distributed_data_parallel.ipynb"
    it = notebook(path=path)
    it.save()
    less_version = re.sub(r',\n   "version": "3\.\d+\.\w+"', "", it.file.read_text())
    assert less_version == (ROOT / path).read_text()
    dots = it.page.locator(".jp-Notebook:visible .jp-OutputPlaceholder").all_inner_texts()
    assert dots and not "".join(dots).strip(), "JupyterLab shows the first line of what is folded"
    it.page.evaluate("() => window.panel.content.widgets.forEach(cell => { cell.outputHidden = false; })")
    box = it.page.locator('.jp-Notebook:visible .jp-RenderedHTML div[style*="border"]').first
    box.wait_for()
    assert box.evaluate("it => getComputedStyle(it).border") == "1px solid rgb(117, 117, 117)"
    picture(box)


def test_panel_moves_while_the_cell_runs(notebook, picture):
    it = notebook("run = launch(train, 60)\nrun.results")
    it.watch(0)
    it.start(0)
    panel = it.output(0)
    panel.locator("polyline").nth(3).wait_for()  # two ranks, two logged values
    assert re.search(r"rank 0\s+running\s+\d+.*rank 1\s+running\s+\d+", panel.inner_text(), re.DOTALL)
    assert panel.get_by_role("img", name="curves of loss, seen").count() == 1
    until(lambda: len(it.redraws()) > 30, 30)
    picture(panel)
    assert it.busy, "the panel was seen only after the cell had ended"
    with it.enough():
        it.wait()
    picture(panel, "_after")
    seen = it.redraws()
    gaps = [later - earlier for earlier, later in pairwise(seen)]
    assert len(seen) > 20, "the panel stood still"
    assert median(gaps) <= 0.1, f"{1 / median(gaps):.0f} redraws a second"


def test_a_panel_of_eight_ranks_neither_jumps_nor_grows(notebook, lab):
    """`stress/panel_in_a_page.py` watches it for ten minutes."""
    it = notebook(CELL)
    seen = watch(it, kernels(lab.server)[0], seconds=5)
    assert len(seen.heights) == 1, f"the height of the panel, and of what stays, was {seen.heights}"
    assert seen.late.heap < 1.3 * seen.early.heap and seen.late.nodes < 1.3 * seen.early.nodes


@pytest.mark.parametrize("how", ["mouse", "keyboard"])
def test_stop_button(notebook, lab, picture, how):
    it = notebook("run = launch(train, 60, wait=False)", "run.wait().state")
    it.run(0)
    panel = it.output(0)
    panel.locator("polyline").nth(3).wait_for()
    picture(panel, f"_{how}")
    pids = it.pids()
    assert len(pids) == 2
    button = panel.get_by_role("button", name="Stop")
    if how == "mouse":
        button.click()
    else:
        tab_to(lab.page, button)
        lab.page.keyboard.press("Enter")
    until(lambda: not any(map(psutil.pid_exists, pids)), 1)
    it.run(1)
    assert "stopped" in it.text(1)
    panel.locator("img").first.wait_for()
    picture(panel, f"_{how}_after")


@pytest.mark.parametrize("how", ["toolbar", "keyboard"])
def test_interrupt_ends_every_rank(notebook, lab, picture, how):
    it = notebook("launch(train, 60)", "print('still here')")
    it.start(0)
    it.output(0).locator("polyline").nth(3).wait_for()
    pids = it.pids()
    assert len(pids) == 2
    if how == "toolbar":
        lab.page.locator('.jp-NotebookPanel:visible [data-jp-item-name="interrupt"]').click()
    else:
        for key in ("Escape", "i", "i"):
            lab.page.keyboard.press(key)
    until(lambda: not any(map(psutil.pid_exists, pids)), 1)
    it.wait(10)  # the picture takes a moment
    picture(it.output(0), f"_{how}")
    assert "KeyboardInterrupt" in it.text(0)
    assert not re.search(r"(launcher|follow|run)\.py", it.text(0)), "the traceback shows our own lines"
    it.run(1)
    assert it.text(1).strip() == "still here"


def test_what_stays_of_a_panel_is_as_tall_and_is_seen_in_a_saved_notebook(notebook, lab, picture):
    it = notebook("launch(train, 1)\nNone", "launch(train, 1, wait=False).wait()\nNone")
    it.run()
    it.output(1).locator("img").first.wait_for()
    for cell in it.save().cells:
        [shown] = [output.data for output in cell.outputs if output.output_type == "display_data"]
        assert set(shown) == {"text/html", "text/plain"}
        assert shown["text/plain"].startswith("2 ranks on cpu (gloo): finished\nrank 0: step ")
        assert WIDGET_VIEW not in str(cell)
    it.close(shut_down=False)
    it.file.write_text(it.file.read_text().replace("train, 1", "train, 2"))  # JupyterLab does not trust that
    again = notebook(path=it.file.name)
    for cell in (0, 1):
        image = again.output(cell).locator("img").first
        image.wait_for()
        assert image.evaluate("it => it.complete && it.naturalWidth == 300")
        picture(again.output(cell), f"_{cell}")


def test_error_in_a_rank_is_short_and_names_the_line(notebook, picture):
    broken = """def broken():
    log(loss=1.0)
    if os.environ["RANK"] == "1":
        raise ValueError("a bad batch")

launch(broken)"""
    it = notebook(broken)
    it.run(0)
    picture(it.output(0))
    text = it.text(0)
    assert "rank 1 raised ValueError: a bad batch" in text
    assert f"Cell In[{it.cells[0].execution_count}], line 4, in broken" in text
    assert '--> raise ValueError("a bad batch")' in text
    assert "site-packages" not in text and "Traceback" not in text
    assert len(text.splitlines()) < 15


def test_a_run_that_nobody_waits_for_says_how_it_failed(notebook, picture):
    it = notebook("def later():\n    log(loss=1.0)\n    time.sleep(0.5)\n    1 / 0\n\nrun = launch(later, wait=False)")
    it.run(0)
    until(lambda: "raised ZeroDivisionError" in it.text(0), 10)
    picture(it.output(0))
    assert "2 ranks on cpu (gloo): failed" in it.text(0)
    assert f"Cell In[{it.cells[0].execution_count}], line 4, in later" in it.text(0)


def test_torchrun_cell(notebook, picture):
    script = """%%torchrun --nproc-per-node 2 --out run
import os, time
import torch.distributed as dist
from ddplab import cleanup, log
dist.init_process_group("gloo")
for step in range(50):
    log(loss=1 / (1 + step))
    time.sleep(0.02)
while not os.path.exists("enough"):
    time.sleep(0.05)
print("rank", dist.get_rank(), "is done")
cleanup()"""
    it = notebook(script, "len(run.metrics)", "%%torchrun --nproc-per-node 2\n\n1 / 0")
    it.start(0)
    it.output(0).locator("polyline").nth(1).wait_for()
    picture(it.output(0))
    assert it.busy
    with it.enough():
        it.wait()
    picture(it.output(0), "_after")
    assert "2 ranks on cpu (torchrun): finished" in it.text(0)
    assert "[rank 1] rank 1 is done" in it.text(0)
    it.run(1)
    assert "100" in it.text(1)
    it.run(2)
    picture(it.output(2), "_error")
    assert "ZeroDivisionError" in it.text(2)
    assert f"Cell In[{it.cells[2].execution_count}], line 3" in it.text(2)
    assert "site-packages" not in it.text(2)


def test_everything_is_legible_and_has_a_name_for_who_cannot_see_it(notebook, lab, picture):
    """Of names, axe-core finds nothing serious: https://github.com/dequelabs/axe-core."""
    from axe_playwright_python.sync_playwright import Axe

    made = "claim('folklore about `DDP`', verdict={!r}, because='of `this`.', measured='3 bytes', holds=True, row=7)"
    claims = [made.format(verdict) for verdict in ("true", "true if", "misleading", "false")]
    claims.append("claim('who wrote `this`', verdict='not settled', because='no page says', read='a page')")
    question = "guess = predict('Does `loss.backward()` wait for the other ranks?', 'it waits', 'it does not')"
    widgets = [CHECKLIST, PLANNER, SWITCHES, f"{SENTENCES}\n{CUT}", MEMORY, FILM, STEP, DARTS, DEALER, THEATRE]
    widgets += [MOVING, HUNT, GUESS, QUIZ, PAGER]
    rests = (
        "def rest():\n    for step in range(5):\n        log(loss=step)\n    time.sleep(60)\n\n"  # and is not redrawn
    )
    panel = f"{rests}run = launch(rest, wait=False)"
    shown = [panel, question, *claims, *widgets, "launch(lambda: 1)"]
    it = notebook(*shown, "run.stop()")
    is_there = (
        """name => document.body.dataset.jpThemeName === name && !document.querySelector('.jp-mod-theme-loading')"""
    )
    try:
        for theme in ("JupyterLab Dark", "JupyterLab Light"):  # drawn in the dark, and changed under what is drawn
            it.command("apputils:change-theme", theme=theme)
            lab.page.wait_for_function(is_there, arg=theme)
            if theme == "JupyterLab Dark":
                for cell in range(len(shown)):
                    it.run(cell)
                it.output(0).locator("polyline").nth(1).wait_for()
            picture(it.output(0).page.locator(".jp-NotebookPanel:visible"), f"_{theme.split()[1]}")
            for cell in range(len(shown)):
                for text, ratio in it.contrasts(cell):  # WCAG 2.2, success criterion 1.4.3
                    least = 3 if text in SHAPES else 4.5  # a shape is a picture, not text: 1.4.11
                    assert ratio >= least, f"{text!r} in cell {cell} has a contrast of {ratio:.1f}, {theme}"
        output = ".jp-NotebookPanel:not(.lm-mod-hidden) .jp-OutputArea-output"
        assert lab.page.locator(output).count() >= len(shown)
        found = Axe().run(lab.page, context=output, options={"resultTypes": ["violations"]}).response["violations"]
        serious = [it for it in found if it["impact"] in ("serious", "critical")]
        assert not serious, [(it["id"], [node["html"][:200] for node in it["nodes"]]) for it in serious]
    finally:
        it.run(len(shown))
        it.command("apputils:change-theme", theme="JupyterLab Light")


def test_predict_from_the_keyboard(notebook, lab, picture):
    question = "guess = predict('Which is it?', 'the first', 'the second', '`<i>` the third')"
    it = notebook(question, "guess.choice", "settle(guess, 'the second', because='it is 2.', holds=True)")
    it.run(0)
    radios = it.output(0).get_by_role("radio")
    assert it.output(0).get_by_role("group", name="Predict: Which is it?").count() == 1
    assert it.output(0).locator("label code").all_inner_texts() == ["<i>"]
    assert it.output(0).get_by_role("radio", name="<i> the third").get_attribute("value") == "`<i>` the third"
    tab_to(lab.page, radios.first)
    for key in ("Space", "ArrowDown"):
        lab.page.keyboard.press(key)
    until(lambda: [radio.is_checked() for radio in radios.all()] == [False, True, False], 20)
    assert radios.nth(1).evaluate("it => it === document.activeElement")  # the notebook did not take the arrow key
    picture(it.output(0))
    # of two presses the page sends the second once the kernel has answered the first; a cell run at once is early
    until(lambda: it.run(1) or "the second" in it.text(1), 10)
    it.run(2)
    picture(it.output(2), "_settled")
    assert "You predicted “the second”, and so it is." in it.text(2)


def test_a_guess_from_the_keyboard_comes_back_in_its_box(notebook, lab, picture):
    settled = "claim('x', verdict='true if', because='y', measured='3', holds=True, row=47)"
    it = notebook(GUESS, settled)
    it.run(0)
    asked = it.output(0).get_by_role("table", name="your guesses").get_by_role("row", name="47")
    assert asked.get_by_role("radio").count() == 4 and "measured" not in it.text(0).lower()
    tab_to(lab.page, asked.get_by_role("radio").first)
    for key in ("Space", "ArrowRight"):
        lab.page.keyboard.press(key)
    until(lambda: asked.get_by_role("radio").nth(1).is_checked(), 20)
    until(lambda: "Guessed: 1 of 12." in it.text(0), 20)
    picture(it.output(0))

    def told():  # the page sends a second choice once the kernel has answered the first; a cell may overtake it
        it.run(1)
        return "You guessed “holds if …”, and so it is. Right so far: 1 of 1." in it.text(1)

    until(told, 10)
    it.run(0)  # once more, and it is still what was guessed
    until(lambda: asked.get_by_role("radio").nth(1).is_checked(), 20)


def test_a_bet_from_the_keyboard_is_settled_by_its_run_and_the_focus_stays(notebook, lab, picture):
    it = notebook(BETS, "bets.play()")
    it.run(0)
    it.run(1)
    panel, press = it.output(1), lab.page.keyboard.press
    groups = [panel.get_by_role("radiogroup", name=name) for name in ("sentence", "what the run will show", "stake")]
    sentence, end, stake = (group.get_by_role("radio") for group in groups)
    button = panel.get_by_role("button")
    tab_to(lab.page, button)
    press("Enter")
    until(lambda: "First say what the run will show" in it.text(1), 20)
    tab_to(lab.page, sentence.first)
    press("ArrowRight")
    for radio in (end.first, stake.first):
        tab_to(lab.page, radio)
        press("Space")
        press("ArrowDown")
    high = panel.bounding_box()["height"]
    tab_to(lab.page, button)
    press("Enter")
    told = "Your score: 4. 1 of 2 settled.", "You staked 2 on: b. The run shows: b."
    until(lambda: all(words in it.text(1) for words in told), 20)
    picture(panel)
    assert panel.bounding_box()["height"] == high and end.nth(1).is_disabled()
    press("Enter")  # on the same button, which leads to the next
    until(lambda: sentence.first.is_checked() and end.first.is_enabled(), 20)
    assert end.first.evaluate("it => it === document.activeElement") and "2 (2 left)" in it.text(1)
    for radio in (end.first, stake.first):
        tab_to(lab.page, radio)
        press("Space")
    tab_to(lab.page, button)
    press("Enter")
    until(lambda: "Your score: 3, with 1 of 2 right." in it.text(1), 20)
    press("Enter")  # once more, from the beginning
    until(lambda: "0 of 2 settled. Best so far: 3." in it.text(1) and end.first.is_enabled(), 20)
    assert sentence.first.is_checked() and panel.bounding_box()["height"] == high
    assert end.first.evaluate("it => it === document.activeElement")


def test_a_quiz_of_five_from_the_keyboard_counts_mistakes_by_kind(notebook, lab, picture):
    counted = "print(len(said), said.keys() <= {*range(1, 80)})"
    it = notebook(FORGET + QUIZ, counted, "board(boxes('lessons'), said=said)")
    it.run(0)
    panel, press = it.output(0), lab.page.keyboard.press
    assert "Claim 1 of 5" in it.text(0) and "Measured" not in it.text(0)
    tab_to(lab.page, panel.get_by_role("button").first)
    for _ in range(4):
        press("Enter")  # it holds
        until(lambda: "Measured" in it.text(0), 20)
        press("Enter")  # the focus is on Next
        until(lambda: "Measured" not in it.text(0), 20)
    press("Enter")
    until(lambda: "of 5 right so far" in it.text(0), 20)
    assert panel.get_by_role("button", name="Five others").count() == 1
    counts = panel.get_by_role("table", name="your answers, by kind").locator("td:nth-child(2)").all_inner_texts()
    assert sum(map(int, counts)) == 5 and counts[3] == "0"  # who says that it holds mistrusts nothing
    picture(panel)

    def told():  # a cell may overtake what the page has to tell
        it.run(1)
        return "5 True" in it.text(1)

    until(told, 10)
    it.run(2)
    assert f"You have judged 5, {counts[0]} as it was found." in it.text(2)
    assert ("The others are: " in it.text(2)) == (counts[0] != "5")
    it.output(2).get_by_role("combobox", name="Verdict").select_option("↻ not as you said")
    until(lambda: it.output(2).get_by_role("row").count() == 1 + 5 - int(counts[0]), 20)
    found = it.output(2).get_by_role("row").nth(1)
    assert not found.get_by_text("Measured:").is_visible()
    tab_to(lab.page, found.locator("summary"))
    press("Enter")
    until(lambda: found.get_by_text("Measured:").is_visible(), 20)
    picture(it.output(2))


def test_the_checklist_from_the_keyboard(notebook, lab, picture):
    it = notebook(CHECKLIST)
    it.run(0)
    panel = it.output(0)
    finding = panel.get_by_role("status")
    first = finding.inner_text()
    for button, wanted in (("Next", lambda now: now != first), ("Back", lambda now: now == first)):
        tab_to(lab.page, panel.get_by_role("button", name=button))
        lab.page.keyboard.press("Space")
        until(lambda wanted=wanted: wanted(finding.inner_text()), 20)
        assert panel.get_by_role("button", name=button).evaluate("it => it === document.activeElement")
    picture(panel)


def test_the_planner_from_the_keyboard(notebook, lab, picture):
    it = notebook(PLANNER)
    it.run(0)
    panel = it.output(0)
    chosen = panel.get_by_role("row", name="→")
    assert chosen.inner_text().split()[:2] == ["→", "64"]
    tab_to(lab.page, panel.get_by_role("combobox", name="GPUs"))
    height = panel.bounding_box()["height"]
    lab.page.keyboard.press("ArrowDown")
    until(lambda: chosen.inner_text().split()[:2] == ["→", "128"], 20)
    assert panel.get_by_text("inside each node").count() and panel.bounding_box()["height"] == height, "the page jumped"
    step, drawn = panel.get_by_text("hidden and"), panel.get_by_role("img")
    until(lambda: step.inner_text().startswith("128 GPUs: 5"), 20)
    assert drawn.get_attribute("aria-label") == step.inner_text()
    tab_to(lab.page, panel.get_by_role("combobox", name="the step on"))
    lab.page.keyboard.press("Home")
    until(lambda: step.inner_text().startswith("1 GPU: 512 ms: computes 512 ms, waits for the latest 0 ms"), 20)
    picture(panel)
    height = panel.bounding_box()["height"]
    tab_to(lab.page, panel.get_by_role("combobox", name="model"))
    lab.page.keyboard.press("Home")
    tab_to(lab.page, panel.get_by_role("combobox", name="batch"))
    lab.page.keyboard.press("Home")
    until(lambda: panel.get_by_text("6 ms a step may be Python starting kernels. So there is no timeline").count(), 20)
    assert drawn.count() == 0 and panel.bounding_box()["height"] == height, "the page jumped"


def test_four_switches_from_the_keyboard(notebook, lab, picture):
    it = notebook(SWITCHES)
    it.run(0)
    panel = it.output(0)
    status, quest = panel.get_by_role("status").first, panel.get_by_role("list", name="to find")
    assert "Nothing trained yet" in status.inner_text() and quest.inner_text().startswith("☐ make it fail: batch 8")
    height = panel.bounding_box()["height"]
    tab_to(lab.page, panel.get_by_role("combobox", name="batch on each rank"))
    for _ in range(4):
        lab.page.keyboard.press("ArrowDown")  # the next larger batch
    tab_to(lab.page, panel.get_by_role("combobox", name="ranks", exact=True))
    lab.page.keyboard.press("ArrowDown")
    train = panel.get_by_role("button", name="Train")
    tab_to(lab.page, train)
    lab.page.keyboard.press("Space")
    until(lambda: status.inner_text().startswith("Trained: ") and "which of them matters" in status.inner_text(), 30)
    assert train.evaluate("it => it === document.activeElement")
    assert panel.get_by_role("img", name="batch 128, rate 1, 2 ranks: loss of seed 0").count() == 1
    picture(panel)
    assert panel.bounding_box()["height"] == height, "the page jumped"
    tab_to(lab.page, panel.get_by_role("button", name="Clear"))
    lab.page.keyboard.press("Space")
    until(lambda: status.inner_text() == "The charts are gone; the list and what is ticked stay.", 20)
    assert "… 0 of 3" not in (tried := panel.get_by_role("table").inner_text()) and "128" in tried
    assert panel.bounding_box()["height"] == height, "the page jumped"


def test_the_cut_by_mouse_and_keyboard_calculates_as_python_does(notebook, lab, picture):
    it = notebook(SENTENCES, CUT, "across_the_cut(sentences)", "across_the_cut([['indistinguishably'], ['hush']])")
    it.run()
    wanted = it.text(0).splitlines()
    wide = it.output(3).locator("svg .word").first
    assert wide.evaluate("it => it.getBoundingClientRect().width") < 66, "a word that nobody has touched leaves its box"
    assert "loss" not in it.output(2).get_by_role("combobox", name="show").inner_text()  # a bet about it may be open
    panel, press = it.output(1), lab.page.keyboard.press
    panel.scroll_into_view_if_needed()
    status, height = panel.get_by_role("status"), panel.bounding_box()["height"]
    show, gpus = (panel.get_by_role("combobox", name=name) for name in ("show", "GPUs"))
    for look in ("loss", "unpacked", "words"):
        show.select_option(look)
        for count in ("4", "3", "2"):
            gpus.select_option(count)
            assert panel.bounding_box()["height"] == height, f"the page jumps: {status.inner_text()}"
    assert panel.get_by_role("slider", name="cut 1").get_attribute("max") == "3"  # each GPU keeps a sentence
    drawn = panel.locator("svg").first.bounding_box()
    lab.page.mouse.move(drawn["x"] + 200, drawn["y"] + drawn["height"] / 2)
    lab.page.mouse.down()
    lab.page.mouse.move(drawn["x"] + 220, drawn["y"] + drawn["height"] / 4, steps=4)
    lab.page.mouse.up()
    assert status.inner_text() == wanted[0]
    assert lab.page.evaluate("String(getSelection())") == "", "a drag selects words"
    tab_to(lab.page, panel.get_by_role("combobox", name="show"))
    press("ArrowDown")
    assert status.inner_text() == wanted[1]
    press("ArrowDown")
    tab_to(lab.page, panel.get_by_role("combobox", name="GPUs"))
    press("ArrowDown")
    for name in ("cut 1", "cut 2"):  # from 2 + 2, with nothing for the third GPU, to 1 + 2 + 1
        cut = panel.get_by_role("slider", name=name)
        tab_to(lab.page, cut)
        press("ArrowLeft")
    assert status.inner_text() == wanted[2]
    assert cut.evaluate("it => it === document.activeElement") and panel.bounding_box()["height"] == height
    picture(panel)


def test_the_memory_of_a_step_from_the_keyboard_is_calculated_as_python_does(notebook, lab, picture):
    wanted = """from ddplab.course.memory_layers import by_layer, total
for asked in (("CNN", 64), ("CNN", 64, "Adam", "float32", True), ("CNN", 64, "Adam", "float32", True, 4, "state")):
    print(f"{sum(total(by_layer(*asked)).values()):,.0f}")"""
    it = notebook(wanted, MEMORY)
    it.run()
    panel = it.output(1)
    status, table = panel.get_by_role("status"), panel.get_by_role("table", name="memory by layer")
    height = panel.bounding_box()["height"]
    turns = [["batch on each rank"], ["checkpointing"], ["ranks", "ranks", "they share out"]]
    for together, names in zip(it.text(0).split(), turns, strict=True):
        for name in names:
            tab_to(lab.page, panel.get_by_role("combobox", name=name, exact=True))
            lab.page.keyboard.press("ArrowDown")
        assert status.inner_text().startswith(f"{together} bytes on a rank, ")
    assert table.get_by_role("row", name="all 8").count() == 1
    panel.get_by_role("combobox", name="model").select_option(label="CNN with BatchNorm")
    assert table.get_by_role("row", name="BatchNorm2d, the second").count() == 1
    assert panel.bounding_box()["height"] == height, "the page jumped"
    picture(panel)


def test_sliders_over_a_function_from_the_keyboard_and_drawn_along(notebook, lab, picture):
    let_go = MOVING.replace("move(doubled, ", "move(doubled, drag=False, ")
    it = notebook(MOVING, "print(lines)", let_go, "print(lines)")
    it.run(0)
    panel = it.output(0)
    status, rows = panel.get_by_role("status"), panel.get_by_role("slider", name="rows")
    assert status.inner_text() == "one: 2" and panel.get_by_role("img", name="one: 2").count() == 1
    assert status.evaluate("it => getComputedStyle(it).whiteSpace") == "pre-wrap", "a long line is not cut off"
    tab_to(lab.page, rows)
    lab.page.keyboard.press("ArrowRight")
    until(lambda: status.inner_text() == "one: 4", 20)
    assert rows.get_attribute("aria-valuetext") == "2"
    tab_to(lab.page, panel.get_by_role("combobox", name="line"))
    lab.page.keyboard.press("ArrowDown")
    until(lambda: status.inner_text() == "other: 4", 20)
    picture(panel)
    tab_to(lab.page, panel.get_by_role("combobox", name="line"))
    for key in ("ArrowUp", "ArrowDown"):
        lab.page.keyboard.press(key)
    lab.page.wait_for_timeout(2000)
    it.run(1)
    assert it.text(1).strip() == "['one', 'one', 'other', 'other']", "on the way through a list nothing is chosen"
    place = rows.bounding_box()
    lab.page.mouse.move(place["x"] + place["width"] / 8, place["y"] + place["height"] / 2)
    lab.page.mouse.down()
    lab.page.mouse.move(place["x"] + place["width"] - 1, place["y"] + place["height"] / 2, steps=30)
    lab.page.mouse.up()
    until(lambda: status.inner_text() == "other: 16", 5)  # the last question is answered, however many came between
    height = panel.bounding_box()["height"]
    for _ in range(4):
        tab_to(lab.page, rows)
        lab.page.keyboard.press("ArrowLeft")
    until(lambda: status.inner_text() == "ValueError: no four", 20)
    assert panel.bounding_box()["height"] == height, "the page jumped"
    it.run(2)
    rows = it.output(2).get_by_role("slider", name="rows")
    rows.scroll_into_view_if_needed()
    place = rows.bounding_box()
    lab.page.mouse.move(place["x"] + place["width"] / 8, place["y"] + place["height"] / 2)
    lab.page.mouse.down()
    lab.page.mouse.move(place["x"] + place["width"] - 1, place["y"] + place["height"] / 2, steps=30)
    lab.page.mouse.up()
    until(lambda: it.output(2).get_by_role("status").inner_text() == "one: 16", 5)
    it.run(3)
    assert it.text(3).strip() == "['one', 'one']", "on the way of a slider nothing was to be chosen"


def test_the_lines_of_a_program_are_switches_from_the_keyboard_and_by_click(notebook, lab, picture):
    it = notebook(HUNT)
    it.run(0)
    panel = it.output(0)
    status, height = panel.get_by_role("status"), panel.bounding_box()["height"]
    line = lambda name: panel.get_by_role("checkbox", name=re.compile(rf"^ *{name} "))  # noqa: E731
    struck = lambda: [it.get_attribute("name") for it in panel.get_by_role("checkbox", checked=False).all()]  # noqa: E731
    now = lambda words: until(lambda: status.inner_text().rstrip().endswith(f"{words}   now"), 20)  # noqa: E731
    assert panel.get_by_role("checkbox").count() == 8 and struck() == ["set_epoch"]
    tab_to(lab.page, line("group"))
    lab.page.keyboard.press("Space")
    now("2  ✗???  6 of 8 lines: without group, set_epoch")
    code = panel.get_by_text("init_process_group(", exact=False).first
    assert code.evaluate("it => getComputedStyle(it).textDecorationLine") == "line-through"
    lab.page.keyboard.press("Space")  # the focus is there still
    now("1  ✓✓✓✗  7 of 8 lines: without set_epoch")
    assert code.evaluate("it => getComputedStyle(it).textDecorationLine") == "none"
    panel.get_by_text("sampler.set_epoch(epoch)").click()
    now("3  ✓✓✓✓  8 of 8 lines: all")
    tab_to(lab.page, panel.get_by_role("combobox", name="SGD has the parameters of"))
    for _ in range(2):
        lab.page.keyboard.press("ArrowDown")
    now("4  ✓✗✓✓  8 of 8 lines: all; SGD has those of a copy of net")  # on the way through the list nothing is tried
    for name in ("numbers", "group", "DDP", "drop_last", "sampler", "set_epoch", "destroy"):
        line(name).click()  # faster than two ranks
    now("1 of 8 lines: only seed; SGD has those of a copy of net")
    assert panel.bounding_box()["height"] == height, "the page jumped"
    picture(panel)


def test_a_program_without_a_list_has_the_same_switches(notebook, lab):
    it = notebook("from ddplab.course.shortest import FIRST_TWO, hunt\nhunt(script=FIRST_TWO)")
    it.run(0)
    panel = it.output(0)
    status, height = panel.get_by_role("status"), panel.bounding_box()["height"]
    for name, words in (
        ("labels.to", "2  ✗???  4 of 5 lines: without labels.to   now"),  # its error takes two lines
        ("labels.to", "1  ✓✓✗✗  5 of 5 lines: all   now"),
        ("sampler", "3  ✓✓✓✓  4 of 5 lines: without sampler   now"),
        ("images.to", "4  ✓✓✓✓  3 of 5 lines: without sampler, images.to   now"),
    ):
        tab_to(lab.page, panel.get_by_role("checkbox", name=re.compile(rf"^ *{name} ")))
        lab.page.keyboard.press("Space")
        until(lambda words=words: status.inner_text().rstrip().endswith(words), 20)
    assert "none is shorter" in status.inner_text() and panel.bounding_box()["height"] == height


def test_lists_with_a_button_ask_when_it_is_pressed_and_not_before(notebook, lab):
    it = notebook(MOVING.replace("move(doubled, ", "move(doubled, press='ask', "), "print(lines)")
    it.run(0)
    panel = it.output(0)
    status, line = panel.get_by_role("status").last, panel.get_by_role("combobox", name="line")
    tab_to(lab.page, line)
    lab.page.keyboard.press("ArrowDown")
    tab_to(lab.page, panel.get_by_role("slider", name="rows"))
    lab.page.keyboard.press("ArrowRight")
    lab.page.wait_for_timeout(2000)
    assert status.inner_text() == "one: 2"
    tab_to(lab.page, panel.get_by_role("button", name="ask"))
    lab.page.keyboard.press("Space")
    until(lambda: status.inner_text() == "other: 4", 20)
    it.run(1)
    assert it.text(1).strip() == "['one', 'other']"


def test_the_waiting_room_from_the_keyboard_stays_as_high_and_keeps_its_focus(notebook, lab, picture):
    it = notebook(WAITING_ROOM)
    it.run(0)
    panel, press = it.output(0), lab.page.keyboard.press
    status, high = panel.get_by_role("status"), panel.bounding_box()["height"]

    def now(score):
        until(lambda: score in status.inner_text(), 20)
        assert panel.bounding_box()["height"] == high, "the page jumped"

    tab_to(lab.page, panel.get_by_role("button", name="ask rank 1 of job 1"))
    press("Space")
    now("1 asked")
    for n in range(1, 6):
        told = panel.get_by_role("combobox", name=f"job {n} is")
        assert told.evaluate("it => it === document.activeElement"), "the focus goes on"
        press("ArrowDown")  # rank 0, data
        lab.page.wait_for_timeout(200)
        assert told.count() == 1, "it is named by its button, not on the way through the list"
        press("Tab")
        press("Enter")
        until(lambda: told.count() == 0, 20)  # noqa: B023
        assert panel.bounding_box()["height"] == high, "the page jumped"
    now("room 1: you")
    picture(panel)
    press("Enter")  # the focus is on the way to the next room
    now("room 2, points: 0")


def test_a_film_from_the_keyboard(notebook, lab, picture):
    it = notebook(FILM)
    it.run(0)
    panel = it.output(0)
    status, blocks = panel.get_by_role("status"), panel.get_by_role("img")
    assert status.inner_text() == "The start" and blocks.get_attribute("aria-label") == "rank 0: 1; rank 1: 10"
    height = panel.bounding_box()["height"]
    second = panel.get_by_text("rank 1", exact=True).bounding_box()["y"] - blocks.bounding_box()["y"]
    assert second > 2.5 * 34, "two ranks lie as far apart as there is room for four"
    tab_to(lab.page, panel.get_by_role("button", name="Step"))
    lab.page.keyboard.press("Space")
    assert status.inner_text() == "Round 1 of 2: 0→1" and "sent 4 bytes" not in panel.inner_text()
    until(lambda: "sent 4 bytes" in panel.inner_text(), 5)  # when the block has come
    picture(panel)
    flies = "it => (it.click(), document.querySelector('svg[aria-label$=\"rank 1: 1\"]').lastChild.textContent)"
    assert panel.get_by_role("button", name="Step").evaluate(flies) == "1", "a block flies with its number"
    until(lambda: blocks.get_attribute("aria-label") == "rank 0: 1; rank 1: 2", 5)
    panel.get_by_role("button", name="Back").click()
    tab_to(lab.page, panel.get_by_role("slider", name="round"))
    lab.page.keyboard.press("ArrowLeft")
    assert status.inner_text() == "The start"
    tab_to(lab.page, panel.get_by_role("button", name="Play"))
    lab.page.keyboard.press("Enter")
    until(lambda: status.inner_text().startswith("Round 2 of 2") and not panel.get_by_text("Pause").count(), 10)
    tab_to(lab.page, panel.get_by_role("combobox", name="film"))
    lab.page.keyboard.press("ArrowDown")
    until(lambda: status.inner_text() == "The start", 20)
    assert panel.bounding_box()["height"] == height, "the page jumped"
    panel.get_by_role("combobox", name="film").select_option("of four")
    assert "rank 3" in panel.inner_text() and "bytes" not in panel.inner_text(), "of a collective nobody counts them"
    panel.get_by_role("combobox", name="film").select_option("one")
    lab.page.emulate_media(forced_colors="active", color_scheme="dark")
    try:
        ink = blocks.locator("text").last.evaluate("it => getComputedStyle(it).fill")
        picture(panel, "_forced")
    finally:
        lab.page.emulate_media(forced_colors="null", color_scheme="null")
    assert ink == "rgb(255, 255, 255)", "black on black where the system's own colours are dark"


def test_a_step_from_the_keyboard(notebook, lab, picture):
    """The model in the page says what the one in Python says, at every moment of the step."""
    it = notebook(STEP)
    it.run(0)
    panel = it.output(0)
    status, height = panel.get_by_role("status"), panel.bounding_box()["height"]
    assert played(lab.page, panel) == told(StepModel())
    panel.get_by_role("combobox", name="ranks", exact=True).select_option("2")
    assert panel.bounding_box()["height"] == height, "the page jumped"
    panel.get_by_role("combobox", name="ranks", exact=True).select_option("4")
    tab_to(lab.page, panel.get_by_role("slider", name="time"))
    for key in ("Home", "ArrowRight", "ArrowRight", "ArrowRight"):
        lab.page.keyboard.press(key)
    assert status.inner_text() == "12.0 of 56.5 ms: no bucket travels"
    assert "bucket 0 has left, and waits for rank 1" in panel.inner_text()
    picture(panel)
    for name, key in (("ranks", "ArrowDown"), ("bucket", "End"), ("overlap", "ArrowDown")):
        tab_to(lab.page, panel.get_by_role("combobox", name=name, exact=True))
        lab.page.keyboard.press(key)
    until(lambda: "with overlap on it would take" in panel.inner_text(), 20)
    assert played(lab.page, panel) == told(StepModel(ranks=8, bucket="default", overlap=False))
    picture(panel, "_of_8")
    assert panel.bounding_box()["height"] == height, "the page jumped"
    time_axis = panel.get_by_role("img").bounding_box()
    lab.page.mouse.move(time_axis["x"] + 500, time_axis["y"] + 60)
    lab.page.mouse.down()
    there = status.inner_text()
    lab.page.mouse.move(time_axis["x"] + 200, time_axis["y"] + 60)
    until(lambda: float(status.inner_text().split()[0]) < float(there.split()[0]), 20)
    lab.page.mouse.up()


def played(page, panel) -> tuple[dict[str, str], str]:
    """What the model in the page says, moment by moment: when each bucket begins to travel; how long the step takes."""
    step, status, trips = panel.get_by_role("button", name="Step"), panel.get_by_role("status"), {}
    tab_to(page, step)
    said = ""
    while said != (now := status.inner_text()):
        said, (at, of, what) = now, re.match(r"(\S+) of (\S+) ms: (.*)", now).groups()
        trips.setdefault(what, at)
        page.keyboard.press("Space")
    return {what: at for what, at in trips.items() if what.startswith("bucket")}, of


def told(step) -> tuple[dict[str, str], str]:
    trips = zip(step.buckets(), step.travels(), strict=True)
    words = {
        f"bucket {number} travels, of layer{'s' * (len(layers) > 1)} {', '.join(map(str, layers))}": f"{start:.1f}"
        for number, (layers, (start, _)) in enumerate(trips)
    }
    return words, f"{step.seconds():.1f}"


def test_an_incident_from_the_keyboard(notebook, lab, picture):
    """Ask a rank, name the line, patch it and run again, to the end; the page keeps its height and the focus.

    The board above has the night then.
    """
    it = notebook(PAGER)
    it.start(0)
    until(lambda: "train.py" in it.text(0), 20)  # nobody looks at an empty page meanwhile
    it.wait()
    assert re.search(r" \d+ s in all", it.text(0))
    panel = it.output(0)
    log, status, press = panel.get_by_role("log"), panel.get_by_role("status"), lab.page.keyboard.press
    assert "The job stands still" in log.inner_text()
    height = panel.bounding_box()["height"]
    script = panel.get_by_role("listbox")
    assert "Ask one probe first" in script.inner_text() and "import" not in script.inner_text()
    assert min(ratio for _, ratio in it.contrasts(0)) >= 4.5, "what is shut says how to open it, in grey on grey"
    tab_to(lab.page, panel.get_by_role("button", name="stack"))
    press("Space")
    until(lambda: "page.stack(0)" in log.inner_text() and "barrier (torch" in log.inner_text(), 10)
    assert panel.get_by_role("textbox", name="GPU-minutes left").input_value() == "116 of 120"
    tab_to(lab.page, script)
    assert script.evaluate("it => it.scrollWidth <= it.clientWidth"), "lines of the script are cut at 1280 pixels"
    press("End")
    press("ArrowUp")
    text = panel.get_by_role("textbox", name="what shall stand")
    assert text.input_value() == "        dist.barrier()"
    tab_to(lab.page, panel.get_by_role("button", name="accuse"))
    press("Enter")
    until(lambda: "Right, the rank and the line." in log.inner_text(), 10)
    press("Enter")
    until(lambda: log.inner_text().count("Right, the rank and the line.") == 2, 10), "what changes nothing is answered"
    near = panel.get_by_text("page.accuse(0, 67): Right, the rank and the line. (116 of 120 GPU-minutes left)")
    assert 0 < near.bounding_box()["y"] - panel.get_by_role("button", name="accuse").bounding_box()["y"] < 100
    picture(panel)
    tab_to(lab.page, text)
    press("Home"), press("Delete"), press("Delete"), press("Delete"), press("Delete")
    tab_to(lab.page, panel.get_by_role("button", name="patch"))
    press("Enter")
    until(lambda: "page.patch" in log.inner_text(), 10)
    tab_to(lab.page, panel.get_by_role("button", name="run again"))
    press("Enter")
    until(lambda: status.inner_text().startswith("Closed"), 30)
    until(lambda: "✓ 19 (104)" in panel.inner_text() and "closed: 1 of 19" in panel.inner_text(), 10)
    assert "a barrier for one" in log.inner_text() and panel.bounding_box()["height"] == height
    picture(panel, "_closed")


def test_a_board_that_is_live_from_the_keyboard(notebook, lab, picture):
    end = "server.diary.append({'time': 9, 'said': 'ended'})\nboard.end('✓ as calm')\nprint(board.take())"
    it = notebook(HOLDERS, end)
    it.run(0)
    panel = it.output(0)
    status, boxes = panel.get_by_role("status"), panel.get_by_role("img")
    assert status.first.inner_text().startswith("Moment 2 of 2: The meeting gives server1 node rank 0 of 1")
    assert boxes.get_attribute("aria-label").startswith("server1: agent node 0 of 1, the store, rank 0 runs")
    tab_to(lab.page, panel.get_by_role("slider", name="moment"))
    lab.page.keyboard.press("ArrowLeft")
    assert status.first.inner_text().startswith("Moment 1 of 2") and "rank 0" not in boxes.get_attribute("aria-label")
    lab.page.keyboard.press("ArrowRight")
    tab_to(lab.page, panel.get_by_role("button", name="kill a rank"))
    lab.page.keyboard.press("Enter")
    height = panel.bounding_box()["height"]
    picture(panel)
    it.run(1)
    assert "kill a rank" in it.text(1)
    until(lambda: status.last.inner_text() == "✓ as calm", 20)
    assert status.first.inner_text().startswith("Moment 3 of 3: server1's agent has ended")
    assert panel.get_by_role("button", name="kill a rank").is_disabled()
    assert panel.bounding_box()["height"] == height, "the page jumped when the verdict came"


def test_darts_fall_and_are_pooled(notebook, lab, picture):
    it = notebook(DARTS)
    it.run(0)
    panel = it.output(0)
    status = panel.get_by_role("status")
    tab_to(lab.page, panel.get_by_role("button", name="Step"))
    lab.page.keyboard.press("Space")
    assert status.inner_text() == "Each rank has thrown its first dart" and "of 1 within" in panel.inner_text()
    height = panel.bounding_box()["height"]
    tab_to(lab.page, panel.get_by_role("slider", name="darts"))
    lab.page.keyboard.press("End")
    until(lambda: "every rank holds" in status.inner_text(), 20)
    picture(panel)
    [hits] = re.findall(r"holds ([\d,]+)", status.inner_text())
    assert f"{hits} of 600 within" in panel.inner_text()  # what the ranks returned is what the page has counted
    lab.page.keyboard.press("Home")
    assert status.inner_text() == "No dart has fallen yet" and panel.bounding_box()["height"] == height


def test_the_dealer_from_the_keyboard(notebook, lab, picture):
    it = notebook(DEALER)
    it.run(0)
    panel = it.output(0)
    tab_to(lab.page, panel.get_by_role("slider", name="cards"))
    lab.page.keyboard.press("End")
    until(lambda: "in no epoch: none" in panel.inner_text(), 20)
    assert "epoch 0: dealt twice: none; to nobody: 2 (2, 6)" in panel.inner_text()
    height = panel.bounding_box()["height"]
    for name, said in (
        ("set_epoch", "in no epoch: 2 (2, 6)"),
        ("drop_last", "epoch 2: dealt twice: 2 (1, 4); to nobody: none"),
    ):
        tab_to(lab.page, panel.get_by_role("checkbox", name=name))
        lab.page.keyboard.press("Space")
        until(lambda said=said: said in panel.inner_text(), 20)
    picture(panel)
    tab_to(lab.page, panel.get_by_role("combobox", name="ranks"))
    lab.page.keyboard.press("ArrowUp")
    until(lambda: "rank 3" not in panel.inner_text(), 20)
    assert panel.bounding_box()["height"] == height, "the page jumped"


def test_a_dealer_that_offers_little_counts_what_the_model_reads_right(notebook, lab, picture):
    it = notebook(DEALER.replace("dealer()", DEAL))
    it.run(0)
    panel = it.output(0)
    assert not any(panel.get_by_label(name, exact=True).is_visible() for name in ("shuffle", "drop_last", "epochs"))
    tab_to(lab.page, panel.get_by_role("slider", name="cards"))
    lab.page.keyboard.press("End")
    until(lambda: "dealt twice: 2 (0, 1); to nobody: none; 8 of 12 right: 0.667" in panel.inner_text(), 20)
    picture(panel)
    tab_to(lab.page, panel.get_by_role("combobox", name="ranks"))
    lab.page.keyboard.press("Home")
    until(lambda: "8 of 10 right: 0.800" in panel.inner_text(), 20)


def test_the_theatre_from_the_keyboard(notebook, lab, picture):
    it = notebook(THEATRE)
    it.run(0)
    panel = it.output(0)
    status, said = panel.get_by_role("status"), panel.locator("pre")
    tab_to(lab.page, panel.get_by_role("slider", name="clock"))
    lab.page.keyboard.press("End")
    until(lambda: "rank 1 was killed by SIGKILL" in said.inner_text(), 20)
    ticks = panel.get_by_role("group", name="endings so far")
    assert ticks.inner_text().count("✓") == 1 and "✓ a rank has died" in ticks.inner_text()
    focused = "() => window.panel.content.activeCellIndex"
    said.focus()
    active = lab.page.evaluate(focused)
    lab.page.keyboard.press("ArrowDown")
    assert lab.page.evaluate(focused) == active and said.evaluate("it => it === document.activeElement")
    assert "✕ died" in panel.inner_text() and "✗ was stopped" in panel.inner_text()
    height = panel.bounding_box()["height"]
    tab_to(lab.page, panel.get_by_role("combobox", name="what it does"))
    lab.page.keyboard.press("Home")  # "does nothing else"
    tab_to(lab.page, panel.get_by_role("button", name="Run", exact=True))
    lab.page.keyboard.press("Space")
    until(lambda: "finished" in said.inner_text(), 20)
    assert status.inner_text().startswith("The end") and panel.inner_text().count("○ returned") == 4
    assert panel.bounding_box()["height"] == height, "the page jumped"
    assert panel.get_by_role("img").evaluate(OVER_EACH_OTHER) == [], "words over each other"
    picture(panel)


def tab_to(page, place) -> None:
    """Go to a place in the page by pressing Tab."""
    page.keyboard.press("Escape")
    for _ in range(40):
        page.keyboard.press("Tab")
        if place.evaluate("it => it === document.activeElement"):
            return
    raise AssertionError(f"forty times Tab do not lead to {place}")

"""`python -m ddplab grade` on what learners hand in, hostile notebooks included; each of them really runs."""

import builtins
import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import nbformat
import psutil
import pytest
import torch
import yaml
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

import ddplab
from ddplab import __main__ as cli
from ddplab import grading
from ddplab.grading import Ended, Report, Row, judging
from ddplab.grading.reports import junit, markdown, status
from ddplab.grading.sheets import course, packed, reaches, sheet_of
from ddplab.vgpu import virtual_gpus

ROOT = Path(__file__).parent.parent
BYTES, PLAN, TWO, RANKS = (
    f"1_one_device/{name}.ipynb"
    for name in (
        "1.3_where_the_memory_goes",
        "1.5_noise_and_batches",
        "1.4_batch_size_and_convergence",
        "1.1_start_here",
    )
)
RIGHT = 'def bytes_to_train(n, optimizer):\n    return n * 4 * {"sgd": 2, "momentum": 3, "adam": 4}[optimizer]'


def notebook(name, folder="exercises"):
    return nbformat.read(ROOT / folder / name, as_version=4)


def code(book):
    return [cell for cell in book.cells if cell.cell_type == "code"]


def answered(source, name=BYTES, n=0):
    """The course's notebook with `source` as its nth answer."""
    book = notebook(name)
    [cell for cell in code(book) if "your code here" in cell.source][n].source = source
    return book


def ours(name, n=0):
    """Our answer: the nth of a notebook."""
    return [cell.source for cell in code(notebook(name, "solutions")) if "BEGIN SOLUTION" in cell.source][n]


# ------------------------------------------------------------------ what is taken from the learner


def runs(book):
    """What would be run, in order: the number of a learner's cell, 0 for one of the course's, or the id of a check."""
    return [step.exercises[0] if step.call else step.n or 0 for step in sheet_of(book.cells).steps]


@pytest.mark.parametrize("name", sorted(course()))
def test_each_notebook_of_the_course_is_known_by_what_it_holds_and_loses_nothing(name):
    for folder in ("exercises", "solutions"):
        sheet = sheet_of(notebook(name, folder).cells)
        assert sheet.name == name and sheet.missing == [] and sheet.changed == 0
        assert [step for step in sheet.steps if step.call], "it checks something"
        assert reaches(sheet) == []
        assert all(step.blank or step.exercises[0] == "5.1.1" for step in sheet.steps if step.call)


def test_what_the_package_holds_is_what_the_exercises_are_and_no_solution():
    held = (ROOT / "ddplab/grading/exercises.json").read_text()
    assert held == packed(ROOT / "exercises") and "BEGIN SOLUTION" not in held


def test_cells_may_be_added_moved_split_and_lose_their_ids():
    book = answered(RIGHT)
    assert runs(book) == [0, 2, "1.3.1", 0]
    for cell in book.cells:
        cell.id = f"x{cell.id}"  # another editor
    assert runs(book) == [0, 2, "1.3.1", 0]
    book = answered("def bytes_to_train(n, optimizer):\n    return n * size(optimizer)")
    book.cells.insert(3, new_code_cell("def size(optimizer): ..."))
    book.cells.append(new_code_cell("mine = 1"))
    assert runs(book) == [0, 2, 3, "1.3.1", 0, 6], "what is added runs where it stands"
    book = notebook(BYTES)
    book.cells[3] = new_code_cell(RIGHT)  # written anew, the blank deleted
    assert runs(book) == [0, 2, "1.3.1", 0]
    book = notebook(BYTES)
    book.cells.insert(5, new_code_cell(RIGHT))  # below the check, which was then run again
    assert runs(book) == [0, 2, 4, "1.3.1", 0]
    book = answered(RIGHT)
    book.cells.reverse()
    assert runs(book) == [0, 3, "1.3.1", 0], "the course's order"


def test_the_courses_own_cells_are_taken_from_the_course_and_a_change_is_said():
    book = answered(RIGHT)
    code(book)[0].source = "def check(*_):\n    print('correct')"
    code(book)[2].source = 'check("1.3.1", lambda n, o: 16 * n)'
    sheet = sheet_of(book.cells)
    assert [step.source or step.call for step in sheet.steps][:3] == [
        "from ddplab import check",
        RIGHT,
        "check('1.3.1', bytes_to_train)",
    ]
    assert sheet.changed == 2


def test_a_cell_that_gets_at_the_judge_is_pointed_out():
    book = answered("import gc, sys\ndef bytes_to_train(n, optimizer):\n    net.eval()\n    eval(sys.modules)")
    assert reaches(sheet_of(book.cells)) == [
        "code cell 2 uses eval, gc, sys.modules, for which no exercise asks: look at it"
    ]


def test_an_exercise_that_a_notebook_does_not_have_is_missing():
    book = new_notebook(cells=[new_markdown_cell("## 1.3.1"), new_code_cell("def b(): ..."), new_code_cell("check(b)")])
    assert sheet_of(book.cells).missing == ["1.3.1"]
    assert sheet_of([new_code_cell("a = 1")]).name == ""


# ------------------------------------------------------------------ what learners hand in, and others

REACH = """
import ctypes, os, pathlib, signal, sys
def attempt(name, fn, *args):
    try:
        fn(*args)
        reached.append(name)
    except OSError:
        pass
reached, here = [], pathlib.Path.cwd()
attempt("write", pathlib.Path({outside!r}, "made").write_text, "mine")
attempt("overwrite", pathlib.Path({outside!r}, "other.ipynb").write_text, "mine")
attempt("remove", os.remove, {outside!r} + "/other.ipynb")
attempt("rename", os.rename, {outside!r} + "/other.ipynb", here / "other")
attempt("link", os.link, {outside!r} + "/other.ipynb", here / "hard")
attempt("folder", os.mkdir, {outside!r} + "/folder")
os.symlink({outside!r}, here / "soft")
attempt("through a link", (here / "soft" / "made").write_text, "mine")
attempt("read another's", pathlib.Path({outside!r}, "other.ipynb").read_text)
attempt("read the solutions", pathlib.Path({root!r}, "solutions", "README.md").read_text)
attempt("list", os.listdir, {outside!r})
attempt("another's shared memory", os.stat, {shared!r})
pathlib.Path({shared!r}).parent.joinpath("mine").write_text("shared with nobody")
attempt("package", open, {root!r} + "/ddplab/checks/lesson_1_3.py", "a")
attempt("environment", pathlib.Path(f"/proc/{{os.getppid()}}/environ").read_bytes)
attempt("memory", open, f"/proc/{{os.getppid()}}/mem", "r+b")
attempt("signal", os.kill, {grader}, 0)
if "SECRET_TOKEN" in os.environ: reached.append("token")
assert here.stat().st_mode & 0o777 == 0o700 and os.environ["HOME"] == os.environ["TMPDIR"] == str(here)
import subprocess
done = subprocess.run(["sh", "-c", "echo mine > {outside}/made"], stderr=subprocess.DEVNULL)
if done.returncode == 0: reached.append("a program that it starts")
pathlib.Path("mine").write_text("its own folder is its own")
raise RuntimeError(f"reached {{reached}}")
"""
SHARED = f"/dev/shm/ddplab-test-{os.getpid()}"
BEHIND = """
import os, subprocess, sys
slow = [sys.executable, "-c", "import os, time; os.setsid(); time.sleep(1000)"]
pid = subprocess.Popen(slow, start_new_session=True).pid
raise RuntimeError(f"left {pid}")
"""
PATCHED = """
import ddplab.checks, ddplab.checks.lesson_1_3 as lesson
def yes(*_, **__):
    return ddplab.checks.Verdict("1.3.1", "", "correct")
ddplab.check = ddplab.checks.check = ddplab.checks.judge = check = yes
ddplab.checks._ask = lambda *_: None
ddplab.checks.EXERCISES["1.3.1"].judge = lambda *_: None
ddplab.checks.NotYet = ddplab.checks.NotFilledIn = Warning
def bytes_to_train(n, optimizer): return 0
"""
DEEPER = """
import importlib, types
real = importlib.import_module
def fake(name, *_):
    if name != "ddplab.checks": return real(name)
    return types.SimpleNamespace(CORRECT="correct", judge=lambda *_: types.SimpleNamespace(
        state="correct", message="", hint=""))
importlib.import_module = fake
def bytes_to_train(n, optimizer): return 0
"""
FORGED = """
import json, os, socket, stat
for number in range(3, 64):
    try:
        if stat.S_ISSOCK(os.fstat(number).st_mode):
            os.write(number, json.dumps({"nonce": "0" * 32, "state": "correct", "error": ""}).encode() + b"\\n")
    except OSError:
        pass
def bytes_to_train(n, optimizer): return 0
"""
ENDLESS = "import time\nwhile True:\n    time.sleep(1)"
KILLED = "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)"
HUGE = "while True:\n    print('x' * 100_000)"
STORED = "open('much', 'wb').truncate(250 << 20)\n" + ENDLESS
OLD = [
    new_markdown_cell("## 1.3.1 · What fits"),
    new_code_cell("def size(n):\n    return 16 * n"),
    new_code_cell('check("1.3.1", size)'),
]


def handed_in(folder, outside):
    """Write the notebooks of a class into a folder; return what each is to get, and words of its message or notes."""
    edited = notebook(BYTES)
    code(edited)[1].outputs = code(edited)[2].outputs = [new_output("stream", text="exercise 1.3.1: correct")]
    code(edited)[2].source = 'print("correct")'
    mixed = answered(ours(TWO, 1).replace("### BEGIN SOLUTION", "### BEGIN SOLUTION\n    return data"), TWO, 1)
    code(mixed)[1].source = ours(TWO)
    endless = answered(ours(TWO, 1), TWO, 1)
    code(endless)[1].source = ENDLESS
    words = dict(outside=str(outside), root=str(ROOT), grader=os.getpid(), shared=SHARED)
    books = {
        "a_blank": (notebook(BYTES), "not started", ""),
        "b_solved, renamed": (notebook(RANKS, "solutions"), "correct correct correct", ""),
        "c_mixed": (mixed, "correct not yet", "hint"),
        "d_syntax": (answered("def bytes_to_train(n:\n    pass"), "did not run", "raised SyntaxError"),
        "e_endless": (endless, "did not run correct", "code cell 2 (`import time`) did not end within 5 s"),
        "f_killed": (answered(KILLED), "did not run", "ended the kernel"),
        "g_huge": (answered(HUGE), "did not run", "code cell 2 (`while True:`) printed more than 20,000,000 bytes"),
        "i_old": (new_notebook(cells=OLD), "out of date", "take the course's own"),
        "j_edited": (edited, "not started", "1 of the course's own cells differ here"),
        "k_patched": (answered(PATCHED), "not yet", ""),
        "l_deeper": (answered(DEEPER), "not believed", "the unwritten exercise passes as well"),
        "m_forged": (answered(FORGED), "not believed", "answered by something that is not the check"),
        "n_reach": (answered(RIGHT + REACH.format(**words)), "correct", "raised RuntimeError: reached []"),
        "o_behind": (answered(RIGHT + BEHIND), "correct", "raised RuntimeError: left "),
        "p_memory": (answered(RIGHT + "\nbytearray(9 << 30)"), "correct", "raised MemoryError"),
        "t_stored": (answered(STORED), "did not run", "stored more than 200,000,000 bytes"),
        "q_shadow": (answered(RIGHT + "\nimport mine"), "correct", "No module named 'mine'"),
    }
    for name, (book, _, _) in books.items():
        nbformat.write(book, folder / f"{name}.ipynb")
    (folder / "h_no_json.ipynb").write_text("<<<<<<< HEAD")
    (folder / "r_link.ipynb").symlink_to(outside / "other.ipynb")
    os.mkfifo(folder / "s_pipe.ipynb")
    for module in ("torch", "ddplab", "mine", "sitecustomize", "nbformat"):
        (folder / f"{module}.py").write_text("raise SystemExit('this is not the real one')")
    expected = {name: (states, words) for name, (_, states, words) in books.items()}
    expected["h_no_json"] = "not a notebook", "it cannot be read as JSON: Expecting value: line 1"
    expected["r_link"] = "not a notebook", "it is a link to a file elsewhere"
    expected["s_pipe"] = "not a notebook", "it is no file"
    return expected


def test_a_class_is_graded_each_in_its_time_and_none_is_fooled_or_reaches_out(tmp_path):
    folder, outside = tmp_path / "class", tmp_path / "outside"
    folder.mkdir()
    outside.mkdir()
    (outside / "other.ipynb").write_text("another learner's")
    expected = handed_in(folder, outside)
    before = {path: path.lstat().st_mtime_ns for path in folder.iterdir()}
    command = [sys.executable, "-P", "-m", "ddplab", "grade", ".", "--cell-seconds", "5"]
    command += ["--junit", str(tmp_path / "report.xml"), "--markdown", str(tmp_path / "report.md")]
    env = {**os.environ, "SECRET_TOKEN": "a token"}
    Path(SHARED).write_text("another's")
    try:
        done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
    finally:
        os.remove(SHARED)
    assert done.returncode == 1 and done.stderr == "", done.stderr
    parts = dict(part.split(".ipynb\n", 1) for part in done.stdout.split("\n\n") if ".ipynb\n" in part)
    unconfined = "NOT CONFINED" in done.stdout or "Confined, but for" in done.stdout
    for name, (states, words) in expected.items():
        told = re.findall(r"^  [✓✗·?!] [^:]*: ([\w ]+)", parts[name], re.MULTILINE)
        assert " ".join(told) == states, parts[name]
        assert words in parts[name] or (unconfined and name == "n_reach"), parts[name]
    assert {path: path.lstat().st_mtime_ns for path in folder.iterdir()} == before, "nothing is written beside them"
    left = int(parts["o_behind"].partition("left ")[2].split()[0])
    assert not psutil.pid_exists(left)
    suites = ElementTree.parse(tmp_path / "report.xml").getroot()
    assert len(suites.findall(".//testcase")) > len(expected)
    assert (tmp_path / "report.md").read_text().count("\n| ") == len(
        [*suites.iter("testcase"), *suites.iter("testsuite")]
    ) + 1
    if unconfined:
        pytest.skip("this system cannot confine, or not wholly: what a notebook reaches was not tried")
    assert [path.name for path in outside.iterdir()] == ["other.ipynb"]
    assert (outside / "other.ipynb").read_text() == "another learner's"
    assert not os.path.exists("/dev/shm/mine")


class Stub:
    """A judge that finds everything correct, without a process."""

    def __init__(self, not_confined="", fails=""):
        self.not_confined, self.fails = not_confined, fails

    def begin(self):
        if self.fails:
            raise Ended(self.fails)
        return self.not_confined

    def ask(self, step, seconds):
        return {"error": ""} if not step.call else {"state": "correct", "message": "", "hint": ""}

    def end(self): ...

    close = end


def graded_by(stub, monkeypatch, capsys, tmp_path):
    nbformat.write(answered(RIGHT), tmp_path / "a.ipynb")
    monkeypatch.setattr(grading, "Judge", lambda: stub)
    return cli.main(["grade", str(tmp_path)]), capsys.readouterr().out


def test_checks_that_change_while_they_are_used_are_not_believed(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(grading, "_digest", iter(["before", "after"]).__next__)
    status, said = graded_by(Stub(), monkeypatch, capsys, tmp_path)
    assert status == 1 and "not believed" in said and "THE CHECKS WERE CHANGED" in said


def test_a_report_says_with_which_checks_and_that_nothing_was_confined(monkeypatch, capsys, tmp_path):
    status, said = graded_by(Stub("there is no Landlock"), monkeypatch, capsys, tmp_path)
    assert status == 0 and f"in {ROOT / 'ddplab'}" in said and "\n1 of the course's " in said
    assert "NOT CONFINED, a notebook could read and write what you can: there is no Landlock." in said
    said = graded_by(Stub("but for /dev/shm, which is shared"), monkeypatch, capsys, tmp_path)[1]
    assert "Confined, but for /dev/shm, which is shared." in said and "NOT CONFINED" not in said


def test_a_function_that_checks_rely_on_and_that_is_replaced_is_noticed(monkeypatch):
    before = judging._functions()
    with virtual_gpus(1):  # the course's own do not count
        assert judging._replaced(before) is None
    for owner, name in ((torch, "allclose"), (builtins, "abs"), (ddplab, "launch"), (torch.Tensor, "__eq__")):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, lambda *args, **kwargs: True)
            found = judging._replaced(before)
        assert found["state"] == judging.NOT_BELIEVED and f".{name} is not what it was" in found["message"]
    assert judging._replaced(before) is None


def test_a_notebook_that_was_emptied_lacks_its_exercises_and_what_cannot_be_written_is_said_first(tmp_path, capsys):
    empty = tmp_path / "1.3_where_the_memory_goes.ipynb"
    nbformat.write(new_notebook(), empty)
    assert (
        cli.main(["grade", str(tmp_path)]) == 1
        and "1.3.1 What fits on a device: out of date" in capsys.readouterr().out
    )
    assert cli.main(["grade", str(tmp_path), "--junit", str(tmp_path / "none" / "a.xml")]) == 2
    assert "a.xml cannot be written" in capsys.readouterr().err
    assert cli.main(["grade", str(tmp_path / "none")]) == 2 and "there is no" in capsys.readouterr().err


def test_a_notebook_whose_process_does_not_begin_did_not_run(monkeypatch, capsys, tmp_path):
    status, said = graded_by(Stub(fails="ended the kernel"), monkeypatch, capsys, tmp_path)
    assert status == 1 and "1.3.1 What fits on a device: did not run: there was no process to run it in" in said


# ------------------------------------------------------------------ the report

NASTY = Row("a\x07.ipynb", "1.3.1", "What fits", "not yet", "it says | `<b>` @all [x](y)", "a *hint*", 1.5)
REPORTS = [
    Report([NASTY, Row("a\x07.ipynb", "1.3.2", "", "not started")], {"a": ["code cell 2 raised <script>"]}),
    Report([Row("b.ipynb", "1.5.1", "Plan", "correct"), Row("b.ipynb", "1.5.2", "", "did not run", "it ended")]),
]
ROWS = [row for report in REPORTS for row in report.rows]


def test_words_of_a_learner_stay_words_in_markdown_and_in_xml():
    table = markdown(REPORTS, "about")
    assert "**1 correct, 1 not yet, 1 not started, 1 did not run**" in table
    [line] = [line for line in table.splitlines() if "What fits" in line]
    assert line.count("|") - line.count("\\|") == 5 and "<b>" not in table and "@all" not in table
    assert "<script>" not in table and r"\[x\](y)" in table
    cases = ElementTree.fromstring(junit(REPORTS, "complete")).findall(".//testcase")
    assert cases[0].find("failure").get("message") == "not yet: it says | `<b>` @all [x](y)"
    assert cases[0].find("failure").text == "hint: a *hint*" and cases[0].get("time") == "1.500"


def test_each_policy_says_what_fails():
    def kinds(policy):
        suites = ElementTree.fromstring(junit(REPORTS, policy))
        return [(*(it.tag for it in case), "passed")[0] for case in suites.findall(".//testcase")]

    assert kinds("complete") == ["failure", "failure", "passed", "error"]
    assert kinds("started") == ["failure", "skipped", "passed", "error"]
    assert kinds("report") == ["skipped", "skipped", "passed", "skipped"]
    states = {"correct": 7, "cannot check here": 7, "not started": 6, "not yet": 4, "did not run": 4}
    states |= dict.fromkeys(("out of date", "not a notebook", "not believed"), 0)
    for state, passes in states.items():
        rows = [Row("a", "1.1.1", "", "correct"), Row("a", "1.1.2", "", state)]
        found = [status(rows, policy) for policy in ("complete", "started", "report")]
        assert found == [0 if passes & bit else 1 for bit in (1, 2, 4)], state
    assert status([], "report") == 1, "nothing was graded"


def test_nothing_to_grade_is_an_error(tmp_path, capsys):
    (tmp_path / ".ipynb_checkpoints").mkdir()
    (tmp_path / ".ipynb_checkpoints" / "a-checkpoint.ipynb").write_text("{}")
    assert cli.main(["grade", str(tmp_path)]) == 2
    assert cli.main(["check", str(tmp_path / "missing.ipynb")]) == 2
    assert "no notebooks found" in capsys.readouterr().err


def test_the_workflow_template_runs_the_documented_command_away_from_what_lies_beside_it():
    workflow = yaml.safe_load((ROOT / "workshop" / "github-exercises.yml").read_text())
    words = workflow["jobs"]["grade"]["steps"][-1]["run"].split()
    assert words[:6] == "python -I -m ddplab grade exercises".split()
    assert {"--junit", "--markdown"} <= set(words)
    with pytest.raises(SystemExit):
        cli.main(["grade", "--help"])

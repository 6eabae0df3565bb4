"""`python -m ddplab check`, a learner's own CI, on small notebooks that really run."""

from pathlib import Path

import nbformat
import pytest
import yaml
from nbformat.v4 import new_code_cell, new_notebook

from ddplab import __main__ as cli

ROOT = Path(__file__).parent.parent
SETUP = "import torch.distributed as dist\n\nfrom ddplab import check"
RIGHT = 'def greet():\n    return f"rank {dist.get_rank()} of {dist.get_world_size()}"'
BLANK = 'def count(n):\n    raise NotImplementedError("your code here")'
CHECK = 'check("1.1.1", greet)'
NAME = "  1.1.1 Every rank says who it is"


@pytest.fixture
def learners_ci(tmp_path, capsys):
    """Return a function that checks a notebook of the given cells: its exit status, and what it said below the name."""

    def check(*sources, timeout=60):
        path = tmp_path / "a.ipynb"
        nbformat.write(new_notebook(cells=[new_code_cell(source) for source in sources]), path)
        before = path.read_bytes()
        status = cli.check([tmp_path], timeout)
        assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]
        return status, capsys.readouterr().out.split("a.ipynb\n", 1)[1]

    return check


def test_correct_exits_0(learners_ci):
    status, report = learners_ci(SETUP, RIGHT, CHECK, "mine = 1 / 0")
    assert status == 0
    assert report == (
        f"{NAME}: correct\n  note: code cell 4 (`mine = 1 / 0`) raised ZeroDivisionError: division by zero\n1 correct\n"
    )


def test_wrong_and_blank_are_told_apart(learners_ci):
    wrong = RIGHT.replace("{dist.get_world_size()}", "2")
    status, report = learners_ci(SETUP, wrong, CHECK, BLANK, 'check("1.1.2", count)')
    assert status == 1
    assert f"{NAME}: not yet: on three ranks, rank 0 said 'rank 0 of 2'" in report
    assert "      hint: Ask torch.distributed for it" in report
    assert "  1.1.2 A row a step: not started\n" in report and report.endswith("\n1 not yet, 1 not started\n")


def test_a_check_that_was_not_reached_names_the_cell_that_died(learners_ci):
    status, report = learners_ci("a = 1", "def greet(:\n    pass", "greet\n" + CHECK, "# check('1.1.2', x)")
    assert status == 1
    assert report == (
        f"{NAME}: did not run: code cell 2 (`def greet(:`) raised SyntaxError: invalid syntax (line 1); "
        "code cell 3 (`greet`) raised NameError: name 'greet' is not defined\n"
        "1 did not run\n"
    )


def test_every_check_after_an_endless_cell_names_it(learners_ci):
    status, report = learners_ci("while True:\n    pass", CHECK, "check('1.1.2', count)", timeout=2)
    assert status == 1
    assert report == (
        f"{NAME}: did not run: code cell 1 (`while True:`) did not end within 2 s\n"
        "  1.1.2 A row a step: did not run: code cell 1 (`while True:`) did not end within 2 s\n"
        "2 did not run\n"
    )


def test_a_check_that_nothing_calls_is_said_to(learners_ci):
    status, report = learners_ci(f"if False:\n    {CHECK}")
    assert (status, report) == (1, f"{NAME}: did not run: nothing called its check\n1 did not run\n")


def test_a_file_without_a_notebook_is_not_fine_and_the_next_one_is_read(tmp_path, capsys):
    (tmp_path / "a.ipynb").write_text("<<<<<<< HEAD")
    (tmp_path / "b.ipynb").write_text("[]")
    nbformat.write(new_notebook(), tmp_path / "c.ipynb")
    assert cli.check([tmp_path]) == 1
    a, not_json, b, no_notebook, *rest = capsys.readouterr().out.splitlines()
    assert (a, b) == (str(tmp_path / "a.ipynb"), str(tmp_path / "b.ipynb"))
    assert not_json.startswith("  a.ipynb: not a notebook: it cannot be read as JSON: Expecting value: line 1")
    assert no_notebook.startswith("  b.ipynb: not a notebook: it is JSON, but nbformat finds no notebook in it")
    assert rest == [str(tmp_path / "c.ipynb"), "  no exercises", "2 not a notebook"]


def test_nothing_to_check_is_an_error(tmp_path, capsys):
    assert cli.main(["check", str(tmp_path)]) == 2
    assert cli.main(["check", str(tmp_path / "missing.ipynb")]) == 2
    assert "no notebooks found" in capsys.readouterr().err


def test_the_template_for_a_pull_request_rehearses_strictly_what_a_line_of_it_names():
    workflow = yaml.safe_load((ROOT / "workshop" / "github-rehearsal.yml").read_text())
    words = workflow["jobs"]["rehearse"]["steps"][-1]["run"].split()
    ours, rest = cli.rehearsal.parsed(words[4:])
    assert words[:4] == "python -m ddplab rehearse".split() and ours["strict"] and ours["gpus"] == 2
    assert rest == "--nproc-per-node=2 train.py --steps 2".split()


def test_the_workflow_template_runs_the_documented_command():
    workflow = yaml.safe_load((ROOT / "workshop" / "github-exercises.yml").read_text())
    steps = workflow["jobs"]["check"]["steps"]
    assert steps[-1]["run"] == "python -m ddplab check exercises"

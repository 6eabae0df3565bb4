"""What a learner has written at a turn and is right is what the notebook goes on with, in a real IPython shell."""

import pytest
from IPython.core.interactiveshell import InteractiveShell

from ddplab.checks import kept
from ddplab.checks.kept import defined_alone

OURS = 'def mean(x):\n    return "ours"'
THEIRS, OTHER = OURS.replace("ours", "theirs"), OURS.replace("ours", "another")


@pytest.fixture
def cell(monkeypatch):
    """Run a cell, and return what `mean` then gives."""
    monkeypatch.setattr(kept, "KEPT", {})
    shell = InteractiveShell.instance()
    shell.user_ns["judged"] = lambda right: kept.keep(shell.user_ns["mean"], right)

    def run(source):
        shell.run_cell(source).raise_error()
        return shell.user_ns["mean"](0)

    yield run
    InteractiveShell.clear_instance()


def test_a_right_answer_stays_and_a_cell_says_so(cell, capsys):
    assert cell(f"{THEIRS}\njudged(True)") == "theirs"
    assert cell(OURS) == "theirs"
    assert "Your mean is right" in capsys.readouterr().out
    assert cell(f"{OTHER}\njudged(True)") == "another" and cell(OURS) == "another"


def test_an_answer_that_is_not_right_gives_way_also_where_one_was(cell):
    assert cell(f"{THEIRS}\njudged(False)") == "theirs" and cell(OURS) == "ours"
    cell(f"{THEIRS}\njudged(True)")
    assert cell(f"{OTHER}\njudged(False)") == "another" and cell(OURS) == "ours"


def test_a_cell_that_does_more_than_define_it_is_left_alone(cell):
    cell(f"{THEIRS}\njudged(True)")
    assert cell(f"{OURS}\nx = 1") == "ours"


@pytest.mark.parametrize(
    ("source", "name"),
    [("def one(): ...", "one"), ("class Two: ...", "Two"), ("x = 1", None), ("%%torchrun\n1", None), ("", None)],
)
def test_the_name_that_a_cell_alone_defines(source, name):
    assert defined_alone(source) == name

"""Every stored notebook was run, in order, and holds nothing of the machine that ran it."""

from pathlib import Path

import nbformat
import pytest
from notebook_guards import problems, text_of

ROOT = Path(__file__).parent.parent
FOLDERS = ("lessons", "solutions", "exercises")
NOTEBOOKS = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.ipynb"))]


def kind(path: Path) -> str:
    """ "lessons", "solutions" or "exercises"."""
    return path.relative_to(ROOT).parts[0]


@pytest.mark.parametrize("folder", FOLDERS)
def test_there_are_notebooks_to_guard(folder):
    assert any(kind(path) == folder for path in NOTEBOOKS)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: f"{kind(path)}/{path.stem}")
def test_notebook_is_clean(path):
    found = problems(nbformat.read(path, as_version=4), lesson=kind(path) == "lessons")
    assert not found, "\n".join(found)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: f"{kind(path)}/{path.stem}")
def test_title_says_what_it_is(path):
    title = nbformat.read(path, as_version=4).cells[0].source
    number = path.stem.split("_")[0]
    start = {
        "lessons": f"# {number} · ",
        "solutions": f"# 📃 Solutions {number}",
        "exercises": f"# 📝 Exercises {number}",
    }
    assert title.startswith(f"# Part {number[0]} · " if number.endswith(".0") else start[kind(path)])


@pytest.mark.parametrize("path", sorted((ROOT / "solutions").rglob("*.ipynb")), ids=lambda path: path.stem)
def test_every_solution_is_judged_correct(path):
    states = verdicts(path)
    assert states, "a solution checks nothing"
    bad = [line for line in states if not line.endswith(": correct") and ": cannot check here: " not in line]
    assert not bad, "\n".join(bad)


@pytest.mark.parametrize("path", sorted((ROOT / "exercises").rglob("*.ipynb")), ids=lambda path: path.stem)
def test_every_exercise_is_a_blank(path):
    bad = [line for line in verdicts(path) if not line.endswith(": not filled in yet")]
    assert not bad, "\n".join(bad)


def test_every_lesson_with_checks_has_a_solution_and_an_exercise():
    for path in sorted((ROOT / "ddplab" / "checks").glob("lesson_*.py")):
        number = path.stem.removeprefix("lesson_").replace("_", ".")
        if f'"{number}.1"' not in path.read_text():
            continue  # its checks are of turns in the lesson
        for folder in ("solutions", "exercises"):
            assert list((ROOT / folder).glob(f"*/{number}_*.ipynb")), f"{folder}/ has nothing for lesson {number}"


def verdicts(path: Path) -> list[str]:
    """The verdicts that a notebook's stored outputs show."""
    outputs = [o for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code" for o in cell.outputs]
    return [line for output in outputs for line in text_of(output).splitlines() if line.startswith("exercise ")]

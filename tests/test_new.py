"""What `make new-lesson` and `make new-exercise` lay out is sound before anybody has written in it."""

import runpy

import nbformat
import pytest
from make_exercises import exercise_from
from new import lay_out
from notebook_guards import problems
from run_notebooks import METADATA, execute, read

from ddplab import checks


@pytest.fixture
def exercise(tmp_path, monkeypatch):
    """A laid-out exercise: its solution, and the answers that test its check, which is registered."""
    monkeypatch.setattr(checks, "EXERCISES", dict(checks.EXERCISES))
    solution, check, answers = lay_out("exercise", "9_last/9.8_new_name", tmp_path)
    runpy.run_path(str(check))
    return solution, runpy.run_path(str(answers))["ANSWERS"]["9.8.1"]


def faults(path, lesson=False):
    """What the guards find wrong, but for what comes of not having been written to the end and run."""
    found = problems(nbformat.read(path, as_version=4), lesson)
    return [fault for fault in found if "not run once each" not in fault]


def test_a_lesson_is_laid_out_and_its_cells_run(tmp_path):
    [path] = lay_out("lesson", "9_last/9.8_new_name", tmp_path)
    assert path == tmp_path / "lessons" / "9_last" / "9.8_new_name.ipynb" and faults(path, lesson=True) == []
    lesson = nbformat.read(path, as_version=4)
    assert lesson.cells[0].source.startswith("# 9.8 · New name\n\n**Time:**") and lesson.metadata == METADATA
    parts = "## A question", "predict(", "## Your turn", "## Take-away", "**Exercises:**", "**Next:**"
    assert all(part in str(lesson) for part in parts)
    execute(lesson, tmp_path)


def test_the_generator_takes_a_laid_out_solution(exercise):
    solution, _ = exercise
    assert faults(solution) == []
    made = exercise_from(read(solution))
    assert made.cells[0].source.startswith("# 📝 Exercises 9.8 · New name")
    assert made.cells[3].source == 'def double(number):\n    raise NotImplementedError("your code here")'


def test_the_laid_out_check_judges_its_own_answers(exercise):
    _, answers = exercise
    assert checks.judge("9.8.1", answers["correct"]).state == checks.CORRECT
    assert checks.judge("9.8.1", answers["blank"]).state == checks.BLANK
    assert len(answers["wrong"]) >= 3
    for answer, words in answers["wrong"]:
        assert all(word in checks.judge("9.8.1", answer).message for word in words)


@pytest.mark.parametrize("kind", ["lesson", "exercise"])
def test_nothing_is_overwritten(tmp_path, kind):
    written = lay_out(kind, "9_last/9.8_new_name", tmp_path)
    written[-1].write_text("mine")
    for path in written[:-1]:
        path.unlink()
    with pytest.raises(FileExistsError, match=written[-1].name):
        lay_out(kind, "9_last/9.8_new_name", tmp_path)
    assert written[-1].read_text() == "mine" and not any(path.exists() for path in written[:-1])


@pytest.mark.parametrize("name", ["", "9.8_a", "9_last/a", "9_last/8.8_a", "9_last/9.8", "../9.8_a", "9_last/9.8_a b"])
def test_a_name_has_its_number_first(tmp_path, name):
    with pytest.raises(ValueError, match="a name is like 4_ddp"):
        lay_out("lesson", name, tmp_path)

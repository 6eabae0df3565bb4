"""What lesson 9.5 says of its game: what is red at first, which patch turns what, and in how few lines it is won."""

import importlib
import sys
from pathlib import Path

import cloudpickle
import nbformat
import pytest

from ddplab import RankError
from ddplab.checks import judge
from ddplab.course.guide import _lines, patched, review, reviewed, the_guide

sys.path.append(str(Path(__file__).parents[1] / "checks"))
cases = importlib.import_module("answers.lesson_9_5")
cloudpickle.register_pickle_by_value(cases)
LESSON = Path(__file__).parents[2] / "lessons/9_folklore/9.5_a_guide.ipynb"
OURS = 12  # as the lesson says
FEW = 8


@pytest.fixture(scope="module")
def at_first():
    return review(the_guide)


def test_two_lights_are_green_at_first_and_seven_red(at_first):
    assert at_first.patched == 0 and [it for it in at_first.lights if it not in at_first.red] == ["order", "plain"]
    assert at_first["processes"].found == "4" and at_first["restart"].found == "16"


def test_the_lesson_has_this_script_and_its_own_way_is_as_long_as_it_says(tmp_path):
    turn, way = (
        next(cell.source for cell in nbformat.read(LESSON, as_version=4).cells if tag in cell.metadata.get("tags", []))
        for tag in ("your-turn", "one-way")
    )
    both = [text.partition("\n\n\ncheck(")[0].replace("def guide(", "def the_guide(") for text in (turn, way)]
    given, ours = (_written(text, tmp_path / f"{n}.py") for n, text in enumerate(both))
    assert patched(given) == 0 and patched(ours) == OURS
    assert _lines(ours) == _lines(cases.ours())
    text = LESSON.read_text()
    assert f"Ours changes {OURS} lines." in text


def _written(text, path):
    path.write_text(text)
    made = {}
    exec(compile(text, path, "exec"), made)
    return made["the_guide"]


@pytest.mark.parametrize(("script", "lines"), [(cases.ours, OURS), (cases.in_eight_lines, FEW)])
def test_it_is_won(script, lines):
    board = review(script())
    assert not board.red and board.patched == lines


@pytest.mark.parametrize(
    ("patches", "turns"),
    [
        ([cases.SEED], {"samples"}),
        ([cases.START], {"processes"}),
        ([cases.MEAN], {"loss"}),
        ([cases.STEP, cases.NUMBERS], {"rate"}),
        ([cases.STEP], set()),
        ([cases.BESIDE], {"half"}),
        ([cases.NEXT], {"restart", "end"}),
    ],
)
def test_a_patch_turns_its_own_light_green(at_first, patches, turns):
    assert {*at_first.red} - {*review(cases.patched_by(*patches)).red} == turns


def test_a_later_patch_that_is_right_turns_a_light_red_again():
    mended = review(cases.patched_by(cases.NEXT))
    later = review(cases.patched_by(cases.NEXT, cases.STEP, cases.NUMBERS))
    assert "end" not in mended.red and {"rate"} == {*mended.red} - {*later.red} and "end" in later.red
    later.before = mended.red
    told = {line.split("  ")[2].strip(): line.strip().rpartition("  ")[2] for line in str(later).splitlines()[1:]}
    assert [name for name in told if told[name] == "turned red"] == ["weights after the restarted run"]
    assert "turned green" in str(later) and "turned red" in later._repr_html_()


def test_lines_are_counted_as_python_writes_them():
    one = cases.patched_by(("up=100, down=1000", "up=2,\n            down=22,  # a comment\n        "))
    two = cases.patched_by(("first = 0", "first = 2; first = 1"))
    assert (patched(one), patched(two), patched(print)) == (1, 2, None)


def test_a_try_that_does_not_run_leaves_the_lights_in_sight_and_a_hint():
    verdict = judge("9.5.a", cases.rank_0_adds_alone())
    assert "SIGABRT" not in verdict.message or "Do all ranks make the same calls" in verdict.hint
    assert "SIGABRT" not in verdict.message or "a rank was killed" in str(verdict.picture)
    said = "This try has not come to its end, so it has no lights. Here are those of "
    assert said in str(verdict.picture) and len(verdict.picture.lights) == len(review(the_guide).lights)
    seen = verdict.picture._repr_html_()
    assert said in seen and "opacity:0.5" in seen and "color:#" not in seen
    assert "opacity" not in review(the_guide)._repr_html_()


@pytest.mark.parametrize(
    ("script", "hint"),
    [
        (cases.asleep_at_the_end, "changes nothing"),
        (cases.a_line_that_ends_at_a_tenth, "too late"),
        (cases.the_old_one_as_a_spare, "half written"),
        (cases.rank_1_saves, "Who writes"),
        (cases.a_file_that_is_not_there, "renamed it"),
    ],
)
def test_a_hint_is_about_what_is_red(script, hint):
    assert hint in judge("9.5.a", script()).hint


def test_a_page_goes_on_with_a_guide_that_is_red_or_does_not_run_and_says_so(at_first, capsys):
    assert not reviewed(cases.in_eight_lines(), at_first).red and capsys.readouterr().out == ""
    assert reviewed(cases.patched_by(cases.SEED), at_first)["samples"].found == "400"
    told = capsys.readouterr().out
    assert told.startswith("Red still:\n- processes asked for\n- ") and "different samples" not in told
    assert reviewed(cases.a_slip(), at_first) is at_first and "does not run, NameError" in capsys.readouterr().out
    assert at_first["samples"].found == "792, none shared"


def test_what_does_not_run_in_peace_raises():
    with pytest.raises(RankError, match="zero"):
        review(cases.a_slip())

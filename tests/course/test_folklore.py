"""The folklore table is read from the claim boxes of the lessons. Lesson 9.6 asserts that each claim has one."""

import re
from pathlib import Path

import nbformat
import pytest

import ddplab.course.folklore
from ddplab.course.claims import VERDICTS, Claims, claim
from ddplab.course.folklore import TEXTS, board, boxes, guess, quiz, table, verdicts_by_text

LESSONS = Path(__file__).parents[2] / "lessons"


def lesson(folder, name, *cells):
    (folder / name).parent.mkdir(exist_ok=True)
    nbformat.write(nbformat.v4.new_notebook(cells=list(cells)), folder / name)


def settled(text, row=None, **changed):
    what = {"verdict": "true if", "because": "it is", "measured": "3 of 4: so", "holds": True} | changed
    return cell_of(claim(text, row=row, **what))


def cell_of(box):
    output = nbformat.v4.new_output("execute_result", {"text/plain": str(box)}, execution_count=1)
    return nbformat.v4.new_code_cell("claim(...)", outputs=[output])


def test_every_box_is_found_that_a_cell_has_stored():
    stored = []
    for path in LESSONS.rglob("*.ipynb"):
        for cell in nbformat.read(path, as_version=4).cells:
            if "claim(" in cell.source:  # a table of boxes is none itself
                rows = re.findall(r"row=(\d+)", cell.source)
                texts = [output.get("data", {}).get("text/plain", "") for output in cell.get("outputs", [])]
                shown = [text for text in "\n\n".join(texts).split("\n\n") if "Verdict" in text]
                assert not rows or len(rows) == len(shown), f"{path.name}: {rows}"
                stored += rows or shown
    assert len(boxes(LESSONS)) == len(set(stored))  # where a lesson has a numbered box too, its room's counts


def test_a_box_is_read_whole_and_linked_to_its_heading(tmp_path):
    heading = nbformat.v4.new_markdown_cell("# 2.5 · A title\n\n## One `step`, aloud\n\nText.")
    lesson(tmp_path, "2_b/2.5_costs.ipynb", heading, settled("it | costs “nothing”", 12), settled("other folklore"))
    lesson(tmp_path, "2_b/2.1_first.ipynb", settled("first", 2, verdict="false"))
    first, numbered, other = boxes(tmp_path)
    assert (first.row, first.verdict, first.lesson) == (2, "false", "2.1")
    assert (numbered.row, numbered.text, numbered.measured) == (12, "it | costs “nothing”", "3 of 4: so")
    assert (numbered.verdict, numbered.because) == ("true if", "it is")
    assert numbered.link == "../2_b/2.5_costs.ipynb#One-step%2C-aloud"
    assert (other.row, other.text) == (None, "other folklore")
    line = next(it for it in table([numbered]).splitlines() if it.startswith("| 12"))
    assert line.startswith(
        "| 12 | it \\| costs “nothing” | <details><summary>◐ **true if**</summary>it is. *Measured:* 3 of 4"
    )
    assert "[2.5](../2_b/2.5_costs" in line and "<summary>one GPU fails, two learn: 1 claim</summary>" in table(
        [numbered]
    )
    assert table([numbered, first, other]).count("<summary>one GPU fails, two learn: 2 claims</summary>") == 1
    assert "<summary>from elsewhere: 1 claim</summary>" in table([other])


def test_a_box_of_several_claims_is_each_of_them(tmp_path):
    measured = {"because": "it is", "measured": "3 of 4: so", "holds": True}
    both = Claims([claim(text, row=row, verdict="false", **measured) for text, row in (("one", 7), ("other", 6))])
    lesson(tmp_path, "9_part/9.2_room.ipynb", cell_of(both))
    assert [(box.row, box.text, box.measured) for box in boxes(tmp_path)] == [
        (6, "other", "3 of 4: so"),
        (7, "one", "3 of 4: so"),
    ]


@pytest.mark.parametrize("verdict", VERDICTS)
def test_every_verdict_is_read(tmp_path, verdict):
    only_read = {"measured": None, "holds": None, "read": "a page"} if verdict == "not settled" else {}
    lesson(tmp_path, "1_part/1.1_x.ipynb", settled("c", verdict=verdict, **only_read))
    assert [box.verdict for box in boxes(tmp_path)] == [verdict]
    assert boxes(tmp_path)[0].measured == ("nothing; read: a page" if only_read else "3 of 4: so")


def test_a_folder_without_boxes_is_told(tmp_path):
    with pytest.raises(FileNotFoundError, match="no claim boxes"):
        boxes(tmp_path)


def test_of_a_numbered_claim_its_rooms_box_counts(tmp_path):
    lesson(tmp_path, "2_part/2.1_first.ipynb", settled("as a lesson says it", 7), settled("only here", 8))
    lesson(tmp_path, "9_part/9.2_room.ipynb", settled("as its room says it", 7), settled("no number"))
    assert [box.text for box in boxes(tmp_path)] == ["as its room says it", "only here", "no number"]


@pytest.mark.parametrize("looked_at", [True, False])
def test_the_board_is_a_widget_where_somebody_looks_and_always_a_table(tmp_path, monkeypatch, looked_at):
    import IPython.display

    shown = []
    monkeypatch.setattr(IPython.display, "display", lambda data, raw: shown.append(data))
    monkeypatch.setattr(ddplab.course.folklore, "live", lambda: looked_at)
    lesson(tmp_path, "9_part/9.2_room.ipynb", settled("it <costs> `nothing`", 7))
    board(boxes(tmp_path))
    assert shown[0]["text/markdown"] == table(boxes(tmp_path)) and shown[0]["text/plain"] == "1 claims"
    assert ("application/vnd.jupyter.widget-view+json" in shown[0]) == looked_at


def test_the_board_knows_what_you_have_said_and_guessed(tmp_path, monkeypatch, capsys):
    import IPython.display

    made = []
    monkeypatch.setattr(IPython.display, "display", lambda data, raw: None)
    monkeypatch.setattr(ddplab.course.folklore, "live", lambda: True)
    monkeypatch.setattr(ddplab.course.folklore, "right", {79: False})
    widget = ddplab.course.folklore.widget
    monkeypatch.setattr(
        ddplab.course.folklore, "widget", lambda *it, **traits: made.append(traits) or widget(*it, **traits)
    )
    lesson(tmp_path, "9_part/9.2_room.ipynb", settled("theirs", 7))
    board(boxes(tmp_path), said={7: True})
    assert made[0]["said"] == {"79": False, "7": True}
    assert capsys.readouterr().out == "You judged 2 of these claims; 1 turned out otherwise.\n"


def test_a_room_lets_one_guess_and_its_saved_file_tells_nothing(tmp_path, monkeypatch):
    import IPython.display

    shown = []
    monkeypatch.setattr(IPython.display, "display", lambda data, raw: shown.append(data))
    lesson(tmp_path, "9_part/9.2_room.ipynb", settled("it <costs> `nothing`", 7, measured="4711"))
    lesson(tmp_path, "9_part/9.3_room.ipynb", settled("of another room", 8))
    guess("9.2", tmp_path)
    monkeypatch.setattr(ddplab.course.folklore, "live", lambda: True)
    guess("9.2", tmp_path)
    saved, live = (data["text/markdown"] for data in shown)
    assert saved == live and "it <costs>" in saved and "another" not in saved and "4711" not in saved
    assert "application/vnd.jupyter.widget-view+json" not in shown[0]
    assert "application/vnd.jupyter.widget-view+json" in shown[1]
    with pytest.raises(FileNotFoundError, match=r"no claim boxes of 9\.4"):
        guess("9.4", tmp_path)


def test_a_claim_that_no_room_has_settled_yet_may_be_guessed_too(monkeypatch):
    import IPython.display

    shown = []
    monkeypatch.setattr(IPython.display, "display", lambda data, raw: shown.append(data["text/markdown"]))
    guess({79: "it | costs"})
    assert shown[0].splitlines()[-1] == "| 79 | it \\| costs |"


def test_what_is_guessed_is_kept_and_the_page_is_told_no_verdict(monkeypatch):
    kept = {8: "does not hold"}
    monkeypatch.setattr(ddplab.course.folklore, "guesses", kept)
    page = ddplab.course.folklore._guesses([["7", "it costs"], ["8", "nothing"]])
    assert page.guessed == {"8": "does not hold"} and page.claims == [["7", "it costs"], ["8", "nothing"]]
    assert [word for word, _ in page.verdicts] == ["holds", "holds if …", "does not hold", "not settled"]
    page.guessed = {"8": "does not hold", "7": "holds if …"}
    assert kept == {8: "does not hold", 7: "holds if …"}


def test_a_room_asks_in_the_order_in_which_it_settles(tmp_path, monkeypatch):
    import IPython.display

    shown = []
    monkeypatch.setattr(IPython.display, "display", lambda data, raw: shown.append(data["text/markdown"]))
    lesson(tmp_path, "9_part/9.2_room.ipynb", settled("the surprise", 9), settled("the rest", 7))
    guess("9.2", tmp_path)
    assert [line.split(" | ")[1] for line in shown[0].splitlines()[2:]] == ["the surprise |", "the rest |"]


def test_a_room_may_ask_in_parts_and_no_part_takes_a_guess_of_another_back(tmp_path, monkeypatch):
    import IPython.display

    shown, kept = [], {7: "true"}
    monkeypatch.setattr(IPython.display, "display", lambda data, raw: shown.append(data["text/markdown"]))
    monkeypatch.setattr(ddplab.course.folklore, "guesses", kept)
    lesson(tmp_path, "9_part/9.2_room.ipynb", settled("of the first part", 7), settled("of the second", 8))
    guess("9.2", tmp_path, rows=range(8, 10))
    assert "of the second" in shown[0] and "first" not in shown[0]
    with pytest.raises(FileNotFoundError, match="no claim boxes"):
        guess("9.2", tmp_path, rows=range(9, 12))
    page = ddplab.course.folklore._guesses([["8", "of the second"]])
    kept[7] = "false"  # guessed anew, in the first list
    page.guessed = {"8": "true"}
    assert kept == {7: "false", 8: "true"}


def test_the_picture_has_a_piece_for_each_verdict_of_each_text(tmp_path):
    lesson(tmp_path, "9_part/9.2_room.ipynb", settled("a", 1), settled("b", 2), settled("c", 19, verdict="false"))
    (axis,) = verdicts_by_text(boxes(tmp_path)).axes
    widths = {bars.get_label(): [bar.get_width() for bar in bars][:2] for bars in axis.containers}
    assert widths["true if"] == [100, 0] and widths["false"] == [0, 100] and widths["true"] == [0, 0]


def test_the_texts_have_every_claim_once_and_yours_come_first(tmp_path, monkeypatch):
    import IPython.display

    shown = []
    monkeypatch.setattr(IPython.display, "display", lambda data, raw: shown.append(data["text/markdown"]))
    assert [row for rows in TEXTS.values() for row in rows] == [*range(1, 79)]
    lesson(tmp_path, "9_part/9.2_room.ipynb", settled("theirs", 7))
    board(boxes(tmp_path), claim("mine", row=79, verdict="true", because="so", measured="4711", holds=True))
    assert "<summary>yours: 1 claim</summary>" in shown[0] and "4711" in shown[0] and "theirs" in shown[0]


@pytest.mark.parametrize("looked_at", [True, False])
def test_the_quiz_asks_what_is_settled_and_folds_what_was_found(tmp_path, monkeypatch, looked_at):
    import IPython.display

    shown, made = [], []
    monkeypatch.setattr(IPython.display, "display", lambda data, raw: shown.append(data))
    monkeypatch.setattr(ddplab.course.folklore, "live", lambda: looked_at)
    widget = ddplab.course.folklore.widget
    monkeypatch.setattr(
        ddplab.course.folklore, "widget", lambda *it, **traits: made.append(widget(*it, **traits)) or made[-1]
    )
    few = [settled(f"claim number {row}", row, verdict="false") for row in range(1, 8)]
    open_ = settled("open", 8, verdict="not settled", measured=None, holds=None, read="a page")
    lesson(tmp_path, "9_part/9.2_room.ipynb", *few, open_, settled("no number"))
    said = quiz(boxes(tmp_path))
    saved = shown[0]["text/markdown"]
    assert saved.count("claim number") == saved.count("</summary>✗ **false**: it is") == 5 and "open" not in saved
    assert said == {} and ("application/vnd.jupyter.widget-view+json" in shown[0]) == looked_at
    if looked_at:
        assert [it[0] for it in made[0].claims] == [*range(1, 8)]
        made[0].said = {"3": True, "5": False}
        assert said == {3: True, 5: False}

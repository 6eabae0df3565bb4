"""Sliders over a function: what it says of where it begins, and of each place that the page asks for."""

import pytest

from ddplab.course.moving import _page, _widget, move, noted
from ddplab.plots import drawing


def told(rows, line):
    if rows == 3:
        raise RuntimeError("no three")
    return f"{rows} rows, {line}"


def test_where_nobody_can_move_it_the_words_of_the_beginning(capsys):
    move(told, at={"rows": 2}, rows=range(1, 4), line=["one", "other"])
    assert capsys.readouterr().out == "2 rows, one\n"


def test_a_beginning_that_is_in_no_range():
    with pytest.raises(ValueError, match=r"rows begins at 9, which is none of \[1, 2\]"):
        move(told, at={"rows": 9}, rows=[1, 2], line=["one"])
    with pytest.raises(ValueError, match="row begins at 1"):
        move(told, at={"row": 1}, rows=[1, 2], line=["one"])


def test_the_page_asks_and_is_answered_also_where_the_function_fails():
    values = {"rows": [1, 1024, 3], "line": ["one", "other"]}
    page = _widget(told, values, [0, 0], _page("1 rows, one", None))
    assert page.offered == [["rows", False, ["1", "1,024", "3"]], ["line", True, ["one", "other"]]]
    page.asked = [1, 1, 1]
    assert page.shown == {"words": "1024 rows, other", "png": None, "asked": 1}
    page.asked = [2, 2, 0]
    assert page.shown == {"words": "RuntimeError: no three", "png": None, "asked": 2}
    page.asked = [3, 0, 0]
    assert page.shown["words"] == "1 rows, one"


def test_who_interrupts_is_told_and_may_press_again():
    def interrupted(rows):
        if rows == 2:
            raise KeyboardInterrupt
        return f"{rows} rows"

    page = _widget(interrupted, {"rows": [1, 2]}, [0], _page("1 rows", None), "go")
    page.asked = [1, 1]
    assert page.shown["words"].startswith("KeyboardInterrupt") and page.shown["asked"] == 1
    page.asked = [2, 0]
    assert page.shown["words"] == "1 rows"


def test_a_button_where_a_choice_has_its_price():
    assert _widget(told, {"rows": [1]}, [0], _page("1 rows", None)).press == ""
    assert _widget(told, {"rows": [1]}, [0], _page("1 rows", None), "name").press == "name"


def test_trials_are_noted_the_first_and_the_newest_each_once():
    lines = {"one rank": 0.25}
    assert noted(lines, "two", 0.1) == "one rank  loss 0.25  ■■■■■\ntwo       loss 0.10  ■■  now"
    noted(lines, "three", float("nan"))
    assert noted(lines, "two", 0.1, last=2).splitlines() == [
        "one rank  loss 0.25  ■■■■■",
        "three     loss nan  " + 60 * "■",
        "two       loss 0.10  ■■  now",
    ]
    noted(lines, "four", 100.0)
    assert noted(lines, "one rank", 0.25, last=1) == (
        f"one rank  loss 0.25  ■■■■■  now\nfour      loss 100.00  {60 * '■'}"
    )


def test_a_picture_goes_to_the_page():
    def drawn(rows):
        with drawing(1, 1) as figure:
            figure.text(0, 0, str(rows))
        return f"{rows} rows", figure

    page = _widget(drawn, {"rows": [1, 2]}, [0], _page(*drawn(1)))
    first = page.shown["png"]
    page.asked = [1, 1]
    assert page.shown["words"] == "2 rows" and page.shown["png"] != first and page.shown["png"].startswith("iVBOR")

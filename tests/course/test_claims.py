"""Claim boxes and predictions: what they show, where, and when they refuse."""

import re

import pytest

import ddplab.screen
from ddplab.course import claims
from ddplab.course.claims import VERDICTS, claim, predict, settle

FALSE = {
    "verdict": "false",
    "because": "both runs draw the same data",
    "measured": "largest difference 0",
    "holds": True,
}


@pytest.fixture
def live(monkeypatch):
    monkeypatch.setattr(ddplab.screen, "live", lambda: True)


@pytest.fixture
def not_live(monkeypatch):
    monkeypatch.setattr(ddplab.screen, "live", lambda: False)


def radio_buttons(prediction, monkeypatch):
    """Show a prediction as a notebook does; return its radio buttons, what was displayed, and the prediction."""
    import IPython.display

    made, shown = [], []
    monkeypatch.setattr(IPython.display, "display", lambda data, _=None, raw=False: shown.append(data))
    original = claims.radio_buttons
    monkeypatch.setattr(claims, "radio_buttons", lambda *it: made.append(original(*it)) or made[-1])
    result = prediction()
    return made[0], shown[0], result


def test_text_is_stable_and_names_everything():
    box = claim("One GPU fails and two converge", row=1, **FALSE)
    assert (
        str(box)
        == repr(box)
        == (
            "Claim 1   “One GPU fails and two converge”\n"
            "Verdict   ✗ false: both runs draw the same data\n"
            "Measured  largest difference 0"
        )
    )


READ = {"because": "nobody wrote it down", "read": "the first page"}


@pytest.mark.parametrize("verdict", VERDICTS)
def test_html_gives_the_verdict_by_word_and_symbol(verdict):
    page = claim("x", **{**(READ if verdict == "not settled" else FALSE), "verdict": verdict})._repr_html_()
    words = re.sub("<[^>]*>", "", page)
    assert f"{VERDICTS[verdict][0]} {verdict}" in words


def test_a_box_says_what_was_guessed_and_how_many_were_right_so_far(monkeypatch):
    monkeypatch.setattr(claims, "guesses", {1: "does not hold", 2: "holds"})
    monkeypatch.setattr(claims, "right", {})
    nobody_guessed, right, wrong = (claim("x", row=row, **FALSE) for row in (3, 1, 2))
    assert "guessed" not in str(nobody_guessed) + nobody_guessed._repr_html_()
    assert str(right).splitlines()[-1] == "You       You guessed “does not hold”, and so it is. Right so far: 1 of 1."
    assert "You guessed “holds”. Right so far: 1 of 2." in wrong._repr_html_()
    again = claim("x", row=2, **{**FALSE, "verdict": "true"})
    assert "“holds”, and so it is. Right so far: 2 of 2." in str(again)
    misleads = claim("x", row=1, **{**FALSE, "verdict": "misleading"})
    assert "“does not hold”, and so it is." in str(misleads)


def test_claims_in_one_box_each_with_its_verdict():
    both = claims.Claims([claim("x", row=1, **FALSE), claim("y", row=2, **FALSE | {"verdict": "true"})])
    assert str(both) == repr(both) == "\n\n".join(map(str, both))
    page = both._repr_html_()
    assert page.count('role="note"') == 2 and "Claim 1: false" in page and "Claim 2: true" in page


def test_verdict_symbols_differ():
    assert len({symbol for symbol, _ in VERDICTS.values()}) == len(VERDICTS)


def test_a_box_has_colours_that_an_untrusted_notebook_keeps():
    page = claim("x", row=3, **FALSE)._repr_html_()
    assert "var(" not in page and re.findall(r"solid (#[0-9a-f]{6})", page) == ["#757575", VERDICTS["false"][1]]


def test_html_escapes_and_marks_code():
    page = claim("`a < b` & c", **FALSE)._repr_html_()
    assert "<code>a &lt; b</code> &amp; c" in page


def test_a_verdict_that_does_not_hold_raises():
    with pytest.raises(AssertionError, match=r"“false” on “x” is not what this machine measured \(0\.3\)"):
        claim("x", **{**FALSE, "measured": 0.3, "holds": False})


def test_a_tensor_may_say_whether_it_holds():
    torch = pytest.importorskip("torch")
    assert claim("x", **{**FALSE, "holds": torch.tensor(True)})
    with pytest.raises(AssertionError):
        claim("x", **{**FALSE, "holds": torch.tensor(False)})


def test_an_unknown_verdict_is_refused():
    with pytest.raises(ValueError, match="'wrong'; it must be one of 'true', 'true if', 'misleading', 'false'"):
        claim("x", **{**FALSE, "verdict": "wrong"})


def test_predict_is_text_where_nobody_can_press(not_live, capsys):
    prediction = predict("Who fails first?", "rank 0", "rank 1")
    assert capsys.readouterr().out == "Predict: Who fails first?\n  (a) rank 0\n  (b) rank 1\n"
    assert prediction.choice is None


def test_an_answer_without_a_choice_says_the_answer_alone(not_live):
    box = settle(predict("Who `waits`?", "rank 0", "rank 1"), "rank 0", because="rank 1 came 3 s later", holds=True)
    assert str(box) == repr(box) == "Question  Who `waits`?\nAnswer    rank 0: rank 1 came 3 s later"
    assert "<code>waits</code>" in box._repr_html_() and "You predicted" not in box._repr_html_()


def test_radio_buttons_carry_the_choice_to_its_answer(live, monkeypatch):
    buttons, _, prediction = radio_buttons(lambda: predict("Who?", "rank 0", "rank 1"), monkeypatch)
    assert buttons.options == ["rank 0", "rank 1"] and buttons.choice is None and prediction.choice is None
    buttons.choice = "rank 1"
    assert prediction.choice == "rank 1"
    wrong, right = (settle(prediction, it, because="so", holds=True) for it in ("rank 0", "rank 1"))
    for shown in (str(wrong), wrong._repr_html_()):
        assert "You predicted “rank 1”. It turned out “rank 0”." in shown
    assert "and so it is" in str(right) and (right.right, wrong.right) == (True, False)


def test_an_answer_that_was_not_measured_fails_its_cell(not_live):
    with pytest.raises(AssertionError, match=r"“rank 0” to “Who\?” is not what this machine measured \(so\)"):
        settle(predict("Who?", "rank 0", "rank 1"), "rank 0", because="so", holds=False)


def test_the_text_stands_in_where_the_widget_is_gone(live, monkeypatch):
    _, shown, prediction = radio_buttons(lambda: predict("Who?", "rank 0", "rank 1"), monkeypatch)
    assert "application/vnd.jupyter.widget-view+json" in shown and shown["text/plain"] == str(prediction)


def test_an_answer_must_be_an_option(not_live):
    prediction = predict("Who?", "rank 0", "rank 1")
    with pytest.raises(ValueError, match="'rank 2'; the options were 'rank 0', 'rank 1'"):
        settle(prediction, "rank 2", because="so", holds=True)


@pytest.mark.parametrize("options", [(), ("one",), ("same", "same")])
def test_predict_needs_two_different_options(options, not_live):
    with pytest.raises(ValueError, match="two or more different options"):
        predict("Who?", *options)


def test_in_a_cell_a_prediction_is_shown_once(not_live, capsys):
    from IPython.testing.globalipapp import get_ipython, start_ipython

    shell = start_ipython() or get_ipython()
    shell.run_cell("from ddplab.course.claims import predict; predict('Who?', 'rank 0', 'rank 1')")
    assert capsys.readouterr().out.count("Predict: Who?") == 1
    shell.run_cell("p = predict('Who?', 'rank 0', 'rank 1')")
    capsys.readouterr()
    shell.run_cell("p")
    assert capsys.readouterr().out.count("Predict: Who?") == 1, "asked for again in a later cell, it is shown again"


def test_what_no_cell_can_measure_says_where_it_was_read_and_nothing_of_measuring():
    box = claim("A wrote it", verdict="not settled", row=58, **READ)
    text = "Claim 58  “A wrote it”\nVerdict   ? not settled: nobody wrote it down\nRead      the first page"
    assert str(box) == text
    assert "Measured" not in box._repr_html_() and "Read:</small> the first page" in box._repr_html_()


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"measured": "3"},
        {"holds": True},
        {"measured": "3", "holds": True, "read": "a page"},
        {"measured": "3", "holds": True, "verdict": "not settled"},
    ],
)
def test_a_claim_is_either_measured_or_read(given):
    with pytest.raises(ValueError, match="a claim is measured, with"):
        claim("x", **{"verdict": "false", "because": "so"} | given)

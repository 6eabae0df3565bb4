"""Bets on what runs will show: what a bet brings, what can be bet, and that the page tells nothing before its run."""

import json

import pytest

from ddplab import claim
from ddplab.course.bets import GAIN, STAKES, Bets

SAYS = {"verdict": "false", "because": "it `is` not"}


def three(ran, rows=range(1, 11)):
    """Sentences whose runs end with "b"; that of the last one ends otherwise, and that of the first fails at first."""
    bets = Bets()
    for row in rows:

        @bets.on(row, f"sentence {row}", "What is seen?", "a", "b", "c", **SAYS)
        def run(row=row):
            ran.append(row)
            if ran == [1]:
                raise RuntimeError("no rank")
            return ("something else" if row == 10 else "b"), f"`{row}` measured"

    return bets


def test_a_right_bet_brings_what_chance_loses_on_the_other_two_and_stakes_are_there_for_ten():
    assert GAIN == 2 and STAKES.total() == 10
    bets = three([0])
    assert [bets.lay(2, "b", 3).gain, bets.lay(3, "a", 3).gain, bets.lay(4, "c", 3).gain, bets.score] == [6, -3, -3, 0]


def test_a_run_happens_once_and_what_is_settled_stays():
    bets = three(ran := [0])
    first = bets.lay(2, "a", 3)
    assert bets.lay(2, "b", 1) == first and bets.left == {3: 2, 2: 3, 1: 4} and bets.score == -3
    box = claim(**bets.settled(2))
    assert (box.row, box.measured, box.verdict) == (2, "`2` measured", "false") and ran == [0, 2]


def test_what_nobody_could_bet_on_is_run_once_more_costs_nothing_and_settles_no_claim():
    bets = three(ran := [0])
    assert bets.lay(10, "a", 3).gain == 0 and ran == [0, 10, 10]
    with pytest.raises(AssertionError, match="not what this machine measured"):
        claim(**bets.settled(10))


@pytest.mark.parametrize(("end", "stake"), [("d", 1), ("", 1), ("a", 4), ("a", 0), ("a", -1), ("a", 3)])
def test_a_bet_that_there_is_not(end, stake):
    bets = three(ran := [0])
    for row in (1, 2, 3):
        bets.lay(row, "b", 3)
    with pytest.raises(ValueError, match="no such bet on 4"):
        bets.lay(4, end, stake)
    assert ran == [0, 1, 2, 3] and bets.score == 18


def test_the_page_knows_no_end_before_its_run_and_a_run_that_fails_can_be_made_again():
    bets = three(ran := [])
    page = bets._widget()
    known = json.dumps([page.cards, page.shown])
    assert "measured" not in known and "not" not in known.replace("nothing", "") and not ran
    page.asked = [1, 1, 1, 2]
    assert page.shown["failed"] == "RuntimeError: no rank. The bet is open still." and page.shown["told"] == {}
    page.asked = [2, 1, 1, 2]
    verdict = "<b>So the sentence is ✗ false:</b> it <code>is</code> not"
    assert page.shown["told"]["1"] == [1, 2, 4, "b", "<code>1</code> measured", verdict]
    assert (
        page.shown["status"] == "Your score: 4. 1 of 10 settled."
        and page.shown["failed"] == ""
        and page.shown["count"] == 2
    )
    assert page.shown["stakes"] == [[1, 4], [2, 2], [3, 3]]
    page.asked = [3, 10, 0, 3]
    assert page.shown["told"]["10"] == [0, 3, 0, "something else", "<code>10</code> measured", ""]
    page.asked = [4, 2, 7, 1]  # an end that there is not
    assert "IndexError" in page.shown["failed"] and ran == [1, 1, 10, 10]
    assert bets._widget().shown["told"] == page.shown["told"]  # in a cell that is run again


def test_an_interrupted_run_leaves_the_bet_open():
    bets = Bets()

    @bets.on(1, "sentence", "What?", "a", "b", **SAYS)
    def run():
        raise KeyboardInterrupt

    page = bets._widget()
    page.asked = [1, 1, 0, 3]
    assert page.shown["failed"] == "KeyboardInterrupt. The bet is open still." and not bets.laid and bets.left == STAKES


def test_in_a_saved_file_stand_the_sentences_and_their_ends(monkeypatch):
    import IPython.display

    shown = []
    monkeypatch.setattr(IPython.display, "display", lambda data, raw: shown.append(data))
    three([], [7]).play()
    assert shown[0]["text/markdown"].splitlines()[-1] == "| 7 | sentence 7 | What is seen? *a · b · c* |"
    assert shown[0]["text/plain"] == "1 bets"


def test_played_again_nothing_runs_and_the_best_score_is_kept():
    bets = three(ran := [0], range(11, 21))
    page = bets._widget()
    stakes = sorted(STAKES.elements())
    for n, row in enumerate(bets.cards):  # four right, with the four low stakes
        page.asked = [n, row, 1 if n < 4 else 0, stakes[n]]
    told = (
        "Your score: −7, with 4 of 10 right. The same answers, with the high stakes on those that were right, bring 14"
    )
    assert page.shown["status"] == f"{told}; all right, 38. Best so far: −7."
    page.asked = [10, 0, 0, 0]
    assert page.shown["status"] == "Your score: 0. 0 of 10 settled. Best so far: −7." and page.shown["told"] == {}
    page.asked = [11, 0, 0, 0]  # pressed twice
    for n, row in enumerate(reversed(bets.cards)):
        page.asked = [12 + n, row, 1 if n > 8 else 0, stakes[n]]
    status = (
        "Your score: −10, with 1 of 10 right. With these answers no stakes bring more; all right, 38. Best so far: "
    )
    assert page.shown["status"] == f"{status}−7." and ran == [0, *range(11, 21)]
    assert bets.best == -7 and claim(**bets.settled(12)).row == 12


def test_nothing_is_taken_back_before_all_is_settled():
    bets = three([0])
    bets.lay(2, "b", 3)
    bets.again()
    assert bets.score == 6 and bets.best is None

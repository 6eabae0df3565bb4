"""Each fault of the pager, once: its symptom shows, its probe tells it, its mended line mends it."""

import json
import re

import pytest

from ddplab.checks import CORRECT, NOT_YET, judge
from ddplab.course import incident_runs
from ddplab.course.faults import FAULTS, RANKS, SOUND, build, labels, only_here
from ddplab.course.incident_runs import Outcome, differences, last_night, monitor, patched
from ddplab.course.incidents import BUDGET, CLOSED, PRICES, SHUT, Board, closed_nights, incident

SEEDS = range(1, len(FAULTS) + 1)
STANDS, FAILS, ENDS = "stands still", "failed", "ended"
# Name → how the job ends, and words that the probe says of the culprit (of rank 1 where all ranks do it), by its line.
TOLD = {
    "a skipped collective": (STANDS, r"barrier \(torch"),  # the others stand in all_reduce
    "a barrier for one": (STANDS, r"barrier \(torch"),
    "crossed order": (
        ENDS,
        r"\(\) = 8[78], last night \d\d +line .*\n.*\(\) = \d\d, last night 8[78] +line .*\n.*barrier",
    ),
    "a straggler": (ENDS, r"at line {line}: .*sleep|at line \d+: time.sleep"),
    "the wrong port": (STANDS, "_create_c10d_store"),
    "the wrong world size": (STANDS, r"init_process_group .*\n.*world_size=|world_size="),
    "a bad row": (FAILS, "IndexError: Target 99 is out of bounds"),
    "evaluation on rank 0 alone": (STANDS, r"all_reduce \(torch(.*\n)*.*evaluate \(train.py:37\)"),
    "everything on GPU 0": (ENDS, r"before epoch 1 +76,964 +0 +0 +0"),
    "a stale optimizer": (ENDS, r"at the end +5.0553 +0.0000 +[1-9]"),
    "a frozen shuffle": (ENDS, r"epoch 1: .*first: (.*)\n.*\n +epoch 2: .*first: \1\n"),
    "different seeds": (ENDS, r"epoch 0: 360 rows, [12]\d\d of them on other ranks too"),
    "a leak": (
        ENDS,
        r"before epoch 0 +0 +\d\d,\d\d0 .*\n +before epoch 1 +0 +1\d\d,\d\d\d .*\n +before epoch 2 +0 +[23]\d\d,",
    ),
    "a full disk": (FAILS, r"\[rank0\]:   File \"train.py\".*\n\[rank0\]:     torch.save"),
    "a batch skipped": (FAILS, r"all_reduce \(\) = \d+ +line \d+: dist.all_reduce\(total\)"),
    "the bare model": (ENDS, r"at the end +8.0286 .* 8.0665"),
    "averaged twice": (ENDS, r"before epoch 1 +5.0[45]\d\d +0.2\d\d\d .*5.1290 +0.9424"),
    "an unused head": (FAILS, "did not receive grad for rank [0-3]: (self.)?spare.weight, spare.bias|spare.bias"),
    "different shapes": (FAILS, r"all_reduce \(8[78],\) +line \d+: dist.all_reduce"),
}


@pytest.mark.parametrize("seed", SEEDS, ids=lambda seed: build(seed).fault.name)
def test_a_fault_shows_its_symptom_is_told_by_its_probe_and_mended_by_its_line(seed):
    page, built = incident(seed), build(seed)
    state, words = TOLD[built.fault.name]
    assert page.outcome.state == state, page.page()
    assert differences(page.outcome), "the page has nothing to show"
    ask = {"terminal": page.page, "detail": page.detail}
    rank = 1 if built.rank is None else built.rank
    said = ask.get(built.fault.probe, lambda: getattr(page, built.fault.probe)(rank))()
    assert re.search(words, said), said
    assert page.left == BUDGET - PRICES.get(built.fault.probe, 0)
    assert patched(built.text, built.mend).split() == SOUND.split() and set(built.mend) == set(built.lines)


def test_a_crash_is_read_when_its_stack_is_whole(tmp_path):
    """Faulthandler writes line by line, and the pager looks twenty times a second."""
    dump = "Fatal Python error: Aborted\n\nCurrent thread 0x00000007 (most recent call first):\n"
    places = [("train.py", 35, "evaluate"), ("train.py", 70, "<module>"), ("runpy.py", 1, "run_path")]
    dump += "".join(f'  File "{file}", line {line} in {name}\n' for file, line, name in places)
    (tmp_path / "box0").write_text(json.dumps({"thread": 7, "still": 0}))
    seen = []
    for end in [place for place, letter in enumerate(dump, 1) if letter == "\n"]:
        (tmp_path / "crash0").write_text(dump[:end])
        box = incident_runs._boxes(str(tmp_path))[0]
        seen.append((box.get("ended"), box.get("stack")))
    assert seen == [(None, None)] * 4 + [("aborted", places[:2])] * 2


def test_the_sound_script_ends_and_is_itself():
    assert last_night().state == ENDS and differences(last_night()) == []
    assert len(last_night().printed) == 3 and last_night().saved == ["last.pt"]


def test_the_same_seed_is_the_same_incident_and_the_first_have_every_fault_once():
    assert sorted(build(seed).fault.name for seed in SEEDS) == sorted(TOLD)
    assert [build(seed)[1:4] for seed in (1, 16, 33)] == [build(seed)[1:4] for seed in (1, 16, 33)]
    assert (build(7).fault.name, build(7).rank, build(7).lines) == ("a bad row", 1, (47,))
    assert (build(16).fault.name, build(16).rank, build(16).lines) == ("a skipped collective", 2, (33, 34))
    assert len({build(seed).text for seed in range(20, 60)}) > 15
    assert build(7).is_culprit(None) and not build(16).is_culprit(None), "all ranks run the lines of 7 alike"


def test_no_script_says_which_rank_it_is():
    for seed in range(1, 60):
        text = build(seed).text
        assert text.count("rank ==") == SOUND.count("rank ==") and "rank !=" not in text, build(seed).fault.name


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_one_rank_alone_has_so_many_of_a_digit(rank, training):
    digit, most = only_here(rank, training)
    many = [any(int((y == digit).sum()) > most for y in batches) for batches in labels(training)]
    assert many == [other == rank for other in range(RANKS)]


def test_an_incident_from_the_page_to_its_close():
    page = incident(16)
    assert "stands still" in page.page() and "still open" in page.share()
    page.hint()
    assert page.script() == SHUT and page.lines() == []
    page.rows(0)
    assert "barrier" in page.script() and page.lines()[32][2] == build(16).text.splitlines()[32]
    assert page.accuse(0, 33).startswith("The line is right, the rank is not.")
    assert page.accuse(2, 37).startswith("The rank is right, the line is not.")
    assert page.left == 56 and page.accuse(2, 37).endswith("[56 of 120 GPU-minutes left]")
    assert page.rows(0).endswith("[56 of 120 GPU-minutes left]"), "the same question was paid already"
    assert page.accuse(None, 37).startswith("Neither") and not page.named
    assert "It does not compile: SyntaxError, line 38 of train.py: '('" in page.patch(38, "print(")
    assert "So it was not run." in page.run(), "a typo costs nothing"
    page.patch(38, "    for total in totals:")
    said = page.patch({32: "    guesses = net(x.to(device)).argmax(1)\n    guesses = guesses.cpu()", 33: ""})
    assert "IndentationError, line 34 of train.py:\nunexpected indent." in said and "its own indentation" in said, said
    page.patch({32: "    guesses = net(x.to(device)).argmax(1).cpu()", 33: build(16).text.splitlines()[32]})
    assert "✎" not in page.script()
    page.patch({38: "", 39: ""})
    assert "not mended: it reports" in page.run() and not page.mended
    page.patch({38: "    for total in totals:", 39: "        dist.all_reduce(total)"})
    assert page.accuse(2, 34).startswith("Right, the rank and the line.")
    page.patch({33: "", 34: ""})
    assert page.script().count("✎") == 2
    assert "Closed. It was a skipped collective" in page.run() and page.closed
    assert page.left == BUDGET - PRICES["hint"] - PRICES["rows"] - 3 * PRICES["wrong"] - 2 * PRICES["run"]
    assert re.match(r"ddplab pager, incident 16: closed with 12 of 120 GPU-minutes left, 0 min \d+ s\n", page.share())
    assert "rows 1, run 2, hint 1, 3 wrong accusations" in page.share() and "skipped" not in page.share()
    for rank, line, why in ((4, 33, "no rank 4"), ("2", 33, "no rank '2'"), (2, 400, "no line 400")):
        with pytest.raises(ValueError, match=why):
            page.accuse(rank, line)
    with pytest.raises(ValueError, match="no rank None"):
        page.stack(None)
    with pytest.raises(ValueError, match="no line 99"):
        page.patch(99)


def test_the_board_counts_a_night_that_its_page_or_its_check_has_seen_closed(capsys):
    CLOSED.clear()
    assert judge("6.5.b", lambda: (0, {56: "    sampler.set_epoch(epoch)"})).state == NOT_YET and not CLOSED
    assert judge("6.5.b", lambda: (None, {56: "    sampler.set_epoch(epoch)"})).state == CORRECT
    page = incident(4)
    page.accuse(None, 56)
    page.patch(56, "    sampler.set_epoch(epoch)")
    closed_nights()
    assert "✓  4  " in (shown := capsys.readouterr().out) and "closed: 1 of 19" in shown and "(" not in shown
    page.run()
    page.rows(0)
    assert "✓  4 (108)" in str(Board()) and "☐  5" in str(Board()), "the first end stays, its last price paid"
    assert judge("6.5.b", lambda: (None, {56: "    sampler.set_epoch(epoch)"})).state == CORRECT
    assert CLOSED == {4: BUDGET - PRICES["run"]} and "✓ 4 (108)" in Board()._repr_html_()


@pytest.mark.parametrize(
    ("call", "mended"),
    [("epoch + 1", True), ("SEED - epoch", True), ("epoch // 2", False), ("epoch * size + rank", False)],
)
def test_any_order_that_is_new_each_epoch_mends_a_frozen_shuffle(call, mended):
    page = incident(4)
    page.patch(56, f"    sampler.set_epoch({call})")
    said = page.run()
    assert page.mended == mended, said
    assert said.startswith("the job ends as it should, its rows in another order than last night:") == mended


@pytest.mark.parametrize("seed", [10, 23])
@pytest.mark.parametrize(
    ("sound", "patch", "mended"),
    [
        ("model = DDP(net)", "model = DDP(net, find_unused_parameters=True)", True),
        ("model = DDP(net)", "net.spare.requires_grad_(False)\nmodel = DDP(net)", True),
        (
            "        return self.head(self.body(x))",
            "        seen = self.body(x)\n        return self.head(seen) + 0 * self.spare(seen).sum()",
            True,
        ),
        (
            "        return self.head(self.body(x))",
            "        seen = self.body(x)\n        return self.head(seen) * self.spare(seen).sum(1, True)",
            False,
        ),
    ],
)
def test_an_unused_head_may_stay_where_it_is_never_moved(seed, sound, patch, mended):
    page = incident(seed)
    page.patch(build(seed).text.splitlines().index(sound) + 1, patch)
    said = page.run()
    assert page.mended == mended, said
    assert said.startswith("the job ends as last night:") == mended


def test_another_order_excuses_nothing_else():
    page = incident(4)
    page.patch(56, "    sampler.set_epoch(epoch + 1)")
    page.patch(58, "        loss = cross_entropy(net(x.to(device)), y.to(device))")
    assert "ended with other weights" in page.run() and not page.mended
    page.patch({58: "        loss = cross_entropy(model(x.to(device)), y.to(device)) / 100"})
    assert "ended with other weights" in page.run() and not page.mended


@pytest.mark.parametrize(("seed", "error"), [("7", TypeError), (0, ValueError), (True, TypeError)])
def test_what_is_no_number_of_an_incident_is_refused(seed, error):
    with pytest.raises(error):
        incident(seed)


def test_of_a_traceback_the_librarys_frames_are_left_out():
    said = """[rank1]:   File "train.py", line 59, in <module>
[rank1]:     loss.backward()
[rank1]:   File "/home/me/lib/python3.11/site-packages/torch/_tensor.py", line 614, in backward
[rank1]:     torch.autograd.backward(
[rank1]:   File "/home/me/ddplab/vgpu/kernels.py", line 7, in call
[rank1]: IndexError: Target 99 is out of bounds.
"""
    left = incident_runs.LIBRARIES.sub(r"\1  …\n", said).splitlines()
    assert left == [*said.splitlines()[:2], "[rank1]:   …", said.splitlines()[-1]]


@pytest.mark.parametrize("slept", [0, 1.5])
def test_the_monitor_has_seconds_only_where_a_rank_slept(slept):
    before, now = (
        Outcome("ended", f"epoch 0: loss 1, accuracy 50%, {seconds} s", [{"slept": it}] * 2, [])
        for seconds, it in ((1.0, 0), (2.5, slept))
    )
    assert ("seconds in epochs" in monitor(before, now)) == bool(slept)

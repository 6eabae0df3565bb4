"""Nights on played servers: what each accident makes of the script as it was, and of the mended one."""

import json
import os
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest
import torch
import warm_kernels

from ddplab.course import night_job
from ddplab.course.holding import Board, moments
from ddplab.course.morning import compare, last_error
from ddplab.course.nights import ACCIDENTS, ADD, CUT, FILL, KILL, PREEMPT, Night, keep, night, patched, unwritten

FOLDER = Path(__file__).parents[2] / "lessons" / "5_torchrun"
SCRIPT = str(FOLDER / "tonight.py")
ALL = ["resume", "picked", "save", "meet", "learn"]
# what is played: the accidents, and which functions are mended
NIGHTS = {
    "killed": ([KILL], []),
    "preempted, full": ([PREEMPT, FILL], ["resume"]),
    "added, cut": ([ADD, CUT], ["resume", "picked", "save"]),
    "all five": ([KILL, FILL, PREEMPT, CUT, ADD], ALL),
}


@pytest.fixture(scope="module")
def mornings(tmp_path_factory):
    """What became of each night; all are played in one process, whose agents and ranks need not import torch anew."""
    folder = tmp_path_factory.mktemp("nights")
    cells = nbformat.read(FOLDER / "5.7_survive_the_night.ipynb", as_version=4).cells
    ours = [cell.source for cell in cells if "one-way" in cell.metadata.get("tags", [])]
    first = (
        "import os\n\nimport torch\nimport torch.distributed as dist\nfrom torch.nn.functional import cross_entropy\n"
    )
    (folder / "mended.py").write_text("\n\n".join([first, *ours]))
    order = {"script": SCRIPT, "functions": str(folder / "mended.py"), "nights": NIGHTS}
    (folder / "in").write_text(json.dumps(order))
    command = [sys.executable, "-m", "play_nights", str(folder / "in"), str(folder / "out")]
    with open(folder / "errors", "w") as errors:
        process = warm_kernels.launch_kernel(command, dict(os.environ), str(Path(__file__).parent), stderr=errors)
    assert process.wait() == 0, (folder / "errors").read_text()[-3000:]
    return {name: SimpleNamespace(**told) for name, told in json.loads((folder / "out").read_text()).items()}


def test_a_mended_script_survives_all_five_bit_for_bit(mornings):
    morning = mornings["all five"]
    assert morning.different == 0, morning.words
    assert morning.words[0] == "Steps 6 to 8 were trained again: that work was lost."
    said = [frame["said"] for frame in morning.frames]
    assert [it for it in said if it.startswith("Accident")] == [
        f"Accident: {name}, at step {step}"
        for name, step in zip(NIGHTS["all five"][0], (9, 15, 21, 27, 33), strict=True)
    ]
    assert "Rank 0 could not save; the disk holds step 11" in said and morning.frames[-1]["disk"] == "step 35"
    assert "Steps lost in all: 18." in morning.words


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "killed",
            ["Steps 5 to 8 were trained again", "the optimizer had lost its state", "320 of 768 images were never"],
        ),
        (
            "preempted, full",
            ["From step 6 on they differ: it was trained on other images.", "the checkpoint is broken"],
        ),
        (
            "added, cut",
            ["but 1 rank instead of 2: the gradient differs in its last digits", "its group lets it wait 30 minutes"],
        ),
    ],
)
def test_each_flaw_is_found_by_an_accident_and_told(mornings, name, words):
    morning = mornings[name]
    assert morning.different != 0 and all(word in " ".join(morning.words) for word in words), morning.words


def test_the_board_shows_who_holds_what(mornings):
    frames = mornings["all five"].frames
    first = next(frame for frame in frames if all(server["ranks"] for server in frame["servers"]))
    assert [server["store"] for server in first["servers"]] == [False, True]
    assert [(it["agent"], it["ranks"]) for it in first["servers"]] == [
        ("node 0 of 2", [[0, "runs"]]),
        ("node 1 of 2", [[1, "runs"]]),
    ]
    alone = next(frame for frame in frames if frame["said"] == "server1 is gone")["servers"]
    assert (alone[0]["agent"], alone[1]["agent"], alone[1]["ranks"]) == ("", "node 0 of 1", [[0, "runs"]])
    newcomer = [frame["servers"][1] for frame in frames if "hears of a newcomer" in frame["said"]][-1]
    assert newcomer["ranks"] == [[0, "stopped"]]


def test_the_board_shows_a_checkpoint_that_its_rank_did_not_live_to_tell_of(mornings):
    frames = mornings["preempted, full"].frames
    assert frames[-1]["disk"] == "a broken file"
    said = [frame["said"] for frame in frames]
    assert said.count(broke := "Rank 0 could not save; the disk holds a broken file") == 1
    assert said[said.index(broke) - 1].startswith("Accident: fill the disk")


def test_a_save_that_leaves_nothing_at_the_path_leaves_no_checkpoint(tmp_path, monkeypatch):
    told, path = [], tmp_path / "last.pt"
    monkeypatch.setattr(night_job, "note", lambda **line: told.append(line))
    night_job.saved(str(path))
    torch.save({"done": 5}, path)
    whole = path.read_bytes()
    for held in (b"", whole[: len(whole) // 2], whole):
        path.write_bytes(held)
        night_job.saved(str(path))
    assert [line["saved"] for line in told] == [-1, None, None, 5]
    frames = moments([], [{"time": n, "rank": 0, **line} for n, line in enumerate(told)])
    assert [frame["disk"] for frame in frames] == ["no checkpoint", "a broken file", "a broken file", "step 5"]


def test_an_accident_that_cannot_come_from_a_button_says_why(monkeypatch):
    tonight = Night(Path(SCRIPT).read_text(), None)
    assert tonight.cannot(CUT) == "only one server is there" and tonight.cannot(KILL) == "the ranks are still starting"
    tonight.board.asked.append(CUT)
    tonight.pressed()
    assert tonight.told[-1]["night"] == "cut the cable, which cannot come now: only one server is there"
    monkeypatch.setattr(Night, "here", [tonight.server1, tonight.server2])
    assert tonight.cannot(ADD) == "both servers are there"
    tonight.under_way = True
    assert tonight.cannot(ADD) == tonight.cannot(KILL) == "another accident is under way"
    tonight.folder.cleanup()
    for here in (tonight.server1, tonight.server2):
        shutil.rmtree(here.disk)


def test_functions_take_the_place_of_those_with_their_names():
    def picked(step, n):
        # of mine
        return [step]

    text = patched(Path(SCRIPT).read_text(), picked)
    assert (
        "    # of mine\n    return [step]" in text
        and "next(stream)" not in text
        and compile(text, "tonight.py", "exec")
    )

    def stolen():
        pass

    with pytest.raises(ValueError, match="the script has no function 'stolen'"):
        patched(text, stolen)


def test_a_mended_script_is_kept_beside_the_flawed_one_and_what_has_changed_is_told(tmp_path):
    def meet(patience):
        return 3

    def save(state, path): ...

    (tmp_path / "job.py").write_text(
        "import os\n\n\ndef meet(patience):\n    pass\n\n\ndef save(state, path):\n    pass\n"
    )
    told = keep(f"{tmp_path}/job.py", meet, save)
    assert told.splitlines()[:4] == [f"saved: {tmp_path}/job_mended.py", "@@ -5 +5 @@", "-    pass", "+    return 3"]
    assert (tmp_path / "job_mended.py").read_text().count("    pass") == 1


def test_a_function_that_is_not_written_yet_is_seen():
    def save(state, path):
        """Of the lesson."""
        # your turn: 3 to 6 lines
        ...

    def meet(patience):
        return 3

    assert unwritten(save) and not unwritten(meet)


SCREEN = """\
W1122 agent: restarting
[rank1]: Traceback (most recent call last):
[rank1]:   File "/tmp/x/tonight.py", line 77, in <module>
[rank1]:     main(f"{sys.argv[1]}/last.pt")
[rank1]:   File "/tmp/x/tonight.py", line 26, in resume
[rank1]:     optimizer.load_state_dict(saved["optim"])
[rank1]:                               ~~~~~^^^^^^^^^
[rank1]: KeyError: 'optim'
[rank0]: Traceback (most recent call last):
[rank0]:   File "/tmp/x/tonight.py", line 60, in main
[rank0]:     learn(model, IMAGES[numbers], LABELS[numbers], rank, size)
[rank0]: RuntimeError: [pair.cc:553] Connection closed by peer [127.0.0.1]:15795
Traceback (most recent call last):
  File "torch/distributed/run.py", line 900, in main
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
"""


def test_the_morning_names_the_error_of_a_rank_and_not_that_it_lost_another(tmp_path):
    said = """KeyError: 'optim', in resume: optimizer.load_state_dict(saved["optim"])"""
    assert last_error(SCREEN) == said and last_error("") == ""
    assert last_error(SCREEN.replace("[rank1]: ", "")) == said, "before it has joined, torch names no rank"
    words = compare([], [], {}, "", tmp_path, SCREEN).words
    assert words[-1] == f"Why: torchrun had no restart left. The last rank died of {said}"
    full = SCREEN.replace("in resume", "in save").replace("KeyError: 'optim'", "RuntimeError: unexpected pos 9 vs 8")
    assert not last_error(SCREEN, "save")
    words = compare([line(saved=None)], [], {}, "", tmp_path, full + SCREEN).words
    assert words[-1].startswith("Rank 0 had died of RuntimeError: unexpected pos 9 vs 8, in save: ")


def test_an_accident_of_the_plan_comes_when_it_has_waited_for_its_button(monkeypatch):
    monkeypatch.setattr("ddplab.course.nights.calm", lambda text: ())
    monkeypatch.setattr("ddplab.course.nights.compare", lambda *_: "")
    tonight, done = Night(Path(SCRIPT).read_text(), [KILL], press=True), []
    tonight.start = lambda *servers: None  # nothing is typed: only the order of what happens is looked at
    tonight.until = lambda *_: True
    tonight.wait_for_a_press = lambda: done.append("waited")
    tonight.come = lambda *which: done.append(which)
    tonight.play()
    assert done == ["waited", (KILL, 0, 9)]


def test_no_accident_comes_to_a_job_that_has_ended(monkeypatch):
    monkeypatch.setattr("ddplab.course.nights.calm", lambda text: ())
    monkeypatch.setattr("ddplab.course.nights.compare", lambda *_: "")
    tonight, come = Night(Path(SCRIPT).read_text(), [CUT]), []
    tonight.start = lambda *servers: None  # whatever it was has ended at once, with no rank and no diary
    tonight.come = lambda *which: come.append(which)
    tonight.play()
    assert come == []


@pytest.mark.parametrize("accidents", [["rain"], [CUT, CUT], [ADD, ADD], [*ACCIDENTS, KILL]])
def test_an_accident_that_cannot_come_is_refused(accidents):
    with pytest.raises(ValueError, match=r"accidents|cable"):
        Night(Path(SCRIPT).read_text(), accidents)


def test_an_accident_of_the_plan_waits_for_its_button_or_for_the_next_night():
    tonight = Night(Path(SCRIPT).read_text(), [KILL], press=True)
    asked = []
    tonight.until = lambda true, seconds: asked.append(true())
    assert tonight.board.buttons == [KILL] and tonight.plan == [(KILL, 9)]
    tonight.wait_for_a_press()
    tonight.board.asked.append(KILL)
    tonight.wait_for_a_press()
    assert not tonight.board.pressed(), "a press is for one accident"
    tonight.hurry.set()
    tonight.wait_for_a_press()
    assert asked == [False, True, True]
    alone = Night(Path(SCRIPT).read_text(), [KILL])
    assert not alone.buttons
    for it in (tonight, alone):  # neither is played, so none of them tidies up
        it.folder.cleanup()
        for here in (it.server1, it.server2):
            shutil.rmtree(here.disk)


def test_without_anybody_to_press_a_button_nothing_is_played(capsys):
    assert night(SCRIPT) is None
    said = capsys.readouterr().out
    assert all(name in said for name in ACCIDENTS)


def line(**told):
    return {"rank": 0, "pid": 1, "size": 2, **told}


def test_what_was_never_trained_is_told(tmp_path):
    calm = [line(step=n, weights="a", momentum="b") for n in range(36)]
    calm += [line(trained=n, images=[n], after="c") for n in range(36)]
    mine = [it for it in calm if it.get("step", it.get("trained")) < 3]
    mine += [line(step=5, pid=2, weights="x", momentum="b"), line(trained=5, pid=2, images=[5], after="d")]
    morning = compare(mine, calm, {}, "", tmp_path)
    assert morning.different is None and morning.words == [
        "Steps 3 to 4 were never trained.",
        "After step 5 nothing was trained any more.",
        "Why: torchrun had no restart left.",
        "From step 5 on they differ: it began with other weights.",
    ]


@pytest.mark.parametrize(
    ("saved", "head"),
    [
        ([29, 35], "✓ All 3 weights are those of the calm night, bit for bit."),
        ([29, 29], "✗ The last weights are gone: their save failed, and the disk holds step 29."),
        ([29, None], "✗ The last weights are gone: their save failed, and the disk holds half a checkpoint."),
    ],
)
def test_the_morning_counts_only_what_the_disk_holds(tmp_path, saved, head):
    """A disk that fills up last: the job trains on to the end, and no save of it succeeds any more."""
    (tmp_path / "night").mkdir()
    torch.save({"net": torch.ones(3)}, tmp_path / "night" / "weights0")
    said = str(compare([line(saved=step) for step in saved], [], {"net": torch.ones(3)}, "", tmp_path)).splitlines()
    assert said == [head, *["  They were those of the calm night, bit for bit."] * (saved[-1] != 35)]


def server(name, *said):
    return SimpleNamespace(name=name, diary=[{"time": n, "said": it} for n, it in enumerate(said)])


def test_a_death_is_a_moment():
    met = "[default] Rendezvous complete for workers. Result:\n group_rank=0\n group_world_size=1\n global_ranks=[0, 1]"
    failed = "[default] Worker group FAILED. 3/3 attempts left; will restart worker group"
    frames = moments([server("gpu01", "typed", met, failed, "switched off")])
    assert [frame["servers"][0]["ranks"] for frame in frames[1:]] == [
        [[0, "runs"], [1, "runs"]],
        [[0, "died"], [1, "died"]],
        [],
    ]
    assert frames[2]["said"] == "gpu01's agent finds its rank dead, and starts anew; 2 restarts left"
    assert str(Board([server("gpu01", "typed")])) == " 0  On gpu01 torchrun is typed"

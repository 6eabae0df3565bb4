"""Promises 6 and 7: a rank that raises, dies or hangs is named, with the learner's line; all is kept, all is ended."""

import os
import signal
import threading
import time

import pytest
import torch
import torch.distributed as dist
from failures import FAILURES, diagnosis
from leftovers import ranks_alive
from torch.nn.parallel import DistributedDataParallel as DDP

from ddplab import RankError, RankTimeoutError, launch, log
from ddplab.diagnosis import learners, mismatch, parse_stacks, waits_in

# ------------------------------------------------------------------ 6. a rank that raises


def fails(fn, **options) -> RankError:
    with pytest.raises(RankError) as caught:
        launch(fn, quiet=True, **options)
    assert not ranks_alive()
    return caught.value


def test_the_message_is_the_ranks_own_traceback_cut_to_the_learners_code():
    def inner(x):
        return torch.nn.functional.linear(x, torch.ones(2, 2))  # a library frame below this line

    def outer():
        return inner(torch.ones(3, 3))

    error = fails(outer)
    assert error.rank == 0 and error.type_name == "RuntimeError" and "shapes cannot be multiplied" in error.reason
    lines = str(error).splitlines()
    assert lines[0].startswith("rank 0 raised RuntimeError: ")
    assert any(line.strip().startswith("test_diagnosis.py, line ") and line.endswith("in outer") for line in lines)
    assert "    --> return torch.nn.functional.linear(x, torch.ones(2, 2))  # a library frame below this line" in lines
    assert "site-packages" not in str(error) and "worker.py" not in str(error)
    assert "site-packages" in error.traceback or "worker.py" in error.traceback  # the whole is there to be asked for


def test_what_came_back_is_on_the_error():
    def train():
        log(loss=1.0)
        print("so far", dist.get_rank())
        if dist.get_rank() == 1:
            time.sleep(0.2)  # rank 0 has returned by then
            raise ValueError("enough")
        return "done"

    error = fails(train)
    assert error.run.state == "failed" and error.run.error is error
    assert error.run.results == ["done", None] and len(error.run.metrics) == 2
    assert error.run.output == {0: "so far 0\n", 1: "so far 1\n"}
    assert "rank 0 had finished" in str(error)


@pytest.mark.times(3, stress=50)
@pytest.mark.parametrize("guilty", [0, 1, 2])
def test_the_first_to_fail_is_blamed_never_its_victims(guilty, times):
    def train():
        if dist.get_rank() == guilty:
            raise KeyError("mine")
        for _ in range(100):
            dist.all_reduce(torch.ones(1))

    for _ in times:
        error = fails(train, nproc_per_node=3)
        assert error.rank == guilty and error.type_name == "KeyError"
        assert str(error).count("was stopped") == 2


def test_a_victim_that_wraps_its_error_is_still_a_victim():
    def train():
        if dist.get_rank() == 0:
            time.sleep(0.1)
            raise ValueError("the cause")
        try:
            dist.barrier()
        except RuntimeError as error:
            raise RuntimeError(f"my own words: {error}") from error

    assert fails(train).reason == "the cause"


@pytest.mark.times(3, stress=50)
def test_ranks_that_raise_the_same_are_told_as_one(times):
    for _ in times:
        error = fails(lambda: 1 / 0, nproc_per_node=3)
        assert error.rank == 0 and str(error).splitlines()[-2:] == ["rank 1 raised the same", "rank 2 raised the same"]


@pytest.mark.parametrize(
    ("die", "words"),
    [
        (lambda: os._exit(0), "rank 1 left with exit status 0 before it had returned"),
        (lambda: os._exit(7), "rank 1 left with exit status 7"),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "rank 1 was killed by SIGKILL"),
        (lambda: os.kill(os.getpid(), signal.SIGSEGV), "rank 1 was killed by SIGSEGV"),
        (lambda: os.abort(), "rank 1 was killed by SIGABRT"),
        (lambda: exit(3), "rank 1 raised SystemExit: 3"),
    ],
)
def test_a_rank_that_dies_is_named(die, words):
    def train():
        if dist.get_rank() == 1:
            die()
        dist.barrier()

    error = fails(train)
    assert error.rank == 1 and str(error).startswith(words), str(error)


def test_exit_0_without_an_answer_is_a_failure_when_everybody_does_it():
    assert "left with exit status 0 before it had returned" in str(fails(lambda: os._exit(0)))


def test_an_unpicklable_exception_is_reported_all_the_same():
    class Odd(Exception):
        def __init__(self):
            self.lock = time  # modules do not pickle everywhere; the report is text
            super().__init__("odd", (i for i in range(2)))

    def train():
        raise Odd

    assert fails(train).type_name == "Odd"


def test_endless_recursion_is_told_in_a_few_lines():
    def again(n):
        return again(n + 1)

    text = str(fails(lambda: again(0)))
    assert "RecursionError" in text and "calls more" in text and len(text.splitlines()) < 30


def test_causes_notes_and_groups_are_told():
    def caused():
        try:
            {}["key"]
        except KeyError as error:
            raise RuntimeError("no such setting") from error

    def noted():
        error = ValueError("bad row")
        error.add_note("in file 7")
        raise error

    def grouped():
        raise ExceptionGroup("two things", [ValueError("one"), TypeError("two")])

    assert "caused by KeyError: 'key'" in str(fails(caused))
    assert "in file 7" in str(fails(noted))
    assert "holds ValueError: one\n  holds TypeError: two" in str(fails(grouped))


def test_a_crash_names_the_line():
    def crash():
        if dist.get_rank() == 1:
            os.abort()
        dist.barrier()

    with pytest.raises(RankError) as caught:
        launch(crash, quiet=True, device="cpu")
    text = str(caught.value)
    assert "rank 1 was killed by SIGABRT" in text and "--> os.abort()" in text
    assert "rank 0 was stopped in barrier at test_diagnosis.py, line " in text


# ------------------------------------------------------------------ 7. a hang


def hangs(fn, **options) -> RankTimeoutError:
    with pytest.raises(RankTimeoutError) as caught:
        launch(fn, quiet=True, timeout=options.pop("timeout", 1), **options)
    assert isinstance(caught.value, TimeoutError) and caught.value.run.state == "timed out"
    assert not ranks_alive()
    return caught.value


def test_a_rank_that_never_comes_is_named_with_everybodys_line():
    def train():
        log(step=0)
        if dist.get_rank() == 1:
            time.sleep(1000)
        dist.all_reduce(torch.ones(1))

    error = hangs(train, nproc_per_node=3)
    text = str(error)
    assert "ranks 0 and 2 wait in all_reduce for rank 1, which never came" in text
    assert text.count("waits in all_reduce at test_diagnosis.py, line ") == 2
    assert "--> dist.all_reduce(torch.ones(1))" in text and "--> time.sleep(1000)" in text
    assert error.rank == 1 and len(error.run.metrics) == 3


def test_a_rank_that_returned_too_early_is_named():
    def train():
        if dist.get_rank() == 0:
            return "early"
        dist.barrier()

    error = hangs(train)
    assert "rank 1 waits in barrier for rank 0, which never came" in str(error)
    assert "rank 0 has returned" in str(error) and error.run.results == ["early", None]


def test_a_wait_for_what_was_begun_is_a_wait_in_a_collective():
    def train():
        if dist.get_rank() == 0:
            work = dist.all_reduce(torch.ones(1), async_op=True)
            work.wait()

    text = str(hangs(train))
    assert "rank 0 waits in wait() for rank 1, which never came" in text and "--> work.wait()" in text


def test_any_other_wait_is_none():
    def train():
        if dist.get_rank() == 0:
            threading.Event().wait()
        dist.barrier()

    text = str(hangs(train))
    assert "rank 0 is not in a collective" in text and "rank 1 waits in barrier for rank 0, which never came" in text


def test_different_collectives_are_named():
    def train():
        if dist.get_rank() == 0:
            dist.broadcast(torch.ones(1), src=1)
        else:
            dist.recv(torch.ones(1), src=0)

    text = str(hangs(train))
    assert "the ranks wait in different calls" in text
    assert "rank 0 waits in broadcast" in text and "rank 1 waits in recv" in text


def test_ddps_backward_is_named():
    def train():
        model = DDP(torch.nn.Linear(2, 2))
        for _ in range(2 - dist.get_rank()):  # rank 1 has one batch less
            model(torch.ones(1, 2)).sum().backward()

    text = str(hangs(train))
    assert "rank 0 waits in" in text and "rank 1 has returned" in text


def test_init_process_group_is_named():
    def train():
        if dist.is_initialized() or int(os.environ["RANK"]) == 1:
            time.sleep(1000)
        dist.init_process_group("gloo")

    assert "rank 0 waits in init_process_group for rank 1" in str(hangs(train, init=False))


def test_progress_holds_the_timeout_off():
    def slow_but_alive():
        for step in range(8):
            time.sleep(0.4)
            log(step=step) if dist.get_rank() == 0 else None
        return "done"

    assert launch(slow_but_alive, timeout=1.5, quiet=True).results == ["done", "done"]


def test_a_rank_stuck_in_a_loop_is_ended():
    def loop():
        while True:
            pass

    assert "no rank is in a collective" in str(hangs(loop))


def test_a_rank_that_ignores_sigterm_is_ended():
    def stubborn():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(1000)

    hangs(stubborn)


def test_a_message_and_a_barrier_that_wait_for_each_other():
    """Messages between two ranks are not on the flight recorder's list of collectives: the stacks tell."""

    def cross():
        if dist.get_rank() == 0:
            dist.recv(torch.zeros(1), src=1)
        dist.barrier()

    with pytest.raises(RankError, match="wait in different calls, each for the others") as raised:
        launch(cross, timeout=2, quiet=True, device="cpu")
    assert "rank 0 waits in recv" in str(raised.value) and "rank 1 waits in barrier" in str(raised.value)


# ------------------------------------------------------------------ every failure of Part 6, once


@pytest.mark.parametrize("name", FAILURES)
def test_each_failure_gets_the_right_diagnosis(name):
    said = diagnosis(FAILURES[name], timeout=2)
    assert all(words in said for words in FAILURES[name].words), said
    assert not ranks_alive()


# ------------------------------------------------------------------ reading stacks and records


def test_stacks_are_read_for_the_right_thread():
    text = (
        'Thread 0x00000000000000aa (most recent call first):\n  File "/a.py", line 3 in inner\n'
        '  File "/a.py", line 9 in <module>\n\nCurrent thread 0x00000000000000bb (most recent call first):\n'
        '  File "/b.py", line 1 in other\n'
    )
    assert parse_stacks(text, 0xAA) == [("/a.py", 9, "<module>"), ("/a.py", 3, "inner")]
    assert parse_stacks(text, 0xCC) == []
    frames = [("/cell.py", 1, "f"), ("/x/torch/distributed/distributed_c10d.py", 5, "gather")]
    assert waits_in(frames) == "gather" and waits_in(frames[:1]) is None


def test_library_and_own_frames_are_not_the_learners():
    mine = (__file__, 1, "f")
    assert learners([(torch.__file__, 1, "f"), (os.__file__, 1, "g"), ("<string>", 1, "h"), mine]) == [mine]


def calls(*named, shapes=((1,),), group="0"):
    return [{"group": group, "number": n, "name": name, "shapes": shapes, "frames": []} for n, name in enumerate(named)]


class Ranks:
    """As much of a Run as `mismatch` reads: what each rank wrote down of its collectives."""

    def __init__(self, *per_rank):
        self.per_rank, self.world_size = per_rank, len(per_rank)

    def read(self, rank, kind):
        return self.per_rank[rank]


def test_the_first_collective_that_differs_is_found():
    same, other = calls("barrier", "all_reduce", "gather"), calls("barrier", "all_reduce", "barrier")
    assert mismatch(Ranks(same, same)) is None
    found = mismatch(Ranks(same, same, other))
    assert {rank: call["name"] for rank, call in found.items()} == {0: "gather", 1: "gather", 2: "barrier"}
    assert mismatch(Ranks(same, same[:1])) is None  # that one is behind: it may still come
    assert mismatch(Ranks(same, None)) is None  # that one could not say


def test_shapes_are_compared_where_they_must_agree():
    two, three = [[2]], [[3]]
    assert mismatch(Ranks(calls("broadcast", shapes=two), calls("broadcast", shapes=three)))
    assert mismatch(Ranks(calls("scatter", shapes=[]), calls("scatter", shapes=two))) is None  # only the source gives


def test_groups_are_counted_each_for_itself():
    mine, yours = calls("all_reduce", group="1"), calls("barrier", group="2")
    assert mismatch(Ranks(mine, yours)) is None


def test_the_debug_level_of_the_moment_reaches_the_ranks(monkeypatch):
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "DETAIL")  # after the forkserver has imported torch

    def train():
        torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))  # crashes in torch 2.13 when it says "gloo"
        return str(dist.get_debug_level())

    assert launch(train, quiet=True, device="cpu").results == ["DebugLevel.DETAIL"] * 2


@pytest.mark.parametrize(("of", "said"), [(torch.float64, r"\(3\) and dtype Double"), (torch.float32, r"\(4\)")])
def test_what_torch_finds_is_told_with_what_differs(monkeypatch, of, said):
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "DETAIL")

    def train():
        first = torch.ones(3)
        other = torch.ones(3 + (of is first.dtype), dtype=of)
        dist.all_reduce(other if dist.get_rank() else first)

    with pytest.raises(RankError, match=rf"torch found: allreduce of shape \(3\).* on rank 0, .*{said} on rank 1"):
        launch(train, quiet=True, device="cpu")


def test_the_construction_of_ddp_is_told_from_its_forward_pass():
    ddp = "/x/torch/nn/parallel/distributed.py"
    assert waits_in([("/c.py", 1, "f"), (ddp, 1, "__init__"), (ddp, 2, "_helper")]) == "the construction of DDP"
    assert waits_in([("/c.py", 1, "f"), (ddp, 1, "forward"), (ddp, 2, "_sync")]) == "the forward pass of DDP"

"""Does every failure of Part 6 end with the right diagnosis, every time, and leave no process behind?

    python stress/failures.py                          # each failure 20 times
    python stress/failures.py --times 3 slow_rank ...  # these, three times

Each function below fails on purpose on two ranks, as those of Part 6 do. Above it stand the words that the
diagnosis must contain. `tests/test_diagnosis.py` runs each once. Exit status 0: all were right, nothing was left.
"""

import argparse
import datetime
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple
from unittest import mock

import psutil
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

from ddplab import RankError, launch
from ddplab.vgpu import virtual_gpus

# A name server that does not answer would otherwise add seconds, here and there.
os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")


class Failure(NamedTuple):
    """A function that fails, what its diagnosis must say, and how it is launched."""

    fn: Callable[[], Any]
    words: tuple[str, ...]
    init: bool
    debug: str


FAILURES: dict[str, Failure] = {}


def fails(*words: str, init: bool = True, debug: str = "OFF") -> Callable:
    """Add the function below to FAILURES. debug: what TORCH_DISTRIBUTED_DEBUG is."""

    def add(fn: Callable[[], Any]) -> Callable[[], Any]:
        FAILURES[f"{fn.__name__}_{debug.lower()}" if debug != "OFF" else fn.__name__] = Failure(fn, words, init, debug)
        return fn

    return add


def diagnosis(failure: Failure, timeout: float) -> str:
    """Let it fail; return what the error says. "" when it did not fail."""
    with mock.patch.dict(os.environ, TORCH_DISTRIBUTED_DEBUG=failure.debug):
        try:
            launch(failure.fn, init=failure.init, device="cpu", quiet=True, timeout=timeout)
        except RankError as error:
            return str(error)
    return ""


# ------------------------------------------------------------------ the ranks do not match


@fails("rank 0 waits in all_reduce for rank 1, which never came", "rank 1 has returned")
def skips_a_collective():
    if dist.get_rank() == 0:
        dist.all_reduce(torch.ones(1))


@fails("the ranks call different collectives: all_reduce on rank 0, barrier on rank 1", "in skips_and_goes_on")
def skips_and_goes_on():
    if dist.get_rank() == 0:
        dist.all_reduce(torch.ones(1))
    dist.barrier()


@fails("the ranks call different collectives: all_reduce on rank 0, broadcast on rank 1", "in different_order")
@fails("torch found: all_reduce on rank 0, broadcast on rank 1", "in different_order", debug="DETAIL")
def different_order():
    if dist.get_rank() == 0:
        dist.all_reduce(torch.ones(1))
    dist.broadcast(torch.ones(1), src=0)
    if dist.get_rank() == 1:
        dist.all_reduce(torch.ones(1))


@fails("the ranks call all_reduce with different shapes: (2,) on rank 0, (3,) on rank 1", "rank 0 has returned")
@fails("torch found: allreduce of shape (2) on rank 0, allreduce of shape (3) on rank 1", debug="DETAIL")
def different_shapes():
    dist.all_reduce(torch.ones(2 + dist.get_rank()))


@fails("torch found: allreduce of shape (2, 3) on rank 0, allreduce of shape (3, 2) on rank 1", debug="DETAIL")
def transposed():  # without DETAIL nobody notices: as many numbers, in another order
    x = torch.ones(2, 3)
    dist.all_reduce(x if dist.get_rank() == 0 else x.T.contiguous())


@fails("rank 0 was killed by SIGABRT", "in all_reduce at", "collective mismatch", "TORCH_DISTRIBUTED_DEBUG=DETAIL")
def different_sizes():
    dist.all_reduce(torch.ones(2000 + 1000 * dist.get_rank()))


@fails("rank 0 waits in backward for rank 1, which never came", "rank 1 has returned")
@fails("rank 0 waits in backward for rank 1, which never came", "rank 1 has returned", debug="DETAIL")
def uneven_last_batch():
    model = DDP(torch.nn.Linear(2, 2))
    for _ in range(3 - dist.get_rank()):
        model(torch.ones(1, 2)).sum().backward()


def rank_0_evaluates(evaluate):
    model = DDP(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2)))
    for _ in range(3):
        model(torch.ones(4, 2)).sum().backward()
        if dist.get_rank() == 0:
            evaluate(model.eval())
            model.train()


@fails("rank 1 was killed by SIGABRT", "the forward pass of DDP", "collective mismatch", "DEBUG=DETAIL")
@fails("rank 0 is in the forward pass of DDP at", "in evaluate", debug="DETAIL")
def evaluation_on_rank_0_alone():
    def evaluate(model):
        with torch.no_grad():
            model(torch.ones(4, 2))

    rank_0_evaluates(evaluate)


@fails("the ranks call different collectives: broadcast on rank 0, all_reduce on rank 1",
       "out of step since these calls", "in evaluate")  # fmt: skip
@fails(
    "the forward pass of DDP on rank 0, backward on rank 1",
    "out of step since these calls",
    "in evaluate",
    debug="DETAIL",
)
def evaluation_with_gradients_on_rank_0_alone():
    def evaluate(model):
        model(torch.ones(4, 2))

    rank_0_evaluates(evaluate)


@fails("rank 0 waits in barrier for rank 1, which never came", "rank 1 is not in a collective", "in slow_rank")
def slow_rank():
    if dist.get_rank() == 1:
        time.sleep(60)
    dist.barrier()


@fails("rank 0 raised RuntimeError: ", "Timed out waiting 1000ms", "rank 1 was stopped at", init=False)
def torchs_own_timeout():
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=1))
    if dist.get_rank() == 1:
        time.sleep(60)
    dist.all_reduce(torch.ones(1))


@fails("[Rank 0]: Rank 1 failed to pass monitoredBarrier", "rank 1 was stopped at", "in late_for_a_monitored_barrier")
def late_for_a_monitored_barrier():
    if dist.get_rank() == 1:
        time.sleep(60)
    dist.monitored_barrier(timeout=datetime.timedelta(seconds=1))


# ------------------------------------------------------------------ they never begin


@fails("rank 0 waits in init_process_group for rank 1, which never came", "rank 1 has returned", init=False)
def init_waits_for_a_rank():
    if os.environ["RANK"] == "0":
        dist.init_process_group("gloo")


@fails("hint: rank 1 never came to init_process_group()", init=False)
def init_times_out():
    if os.environ["RANK"] == "1":
        time.sleep(60)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=1))


@fails("all 2 ranks are in init_process_group, which waits for more: is world_size too large", init=False)
def world_size_too_large():
    dist.init_process_group("gloo", rank=int(os.environ["RANK"]), world_size=3)


@fails("waited for rank 2, and this run has ranks 0 to 1: is world_size larger", init=False)
def world_size_too_large_times_out():
    second = datetime.timedelta(seconds=1)
    dist.init_process_group("gloo", rank=int(os.environ["RANK"]), world_size=3, timeout=second)


@fails("rank 1 raised RuntimeError: ", "rank < size. 1 vs 1", "hint: world_size is smaller", init=False)
def world_size_too_small():
    dist.init_process_group("gloo", rank=int(os.environ["RANK"]), world_size=1)


@fails("rank 0 raised DistNetworkError: ", "EADDRINUSE", "rank 1 raised the same", init=False)
def port_in_use():
    del os.environ["TORCHELASTIC_USE_AGENT_STORE"]  # each rank for itself, at the port where the launch listens
    dist.init_process_group("gloo", rank=0, world_size=1)


# ------------------------------------------------------------------ a rank crashes


@fails("rank 1 raised ValueError: a bad row", "rank 0 was stopped")
def one_rank_raises():
    if dist.get_rank() == 1:
        raise ValueError("a bad row")
    dist.barrier()


@fails("rank 1 raised RuntimeError: ", "can't allocate memory", "in out_of_memory")
def out_of_memory():
    if dist.get_rank() == 1:
        torch.empty(2**60, dtype=torch.uint8)
    dist.barrier()


@fails("rank 1 was killed by SIGKILL (often the machine ran out of memory)", "rank 0 was stopped")
def killed():
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()


@fails("rank 0 raised RuntimeError: Expected to have finished reduction", "find_unused_parameters=True")
def unused_parameters():
    net = torch.nn.ModuleList([torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)])
    net.forward = lambda x: net[0](x)
    model = DDP(net)
    for _ in range(2):
        model(torch.ones(1, 2)).sum().backward()


@fails("rank 0 raised RuntimeError: Expected all tensors to be on the same device", "in device_mismatch")
def device_mismatch():
    with virtual_gpus(2):
        torch.nn.Linear(2, 2).to("vgpu:0")(torch.ones(1, 2).to("vgpu:1"))


# ------------------------------------------------------------------ all of them, often


def left_behind() -> list[int]:
    """The processes that descend from this one, less multiprocessing's own two."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            # a rank is a fork of the forkserver and looks like it, but it has a session of its own
            server = "multiprocessing" in " ".join(process.cmdline()) and os.getsid(process.pid) == os.getsid(0)
            if not server and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except (psutil.NoSuchProcess, ProcessLookupError):
            pass
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(FAILURES), help="failures; all of them by default")
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--timeout", type=float, default=2, help="of each launch, in seconds")
    asked = parser.parse_args()
    bad = 0
    for name in asked.names:
        right, left, start = 0, set(), time.perf_counter()
        for _ in range(asked.times):
            said = diagnosis(FAILURES[name], asked.timeout)
            if missing := [words for words in FAILURES[name].words if words not in said]:
                print(f"\n{name}: {missing} not in\n{said}\n", flush=True)
            right += not missing
            left.update(left_behind())
        bad += (asked.times - right) + len(left)
        seconds = (time.perf_counter() - start) / asked.times
        print(
            f"{name:<34}{right:>3} of {asked.times} right, {len(left)} processes left, {seconds:.1f} s each", flush=True
        )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())

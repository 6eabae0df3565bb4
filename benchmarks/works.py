"""The two works that benchmarks/launch.py gives to every launcher. Importable, since `mp.spawn` can start nothing else.

As a script (`torchrun works.py all_reduce FOLDER`) each rank leaves its result in FOLDER.
"""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

RANKS = 2
SETTLE = 0.05  # seconds: see ddp()


def join_group() -> bool:
    """Initialise the process group from the environment, unless the launcher has done so. Returns True if we did."""
    if dist.is_initialized():
        return False
    dist.init_process_group("gloo")
    return True


def all_reduce() -> float:
    """One all-reduce of rank + 1 over two ranks: every rank returns 3.0."""
    ours = join_group()
    total = torch.tensor([dist.get_rank() + 1.0])
    dist.all_reduce(total)
    if ours:
        dist.destroy_process_group()
    return total.item()


def ddp() -> float:
    """Wrap a small model in DDP and train it for five steps: every rank returns the same sum of the weights.

    Ended at once, such a job can hang or abort in gloo's teardown (see stress/endurance.py). Where the launcher
    does not see to that, the rank waits SETTLE seconds first. The ratios leave those seconds out.
    """
    ours = join_group()
    torch.manual_seed(dist.get_rank())
    model = DDP(torch.nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.randn(32, 64)).pow(2).mean().backward()
        optimizer.step()
    result = round(sum(p.sum().item() for p in model.parameters()), 6)
    if "DDPLAB_RUN_DIR" not in os.environ:
        time.sleep(SETTLE)
    if ours:
        del model, optimizer
        dist.destroy_process_group()
    return result


WORKS = {"all_reduce": all_reduce, "ddp": ddp}


def leave_result(work: str, folder: str) -> None:
    """Run a work and write its result to FOLDER/RANK, for the launchers that throw it away."""
    result = WORKS[work]()
    Path(folder, os.environ["RANK"]).write_text(repr(result))


def as_rank(rank: int, work: str, port: int, results) -> None:
    """Run a work as one process of `start_processes` or `mp.spawn`, which set no environment variables."""
    environment = {"RANK": rank, "WORLD_SIZE": RANKS, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in environment.items()})
    results.put((rank, WORKS[work]()))


if __name__ == "__main__":
    leave_result(*sys.argv[1:])

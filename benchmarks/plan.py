"""What `ddplab.course.plan` predicts beside what is measured: 1 to 4 ranks here, and published results.

    python benchmarks/plan.py

Aims: here, a step with DDP within 25 % of the prediction; of the published efficiencies that the
plan was not made with, three of four within 10 %.

The machine is calibrated with all-reduces on 2, 3 and 4 ranks, with a step on one rank, without DDP, and with the same
step on four ranks that do not talk, which tells how many cores they have between them. DDP's step is then predicted and
measured. All of it is done in rounds, in turns, and the quickest of the rounds count: wait for a quiet machine.
"""

import os
import statistics
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from ddplab import launch
from ddplab.course.plan import Machine, fit_link, step, time_all_reduce
from ddplab.course.published import FITTED, HELD_OUT
from ddplab.hardware import cpu_cores

RANKS, ROUNDS, STEPS, BATCH, WIDTH = (1, 2, 3, 4), 5, 8, 256, 1024


def model() -> nn.Module:
    """Three layers, 2.2 million parameters, 8.7 MB of gradients."""
    return nn.Sequential(nn.Linear(64, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))


def median_step(wrap: bool) -> float:
    """Seconds of the median of a few training steps on this rank."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    net = DDP(model()) if wrap else model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    x, y = torch.randn(BATCH, 64), torch.randint(0, WIDTH, (BATCH,))
    seconds = []
    for _ in range(STEPS):
        start = time.perf_counter()
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimizer.step()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def run(function: object, *args: object, ranks: int) -> list:
    """One quiet launch on the CPU, whatever else the machine has."""
    return launch(function, *args, nproc_per_node=ranks, device="cpu", quiet=True).results


def main() -> None:
    alone, together, timings, measured = [], [], {}, {ranks: [] for ranks in RANKS}
    for _ in range(ROUNDS):
        alone.append(run(median_step, False, ranks=1)[0])
        together.append(statistics.mean(run(median_step, False, ranks=max(RANKS))))
        for ranks in RANKS:
            measured[ranks].append(max(run(median_step, True, ranks=ranks)))
            if ranks > 1:
                for n, size, seconds in run(time_all_reduce, ranks=ranks)[0]:
                    timings[n, size] = min(seconds, timings.get((n, size), seconds))
    cores = min(cpu_cores(), max(RANKS) * min(alone) / min(together))
    link = fit_link([(*key, seconds) for key, seconds in timings.items()], cores=cores)
    here = Machine("here", gpus=max(RANKS), within=link, cores=cores)
    size = 4 * sum(p.numel() for p in model().parameters())
    print(f"torch {torch.__version__}, {cpu_cores()} cores, worth {cores:.2f}, load {os.getloadavg()[0]:.1f}")
    print(f"alpha {link.alpha * 1e6:.0f} us, {link.bandwidth / 1e9:.2f} GB/s, step alone {min(alone) * 1e3:.1f} ms")
    print(f"\n{'ranks':>5}{'measured ms':>13}{'predicted ms':>14}{'predicted / measured':>22}")
    for ranks in RANKS:
        seen, planned = min(measured[ranks]), step(min(alone), size, ranks, here).seconds
        print(f"{ranks:5}{seen * 1e3:13.1f}{planned * 1e3:14.1f}{planned / seen:22.2f}")
    for name, rows in (("the plan was made with", FITTED), ("the plan was not made with", HELD_OUT)):
        print(f"\npublished, {name}", *rows, sep="\n")


if __name__ == "__main__":
    main()

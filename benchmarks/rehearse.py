"""What a rehearsal costs: the same work on "cuda" in a rehearsed process, and on the CPU in a plain one, in turns.

    python benchmarks/rehearse.py

Aims: a kernel costs at most 25 µs more than on the CPU, a training step of a small CNN at most twice as much.

The one peer, FakeGPU, is measured beside it where Python finds it: `git clone https://github.com/FanBB2333/FakeGPU`,
then `PYTHONPATH=FakeGPU python benchmarks/rehearse.py`. That is its mode in Python, which needs nothing else; its
native mode, real CUDA torch over stand-ins of NVIDIA's libraries, names far more mistakes and computes no values. Both
get the device mistakes of the conformance suite, those that one process makes: how many raise, and with CUDA's words?
"""

import importlib.util
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

if sys.argv[1:2] == ["fakegpu"]:  # it asks to be there before torch
    import fakegpu

    fakegpu.init(runtime="fakecuda", profile="a100", device_count=2)

import torch

TURNS = 5
SUITE = Path(__file__).parents[1] / "tests" / "rehearse" / "suite"


def microseconds(work, rounds: int, repeat: int) -> float:
    """The median time of one call."""
    spent = []
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(repeat):
            work()
        spent.append((time.perf_counter() - start) / repeat * 1e6)
    return statistics.median(spent)


def cnn_step(device: str, batch: int):
    """A call that trains a small CNN on one batch of 28 × 28 pictures."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Conv2d(1, 16, 3, padding=1),
        torch.nn.BatchNorm2d(16),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(16, 32, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(4),
        torch.nn.Flatten(),
        torch.nn.Linear(512, 10),
    ).to(device)
    sgd = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    pictures, labels = torch.randn(batch, 1, 28, 28, device=device), torch.randint(10, (batch,)).to(device)

    def step() -> None:
        sgd.zero_grad()
        torch.nn.functional.cross_entropy(net(pictures), labels).backward()
        sgd.step()

    return step


def measured(device: str) -> dict[str, float]:
    """Name of the work -> microseconds, in this process."""
    torch.set_num_threads(1)
    small, square = torch.randn(8).to(device), torch.randn(8, 8).to(device)
    kernels = {
        "relu of 8": lambda: torch.relu(small),
        "add of 8": lambda: small + small,
        "add_ of 8": lambda: small.add_(1.0),
        "view of 8": lambda: small.view(2, 4),
        "sum of 8": lambda: small.sum(),
        "mm of 8x8": lambda: torch.mm(square, square),
        "zeros of 8": lambda: torch.zeros(8, device=device),
    }
    found = {name: microseconds(work, rounds=100, repeat=20) for name, work in kernels.items()}
    for batch in (4, 16, 64):
        found[f"CNN step, batch {batch}"] = microseconds(cnn_step(device, batch), rounds=20, repeat=2)
    return found


def mistakes() -> dict[str, int]:
    """How many of the suite's device mistakes raise in this process, and how many of these with CUDA's words."""
    sys.path.insert(0, str(SUITE))
    import on_devices  # noqa: F401
    import table

    found = {"mistakes": len(table.MISTAKES), "raise": 0, "in CUDA's words": 0}
    for function, words, _ in table.MISTAKES.values():
        try:
            function()
        except Exception as error:
            found["raise"] += 1
            found["in CUDA's words"] += table.fits(words, str(error))
    return found


def told(how: str, what: str) -> dict:
    """Run this file in a process of its own: "cpu", "rehearsed" or "fakegpu"; return what it found."""
    rehearse = ["-m", "ddplab", "rehearse", "--gpus", "2", "--python"] if how == "rehearsed" else []
    command = [sys.executable, *rehearse, __file__, how, what]
    lines = subprocess.check_output(command, stderr=subprocess.DEVNULL, text=True).splitlines()
    return next(json.loads(line) for line in lines if line.startswith("{"))  # both print reports of their own


def main() -> None:
    ways = ["cpu", "rehearsed"] + ["fakegpu"] * bool(importlib.util.find_spec("fakegpu"))
    turns = [{way: told(way, "times") for way in ways} for _ in range(TURNS)]
    print(f"torch {torch.__version__}, one thread, median of {TURNS} turns, µs")
    print(f"{'':20}{'cpu':>10}" + "".join(f"{way:>12}{'more':>9}{'ratio':>8}" for way in ways[1:]))
    for name in turns[0]["cpu"]:
        cpu, *others = (statistics.median(turn[way][name] for turn in turns) for way in ways)
        print(f"{name:20}{cpu:10.1f}" + "".join(f"{it:12.1f}{it - cpu:9.1f}{it / cpu:8.2f}" for it in others))
    for way in ways[1:]:
        print(f"{way}: {told(way, 'mistakes')}")


if __name__ == "__main__":
    if not sys.argv[1:]:
        main()
    else:
        found = mistakes() if sys.argv[2] == "mistakes" else measured("cpu" if sys.argv[1] == "cpu" else "cuda")
        print(f"\n{json.dumps(found)}")

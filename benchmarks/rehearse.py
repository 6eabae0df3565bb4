"""What a rehearsal costs: the same work on "cuda" in a rehearsed process, and on the CPU in a plain one, in turns.

    python benchmarks/rehearse.py

Aims: a kernel costs at most 25 µs more than on the CPU, a training step of a small CNN at most twice as much.
"""

import json
import statistics
import subprocess
import sys
import time

import torch

TURNS = 5


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


def main() -> None:
    plain = [sys.executable, __file__, "cpu"]
    rehearsed = [sys.executable, "-m", "ddplab", "rehearse", "--gpus", "1", "--python", __file__, "cuda"]
    both = [
        [json.loads(subprocess.check_output(words, stderr=subprocess.DEVNULL)) for words in (plain, rehearsed)]
        for _ in range(TURNS)
    ]
    print(f"torch {torch.__version__}, one thread, median of {TURNS} turns")
    print(f"{'':20}{'cpu µs':>10}{'rehearsed':>11}{'more µs':>10}{'ratio':>8}")
    for name in both[0][0]:
        cpu, cuda = (statistics.median(turn[i][name] for turn in both) for i in range(2))
        print(f"{name:20}{cpu:10.1f}{cuda:11.1f}{cuda - cpu:10.1f}{cuda / cpu:8.2f}")


if __name__ == "__main__":
    if sys.argv[1:]:
        print(json.dumps(measured(sys.argv[1])))
    else:
        main()

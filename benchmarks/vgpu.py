"""What a virtual GPU costs: the same operation on vgpu:0 and on the CPU, in turns, in one process.

    python benchmarks/vgpu.py

Aims: an operation costs at most 20 µs more than on the CPU, a 256x256 matmul at most 1.1 times as much.
"""

import statistics
import time

import torch

from ddplab.vgpu import virtual_gpus


def measure(work, x, y, rounds: int = 400, repeat: int = 10) -> tuple[float, float]:
    """Median microseconds of work(x) and of work(y), taken in turns."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for spent, data in zip(times, (x, y), strict=True):
            start = time.perf_counter()
            for _ in range(repeat):
                work(data)
            spent.append((time.perf_counter() - start) / repeat * 1e6)
    return statistics.median(times[0]), statistics.median(times[1])


def main() -> None:
    torch.set_num_threads(1)
    small, square = torch.randn(8), torch.randn(256, 256)
    cases = {
        "relu of 8": (torch.relu, small),
        "add of 8": (lambda x: x + x, small),
        "add_ of 8": (lambda x: x.add_(1.0), small),
        "view of 8": (lambda x: x.view(2, 4), small),
        "sum of 8": (torch.sum, small),
        "mm of 8x8": (lambda x: torch.mm(x, x), torch.randn(8, 8)),
        "matmul of 256x256": (lambda x: x @ x, square),
    }
    print(f"torch {torch.__version__}, one thread\n{'':20}{'cpu µs':>9}{'vgpu µs':>9}{'more µs':>9}{'ratio':>8}")
    with virtual_gpus(1) as gpus:
        for name, (work, x) in cases.items():
            cpu, vgpu = measure(work, x, x.to(gpus[0]), rounds=100 if x is square else 400)
            print(f"{name:20}{cpu:9.2f}{vgpu:9.2f}{vgpu - cpu:9.2f}{vgpu / cpu:8.2f}")


if __name__ == "__main__":
    main()

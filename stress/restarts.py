"""Does a killed job resume every time, and with the same bits? The script of lesson 5.5, killed and resumed N times.

    python stress/restarts.py             # 50 times
    python stress/restarts.py --times 5 --shared-store

The scripts are taken out of lessons 5.4 and 5.5. Each time rank 1 is killed in the middle of epoch 2, torchrun
starts the ranks again, they resume from the checkpoint and train to the end. The last checkpoint is then compared
with that of a run without the accident: weights, optimiser, scheduler, random states and position.
`--shared-store` leaves torchrun's store as it is by default, for comparison (see the lesson). Exit status 0 when every
job finished with equal bits.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")  # a name server that does not answer

import nbformat
import torch

from ddplab import RankError, torchrun

LESSONS = sorted((Path(__file__).resolve().parent.parent / "lessons" / "5_torchrun").glob("5.[45]_*.ipynb"))
PLACES = [*range(32), *range(30, 48)]  # killed after 32 steps, resumed at 30


def write_scripts(folder: Path) -> None:
    """Write checkpointing.py and resume.py as the lessons' cells would."""
    for cell in [cell for path in LESSONS for cell in nbformat.read(path, as_version=4).cells]:
        first, _, rest = cell.source.partition("\n")
        for name, starts in {"checkpointing.py": "%%writefile ", "resume.py": "%%torchrun"}.items():
            if first.startswith(starts) and name in first:
                with open(folder / name, "a" if " -a " in first else "w") as file:
                    file.write(f"{rest}\n")


def same(one: Any, other: Any) -> bool:
    """Whether two checkpoints are equal in every bit."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


def load(path: Path) -> Any:
    return torch.load(path, map_location="cpu")


def kill_and_resume(folder: Path, expected: Any, patience: float) -> str:
    """Run the job with its accident once. Returns "equal", or what is wrong."""
    path = folder / "killed.pt"
    path.unlink(missing_ok=True)
    try:
        run = torchrun(
            str(folder / "resume.py"), path, "accident", nproc_per_node=2, max_restarts=1, timeout=patience, quiet=True
        )
    except RankError as error:
        for rank, said in error.run.output.items():
            print(f"--- rank {rank} of a failed job\n{said[-3000:]}", flush=True)
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    for rank in (0, 1):
        if (places := run.metrics.column("place", rank=rank)) != PLACES:
            return f"rank {rank} took other steps: {places}"
    return "equal" if same(load(path), expected) else "finished, but the bits differ"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=50)
    parser.add_argument("--shared-store", action="store_true", help="without TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1")
    parser.add_argument("--patience", type=float, default=180, help="seconds without progress that count as hanging")
    asked = parser.parse_args()
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "0" if asked.shared_store else "1"
    ends, seconds = Counter(), []
    with tempfile.TemporaryDirectory(prefix="ddplab-restarts-") as name:
        folder = Path(name)
        write_scripts(folder)
        calm = folder / "calm.pt"
        torchrun(str(folder / "resume.py"), calm, nproc_per_node=2, timeout=asked.patience, quiet=True)
        expected = load(calm)
        for number in range(1, asked.times + 1):
            start = time.perf_counter()
            end = kill_and_resume(folder, expected, asked.patience)
            seconds.append(time.perf_counter() - start)
            ends[end] += 1
            print(f"{number:>4}  {seconds[-1]:6.1f} s  {end}", flush=True)
    print(f"killed, restarted, resumed: {ends['equal']} of {asked.times} finished with equal bits")
    for end, count in ends.items():
        if end != "equal":
            print(f"    {count}  {end}")
    print(f"    median {statistics.median(seconds):.1f} s, longest {max(seconds):.1f} s")
    return 0 if ends["equal"] == asked.times else 1


if __name__ == "__main__":
    sys.exit(main())

"""Run lessons and solutions as on a machine with GPUs, on virtual ones: nothing here runs on a GPU.

    python tools/rehearse_notebooks.py                      # every lesson and solution, on two virtual GPUs
    python tools/rehearse_notebooks.py --gpus 4 PATH ...    # those named, or in the folders named
    python tools/rehearse_notebooks.py --our-way            # and judge our way at each turn of a lesson

Kernels and their ranks are rehearsed as a whole (see ddplab/rehearse): torch.cuda.device_count() says 2, and `launch`
chooses as on GPUs. Each cell must run, and raise where it is tagged so; outputs are not compared, since a machine with
GPUs need not show what is stored. Nothing is stored. Kernels are warm (see tests/warm_kernels.py); a notebook that
fails so is run once more in a fresh one, and that counts.
"""

import argparse
import multiprocessing
import os
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from run_notebooks import ROOT, copied, execute, read, with_our_way_judged

sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
import warm_kernels  # noqa: E402
from jupyter_client.provisioning import local_provisioner  # noqa: E402

from ddplab.rehearse import environment  # noqa: E402

CELL = 300  # seconds that a cell may take
KERNELS = [local_provisioner.launch_kernel]  # fresh ones
if sys.platform == "linux":
    KERNELS.insert(0, warm_kernels.launch_kernel)


def rehearse(path: Path, cell: int = CELL, our_way: bool = False) -> tuple[Path, float, str]:
    """Run one notebook in a copy of its course. Returns it, the seconds that it took, and what went wrong, or ""."""
    began, wrong = time.monotonic(), ""
    course = path.parent.parent if path.is_relative_to(ROOT) else path.parent
    for tried, launch_kernel in enumerate(KERNELS, 1):
        local_provisioner.launch_kernel = launch_kernel
        notebook = read(path)
        if our_way and "lessons" in path.parts:
            with_our_way_judged(notebook)
        try:
            with copied(course) as [folder]:
                execute(notebook, folder / path.parent.relative_to(course), cell)
        except Exception as error:  # also of a kernel that does not start: the others are to run
            wrong = f"{type(error).__name__}: {error}"
            print(f"{os.path.relpath(path)}, try {tried} of {len(KERNELS)}: {wrong}", flush=True)
        else:
            return path, time.monotonic() - began, ""
    return path, time.monotonic() - began, wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("notebooks", nargs="*", type=Path, help="default: everything in lessons/ and solutions/")
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--workers", type=int, default=2, help="notebooks that run at a time")
    parser.add_argument("--cell-timeout", type=int, default=CELL)
    parser.add_argument("--our-way", action="store_true", help="judge our way at each turn of a lesson, too")
    asked = parser.parse_args()
    found = []
    for path in asked.notebooks or [ROOT / "lessons", ROOT / "solutions"]:
        found += sorted(path.glob("**/*.ipynb")) if path.is_dir() else [path]
    failed = 0
    with tempfile.TemporaryDirectory(prefix="rehearsal-") as folder:
        os.environ.update(environment(str(Path(folder, "book")), asked.gpus))
        with multiprocessing.get_context("fork").Pool(asked.workers) as pool:  # each has a spare for warm kernels
            run = partial(rehearse, cell=asked.cell_timeout, our_way=asked.our_way)
            for path, seconds, wrong in pool.imap_unordered(run, [path.resolve() for path in found]):
                failed += bool(wrong)
                print(f"{os.path.relpath(path)}: {wrong or 'ran'} ({seconds:.1f} s)", flush=True)
    gpus = f"{asked.gpus} virtual GPU{'s' * (asked.gpus != 1)}"
    print(f"rehearsed on {gpus}: {len(found) - failed} of {len(found)} notebooks ran; nothing here ran on a GPU")
    return 1 if failed or not found else 0


if __name__ == "__main__":
    sys.exit(main())

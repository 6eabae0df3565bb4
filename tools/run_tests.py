"""Run everything that CI runs: `make test`. Every stage runs, the short ones beside the long one;
then the exit status says whether all were green.

python tools/run_tests.py           # everything that CI runs
python tools/run_tests.py quick     # what starts no process, in under a minute
python tools/run_tests.py stress    # what fails once in a while, hundreds of times
"""

import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
from run_notebooks import ROOT, copied, read, with_our_way_judged, write

# Fold in what a slow name server costs: torch asks it about 127.0.0.1 at every meeting of ranks.
# And let idle OpenMP threads sleep: when many processes share two cores, spinning ones slow small models twentyfold.
# And ask for huge pages, where there are such: a process with torch in it is forked thousands of times, each time with
# a table of its pages. A fifteenth of the CPU time of the checks' tests.
HUGE = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
ENV = {**HUGE, **os.environ, "RES_OPTIONS": "timeout:1 attempts:1", "OMP_WAIT_POLICY": "PASSIVE"}
# Containers like to set this: then each of thousands of processes compiles ddplab anew, a third of what checks cost.
ENV.pop("PYTHONDONTWRITEBYTECODE", None)
NBVAL = ["--nbval", "--nbval-current-env", "--nbval-cell-timeout=180", "--nbval-sanitize-with=tests/sanitize.cfg"]
NOTEBOOKS = ["lessons", "solutions", "exercises"]
COPIES = "folder with copies of the notebooks"  # one word: of files that three words name alike, pytest-xdist runs one
# Four workers for two cores: often tests wait, for a night to pass or a hang to be told; and each worker collects all
# tests and warms a kernel: twelve seconds of a core. The order is that of tests/conftest.py, the longest first.
PYTEST = ["-m", "pytest", "-n", "4", "--dist", "loadfile", "--no-loadscope-reorder"]
PYTEST += ["-p", "no:logging"]  # it hangs itself into torch's 55 loggers, six times a test; nothing here is logged
# Nothing waits in quick: a worker for each core, of which the last -n counts. Of what checks judge it takes the right
# answers and the blanks, and no whole trainings, nor 1.3's deep steps: the mistakes (all that is called test_each_...)
# and these are a third.
QUICK = [*PYTEST, "-n=logical", "-p", "no:warnings", "--quick", "-r=fE"]
QUICK += ["--deselect=tests/checks/test_checks.py::test_each_", "--deselect=tests/vgpu/test_training.py"]
QUICK += ["--deselect=tests/course/test_memory_step.py"]
GATES = {
    "lint, code and notebooks": ["-m", "ruff", "check", "."],
    "format, code and notebooks": ["-m", "ruff", "format", "--check", "."],
    "exercises are in step with solutions": ["tools/make_exercises.py", "--check"],
    "pages are in step with lessons": ["tools/make_pages.py", "--check"],
}
REHEARSED = "tests that need GPUs, rehearsed on virtual GPUs"
GPU_TESTS = ["tests/vgpu", "tests/test_gpu.py"]  # the third, of tests/course/test_timeline.py, times a GPU's kernels
REHEARSE = "tools/rehearse_notebooks.py"
EACH_TURN = [REHEARSE, "--our-way"]  # a fifth of what it costs: `make test` judges our way where nothing is rehearsed
REHEARSED_NOTEBOOKS = "notebooks, rehearsed on two virtual GPUs"
LIMIT = 3600  # seconds for a stage, but in stress: what hangs shall be seen, with what it has printed until then
BESIDE = (*GATES, REHEARSED, REHEARSED_NOTEBOOKS)  # each runs one thing at a time, beside the longest stage
STAGES = {
    "test": {
        **GATES,
        REHEARSED: ["-m", "ddplab", "rehearse", "--gpus=2", "--python", "-m", "pytest", "-m", "gpu", *GPU_TESTS],
        REHEARSED_NOTEBOOKS: [REHEARSE, "lessons", "solutions"],
        # tests/conftest.py says which tests have to stay together on one of the workers
        "tests, notebooks and browser": [*PYTEST, "--durations=10", *NBVAL, "tests", COPIES],
    },
    "quick": {**GATES, "tests that start no process": [*QUICK, "tests"]},
    "stress": {
        "tests, repeated": ["-m", "pytest", "--stress", "-m", "times", "--durations=10", "tests"],
        **{f"notebooks, rehearsed on {n} virtual": [*EACH_TURN, f"--gpus={n}", *NOTEBOOKS] for n in (1, 2, 4)},
        **{f"stress/{path.name}": [f"stress/{path.name}"] for path in sorted((ROOT / "stress").glob("*.py"))},
    },
}


def judge_our_way(lessons: Path) -> None:
    """Let the copies of lessons judge our way at each of the learner's turns as well."""
    for path in sorted(lessons.rglob("*.ipynb")):
        notebook = read(path)
        with_our_way_judged(notebook)
        write(notebook, path)


def ended_well(command: list[str], limit: float | None, out) -> bool:
    """Run it, for at most that many seconds, printing to that file, or to the screen if it is None."""
    process = subprocess.Popen([sys.executable, *command], env=ENV, cwd=ROOT, stdout=out, stderr=out)
    try:
        return process.wait(limit) == 0
    except subprocess.TimeoutExpired:
        print(f"still running after {limit:.0f} seconds, and ended: {' '.join(command)}", file=out, flush=True)
        return False
    finally:
        if process.poll() is None:
            for each in [process, *psutil.Process(process.pid).children(recursive=True)]:
                each.kill()
            process.wait()


def run(name: str, command: list[str], limit: float | None) -> tuple[bool, str]:
    """Run a stage; return whether it was green, and what one that runs beside another has printed, shown as it ends."""
    notebooks = [ROOT / folder for folder in NOTEBOOKS if COPIES in command]
    with copied(*notebooks) as copies, tempfile.TemporaryFile("w+") as told:
        if copies:
            judge_our_way(copies[0])
            command = [str(copies[0].parent) if word == COPIES else word for word in command]
        if name not in BESIDE:
            print(f"\n=== {name}", flush=True)
        out = told if name in BESIDE else None
        green = ended_well(command, limit, out)
        told.seek(0)
        said = f"\n=== {name}\n{told.read()}" if name in BESIDE else ""
        print(said, end="", flush=True)
    return green, said


def main(which: str = "test") -> int:
    began, stages, limit = time.monotonic(), STAGES[which], None if which == "stress" else LIMIT
    with ThreadPoolExecutor(1) as beside:
        ends = {name: beside.submit(run, name, stages[name], limit) for name in BESIDE if name in stages}
        ended = {name: run(name, command, limit) for name, command in stages.items() if name not in ends}
    ended |= {name: end.result() for name, end in ends.items()}
    failed = [name for name in stages if not ended[name][0]]
    for name in failed:  # once more: the end is what one sees of a long log
        print(ended[name][1], end="")
    minutes = (time.monotonic() - began) / 60
    print(f"\n{'all green' if not failed else 'failed: ' + '; '.join(failed)} after {minutes:.1f} minutes")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

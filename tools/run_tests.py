"""Run everything that CI runs: `make test`. Every stage runs, then the exit status says whether all were green."""

import os
import subprocess
import sys
import time

# Fold in what a slow name server costs: torch asks it about 127.0.0.1 at every meeting of ranks.
# And let idle OpenMP threads sleep: when many processes share two cores, spinning ones slow small models twentyfold.
ENV = {**os.environ, "RES_OPTIONS": "timeout:1 attempts:1", "OMP_WAIT_POLICY": "PASSIVE"}
NBVAL = ["--nbval", "--nbval-current-env", "--nbval-cell-timeout=180", "--nbval-sanitize-with=tests/sanitize.cfg"]
STAGES = {
    "lint, code and notebooks": ["-m", "ruff", "check", "."],
    "format, code and notebooks": ["-m", "ruff", "format", "--check", "."],
    "exercises are in step with solutions": ["tools/make_exercises.py", "--check"],
    # tests/conftest.py says which tests have to stay together on one of the two workers
    "tests, notebooks and browser": [
        *["-m", "pytest", "-n", "2", "--dist", "loadfile", "--durations=10", *NBVAL],
        *["tests", "lessons", "solutions", "exercises"],
    ],
}


def main() -> int:
    began, failed = time.monotonic(), []
    for name, command in STAGES.items():
        print(f"\n=== {name}", flush=True)
        if subprocess.run([sys.executable, *command], env=ENV).returncode != 0:
            failed.append(name)
    minutes = (time.monotonic() - began) / 60
    print(f"\n{'all green' if not failed else 'failed: ' + '; '.join(failed)} after {minutes:.1f} minutes")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

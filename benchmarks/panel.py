"""What showing a run costs: one redraw of the live panel, one log(), and `import ddplab`.

    python benchmarks/panel.py

The redraws happen in a real kernel that nobody looks at: every message a browser would get is made and sent.
Exit status 0 when the bounds hold: 1 ms of the kernel's time a redraw with up to 8 ranks, 20 µs a log(), 0.3 s for
the import.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from queue import Empty

RANKS = (2, 4, 8)
HISTORY = 20_000  # rows each rank has logged before
NEW_ROWS = 12  # rows each rank logs between two redraws: two hundred a second
REDRAWS = 200
REDRAW_MS, LOG_US, IMPORT_S = 1.0, 20.0, 0.3  # the bounds


# ------------------------------------------------------------------ in the kernel


def redraws(ranks: int) -> dict[str, float]:
    """Redraw a panel many times. Returns medians in milliseconds: of the whole, its parts, and its time on the clock.

    All but the last count what the kernel's main thread worked, so that a busy machine does not change them much.
    """
    from ddplab.folder import Folder
    from ddplab.panel import Panel
    from ddplab.run import Run

    folder = Folder.new(ranks)
    run = Run(folder, "cpu", "gloo", start=time.monotonic(), nproc_per_node=ranks)
    for rank in range(ranks):
        folder.note(rank, "pid", {"pid": os.getpid(), "thread": 0})
        Path(folder.of(rank, "output")).write_text("epoch 12, a line that a rank prints\n" * 1000)
    step = 0

    def rows_arrive(number: int) -> None:
        nonlocal step
        for rank in range(ranks):
            with open(folder.of(rank, "metrics"), "a") as file:
                for s in range(step, step + number):
                    row = {
                        "step": s,
                        "time": time.time(),
                        "epoch": s // 100,
                        "loss": 2 / (s + 1) + rank,
                        "accuracy": 0.9,
                    }
                    file.write(json.dumps(row) + "\n")
        step += number

    panel = Panel(run, folder, wait=True)
    panel.appears = 0.0
    for _ in range(HISTORY // NEW_ROWS):  # the history is read piece by piece, as it would have been
        rows_arrive(NEW_ROWS)
        panel.read()
    whole, wall, parts = [], [], {"read": [], "table": [], "curves": [], "send": []}
    for _ in range(REDRAWS):
        rows_arrive(NEW_ROWS)
        panel.redrawn = 0.0
        before, start = time.thread_time(), time.perf_counter()
        panel.update()
        whole.append(time.thread_time() - before)
        wall.append(time.perf_counter() - start)
        rows_arrive(NEW_ROWS)
        marks = [time.thread_time()]  # the same once more, part by part
        panel.read()
        marks.append(time.thread_time())
        table = panel.draw_table()
        marks.append(time.thread_time())
        curves = panel.draw_curves()
        marks.append(time.thread_time())
        panel.drawing.value = table + curves
        marks.append(time.thread_time())
        for seconds, (begin, end) in zip(parts.values(), pairwise(marks), strict=True):
            seconds.append(end - begin)
    folder.remove()
    medians = {name: statistics.median(seconds) for name, seconds in {"whole": whole, "wall": wall, **parts}.items()}
    return {name: 1e3 * seconds for name, seconds in medians.items()}


def in_kernel(code: str) -> str:
    """Run code in a new kernel that has a widget's messages to send, and return what it printed."""
    from jupyter_client.manager import start_new_kernel

    environment = {name: value for name, value in os.environ.items() if name != "DDPLAB_PANEL"}
    manager, client = start_new_kernel(cwd=str(Path(__file__).parent), env=environment)
    try:
        asked = client.execute(code, allow_stdin=False)
        printed = []
        while True:
            message = client.get_iopub_msg(timeout=300)
            content = message["content"]
            if message["parent_header"].get("msg_id") != asked:
                continue
            if message["msg_type"] == "stream":
                printed.append(content["text"])
            elif message["msg_type"] == "error":
                raise RuntimeError("\n".join(content["traceback"]))
            elif message["msg_type"] == "status" and content["execution_state"] == "idle":
                return "".join(printed)
    except Empty:
        raise RuntimeError("the kernel did not answer") from None
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


# ------------------------------------------------------------------ in processes of their own


def python(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **environment}, capture_output=True, text=True, check=True
    )
    return done.stdout


def log_cost() -> float:
    """Microseconds of one log() with three values in a rank: the median over batches of a thousand."""
    code = """
import statistics, time
from ddplab import log
batches = []
for _ in range(21):
    start = time.perf_counter()
    for i in range(1000):
        log(epoch=i, loss=0.5 / (i + 1), accuracy=0.9)
    batches.append(time.perf_counter() - start)
print(statistics.median(batches) * 1e3)
"""
    with tempfile.TemporaryDirectory() as folder:
        return float(python(code, DDPLAB_RUN_DIR=folder, RANK="0"))


def import_cost() -> float:
    """Seconds of `import ddplab` where torch is imported already: the median of nine processes."""
    code = "import time, torch; t = time.perf_counter(); import ddplab; print(time.perf_counter() - t)"
    return statistics.median(float(python(code)) for _ in range(9))


def main() -> int:
    fine = True

    def line(what: str, measured: float, bound: float, unit: str, more: str = "") -> None:
        nonlocal fine
        fine &= measured <= bound
        verdict = "yes" if measured <= bound else "no"
        print(f"{what:<32}{measured:>9.2f} {unit:<4} at most {bound:g}: {verdict}{more}", flush=True)

    print(f"load {os.getloadavg()[0]:.1f}; a history of {HISTORY} rows a rank, {NEW_ROWS} new ones a redraw")
    for ranks in RANKS:
        cost = json.loads(in_kernel(f"import json, panel; print(json.dumps(panel.redraws({ranks})))"))
        parts = ", ".join(f"{name} {cost[name]:.2f}" for name in ("read", "table", "curves", "send"))
        line(f"redraw, {ranks} ranks", cost["whole"], REDRAW_MS, "ms", f"  ({parts}; on the clock {cost['wall']:.2f})")
    line("log()", log_cost(), LOG_US, "µs")
    line("import ddplab, beyond torch", import_cost(), IMPORT_S, "s")
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())

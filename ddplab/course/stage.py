"""The hang theatre: four real ranks play a scene of collectives, one of them goes astray, and a film shows who waits.

What each rank calls is noted below torch.distributed's functions, however the scene has imported them.
"""

from __future__ import annotations

import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import cloudpickle
import torch.distributed as dist

from ddplab.course.bare import BareTorchrun
from ddplab.course.controls import widget
from ddplab.course.drawings import lanes
from ddplab.launcher import launch
from ddplab.plots import COLOURS, INK, ON_COLOUR, SHAPES
from ddplab.pointer import pointing
from ddplab.run import RankError
from ddplab.screen import show
from ddplab.worker import log

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLLECTIVES = {  # the methods of torch's ProcessGroup, and what torch.distributed calls them
    "allreduce": "all_reduce",
    "broadcast": "broadcast",
    "barrier": "barrier",
    "reduce": "reduce",
    "allgather": "all_gather",
    "gather": "gather",
    "scatter": "scatter",
    "alltoall": "all_to_all",
}
DEEDS = ("does nothing else", "is late for", "skips", "dies before")
LATE = 0.7  # seconds
PATIENCE = 1.5  # seconds without a sign of life after which launch says who waits
VERDICTS = {  # of launch's, and by which words each is known
    "a rank is missing": "never came",
    "the calls differ": "call different collectives",
    "a rank has died": "was killed",
    "all come to the end": ": finished",  # "finished anything" is said of a hang
}
ALONE = 5  # seconds after which a job that hangs under torchrun is ended


class Act(NamedTuple):
    """Which rank goes astray, how (one of DEEDS), and at which of its calls, counted from 1."""

    rank: int
    deed: str
    call: int


class Film(NamedTuple):
    """What the ranks have noted, as `run.metrics` has it, how many seconds it took, and what launch said at the end."""

    act: Act
    rows: list[dict[str, Any]]
    seconds: float
    words: str


def record(scene: Callable[[], Any], act: Act, ranks: int = 4) -> Film:
    """Have so many real ranks play the scene, one of them astray, and return what they noted and what launch said."""
    begin = time.time()
    try:
        run = launch(partial(_play, scene, act, log), nproc_per_node=ranks, device="cpu", timeout=PATIENCE, quiet=True)
        words = run.summary()
    except RankError as error:
        run, words = error.run, str(error)
    rows = [dict(row) for row in run.metrics if "doing" in row]
    return Film(act, rows, time.time() - begin, words)


def _play(scene: Callable[[], Any], act: Act, note: Callable[..., None]) -> None:
    """In a rank: play the scene, and note what it does from then on."""
    for method, name in COLLECTIVES.items():
        setattr(dist.ProcessGroup, method, _noted(name, getattr(dist.ProcessGroup, method), act, note))
    dist.ProcessGroup.calls = count(1)
    note(doing="computes")
    scene()
    note(doing="returned")


def _noted(name: str, method: Callable[..., Any], act: Act, note: Callable[..., None]) -> Callable[..., Any]:
    def called(group: Any, *args: Any, **options: Any) -> Any:
        number, astray = next(dist.ProcessGroup.calls), dist.get_rank() == act.rank
        deed = act.deed if astray and number == act.call else ""
        if deed == "skips":
            note(doing="skips", name=name)
            note(doing="computes")
            return None  # as if it had been called
        if deed == "dies before":
            note(doing="died")
            os.kill(os.getpid(), signal.SIGKILL)
        if deed == "is late for":
            note(doing="is late")
            time.sleep(LATE)
        skipped = astray and act.deed == "skips" and number > act.call
        note(doing=name, call=number - skipped)  # as torch counts: what was not called has no number
        work = method(group, *args, **options)
        work.wait()  # here, so that its end is noted
        note(doing="computes")
        return work

    return called


def torchrun_alone(scene: Callable[[], Any], act: Act, ranks: int = 4) -> str:
    """Return what the same prints under torchrun alone, with nobody who follows it; one that hangs is ended.

    A rank that is done leaves, as in most scripts; `launch` keeps it until all are done.
    """
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "scene").write_bytes(cloudpickle.dumps(partial(_play, scene, act, _say_nothing)))
        Path(folder, "scene.py").write_text(_SCRIPT)
        job = BareTorchrun(Path(folder, "scene.py"), ranks, OMP_WAIT_POLICY="PASSIVE")
        try:
            job.wait_for("the scene begins\n", times=ranks)
            begun = time.monotonic()
            while job.process.poll() is None and (waited := time.monotonic() - begun) < 60:
                all_alive, all_done = len(job.pids) == ranks, len(list(Path(folder).glob("done*"))) == ranks
                if waited > ALONE and all_alive and not all_done:
                    break  # it hangs
                time.sleep(0.1)
            ended = job.process.poll()
            said = job.output.replace("the scene begins\n", "").replace(folder, "…").strip()
        finally:
            job.stop()
    if ended is None:
        return f"{said}\n(nothing{' more' if said else ''} in {ALONE} s; then it was ended here)".strip()
    return f"{said}\n(exit status {ended})".strip()


_SCRIPT = """
import os, pickle, time
from pathlib import Path

import torch.distributed as dist

dist.init_process_group("gloo")
play = pickle.loads(Path(__file__).with_name("scene").read_bytes())
print("the scene begins", flush=True)
play()
Path(__file__).with_name("done" + os.environ["RANK"]).touch()
time.sleep(0.3)  # gloo's own thread has to be done: else the next line may hang (see ddplab.cleanup)
dist.destroy_process_group()
"""


def _say_nothing(**row: Any) -> None:
    pass


@pointing
def theatre(scene: Callable[[], Any], rank: int = 2, deed: str = "skips", call: int = 2) -> Film:
    """Show the scene played by four ranks, one of which goes astray; choose who and how, press Run, and play the film.

    Where nobody can press a button, this one run is drawn, and told in launch's words. Returns its film.

    Args:
        scene: a function without arguments that calls collectives, none of them in the background.
        rank, deed, call: which rank goes astray at first, how (one of DEEDS), and at which of its calls, from 1.

    Raises ValueError for another deed, or a call that the scene does not make.
    """
    act = Act(rank, deed, call)
    whole = record(scene, Act(0, DEEDS[0], 0))
    calls = [row["doing"] for row in whole.rows if row["rank"] == 0 and "call" in row]
    if deed not in DEEDS or call not in range(1, len(calls) + 1) or rank not in range(4):
        raise ValueError(f"a rank from 0 to 3, a deed of {DEEDS}, and a call from 1 to {len(calls)}, not {tuple(act)}")
    film = record(scene, act)
    title = f"rank {rank} {deed} its call {call}, {calls[call - 1]}"
    show(f"{title}\n{film.words}", lambda: _stage(scene, film, calls), lambda: draw(film, title, calls))
    return film


def draw(film: Film, title: str, calls: list[str]) -> Figure:
    """Draw the film's end: a lane for each rank, hatched where it waits. Returns the matplotlib figure."""
    begin = min(row["time"] for row in film.rows)
    figure = lanes({title: film.rows}, sorted(set(calls)), film.seconds - begin)
    patch = {"facecolor": COLOURS[1], "edgecolor": "none", "pad": 1}
    look, skipped = {"va": "center", "color": ON_COLOUR, "bbox": patch}, False
    for row in sorted(film.rows, key=lambda row: row["time"]):
        at, words = row["time"] - begin, f"{row.get('call') or '✗ skips'}"
        if row["doing"] == "skips" or "call" in row:
            meets = skipped and row["rank"] == film.act.rank  # a call that was not meant for it
            x, y = at - 0.02 * film.seconds * meets, row["rank"] - 0.35 * (row["doing"] == "skips")  # on the bar's edge
            figure.axes[0].text(x, y, words, ha="right" if meets else "left", fontsize=11 if meets else 8, **look)
            skipped = not meets and (skipped or row["doing"] == "skips")
            if meets:
                figure.axes[0].axvline(at, color=INK, linewidth=1, linestyle="--")
    return figure


def _stage(scene: Callable[[], Any], film: Film, calls: list[str]) -> Any:
    """The widget. `asked` comes from the page: an act, and whether torchrun alone is to play it."""
    looks = list(zip(SHAPES, COLOURS, strict=True))
    heard: set[str] = set()
    stage = widget("theatre", deeds=DEEDS, calls=calls, looks=looks, film=_told(film, heard), said=[], asked=None)
    at_work = threading.Lock()  # the page waits for the answer before it asks again; another page may not

    def work(act: Act, bare: bool) -> None:
        with at_work:
            try:
                if bare:
                    stage.said = ["What torchrun alone prints:", torchrun_alone(scene, act), time.time()]
                else:
                    stage.film = _told(record(scene, act), heard)
            except Exception as error:  # a thread has no cell to raise in
                stage.said = ["It could not be played.", f"{type(error).__name__}: {error}", time.time()]

    def ask(change: dict[str, Any]) -> None:
        asked = change["new"]
        act = Act(asked["rank"], asked["deed"], asked["call"])
        threading.Thread(target=work, args=(act, asked["bare"]), daemon=True).start()

    stage.observe(ask, "asked")
    return stage


def _told(film: Film, heard: set[str]) -> dict[str, Any]:
    """Return a film for the page; its verdict joins those heard before, which are ticked when it has ended."""
    heard |= {verdict for verdict, words in VERDICTS.items() if words in film.words}
    ticks = "  ".join(f"{'✓' if verdict in heard else '☐'} {verdict}" for verdict in VERDICTS)
    begin = min((row["time"] for row in film.rows), default=0.0)
    rows = [[row["rank"], row["time"] - begin, row["doing"], row.get("call", 0)] for row in film.rows]
    told = {"act": film.act._asdict(), "rows": rows, "seconds": film.seconds - begin, "words": film.words}
    return {**told, "ticks": ticks, "when": time.time()}  # the same once more is an answer too

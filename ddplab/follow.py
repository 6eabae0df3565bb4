"""Following a run to its end: its ranks have returned, one has failed, nothing moves any more, or somebody stops it."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from ddplab.diagnosis import Cause, hang, others_matter, stack_of
from ddplab.folder import Folder
from ddplab.run import RankError, RankTimeoutError, Run, say_briefly

STARTING = 60.0  # seconds that a run may take to import torch on a busy machine before it counts as hanging

_live_runs: weakref.WeakSet[Run] = weakref.WeakSet()


class Job(Protocol):
    """What `watch` needs from whatever runs the ranks: in `launcher` processes, in `agents` torchrun's agents."""

    def wait(self, seconds: float) -> None: ...  # until something ends, or time is up
    def exit_codes(self) -> dict[int, int | None]: ...  # rank → exit code, None while it runs
    def ended(self) -> bool: ...
    def failed(self) -> bool: ...  # a rank has failed for good
    def pids(self) -> dict[int, int]: ...  # the ranks that run
    def cause(self, died_at: dict[int, int]) -> Cause: ...  # why it failed
    def end(self) -> None: ...  # end everything, now


class Place(Protocol):
    """What `watch` needs from a run's place in a queue (see `lease`)."""

    def ready(self) -> bool: ...  # it has what it waits for
    def words(self) -> str: ...  # what that is, and who has it
    def given_up(self) -> str: ...  # why it waits no longer, or ""
    def end(self) -> None: ...  # give everything back


class View:
    """How a run shows itself while it is followed. This one shows nothing; `panel` has those that do."""

    def update(self) -> None:
        """Redraw; called at least ten times a second."""

    def interrupted(self, where: list[str]) -> None:
        """Somebody pressed ■: `where` says where each rank was."""

    def close(self) -> None:
        """The run is over, and what it left is still on disk."""


def watch(
    run: Run,
    folder: Folder,
    start: Callable[[], Job],
    timeout: float | None,
    view: View,
    wait: bool,
    place: Place | None = None,
) -> Run:
    """Start the ranks and watch them until they end, fail, hang or are stopped; on another thread unless `wait`.

    place: what they need has to be waited for; it is given back when they have ended.
    """
    _live_runs.add(run)
    if not wait:
        job = None
        try:
            with _interrupt_held():
                if place is None or place.ready():
                    job = start()
                begin = start if job is None else lambda: job
                threading.Thread(target=_watch, args=(run, folder, begin, timeout, view, place), daemon=True).start()
        except KeyboardInterrupt:  # it comes when all have started
            run.stop()
            raise
        except BaseException:
            if job is not None:
                job.end()
            run._ended.set()
            raise
        return run
    _watch(run, folder, start, timeout, view, place)
    if run.error is not None:
        raise run.error
    return run


def _watch(
    run: Run, folder: Folder, start: Callable[[], Job], timeout: float | None, view: View, place: Place | None
) -> None:
    job, died_at = None, {}
    try:
        if place is not None and not _got_it(run, place, view):
            return
        with _interrupt_held():  # a rank that has started must be known to who ends it
            job = start()
        progress, progress_at, look_at = None, time.monotonic(), 0.0
        while not job.ended():
            job.wait(0.02)
            _note_deaths(job, died_at)
            if job.failed() or run._stop_asked.is_set():
                break
            view = _updated(view)
            now = time.monotonic()
            if timeout is not None and now > look_at:
                look_at = now + min(0.25, timeout / 4)
                if (latest := folder.progress()) != progress:
                    progress, progress_at = latest, now
                elif now - progress_at > (timeout if folder.has_begun() else max(timeout, STARTING)):
                    _ask_where_they_are(folder, job, patience=5.0)  # a busy machine needs it, and nobody is in a hurry
                    run.error = RankTimeoutError(run=run, **hang(folder, timeout)._asdict())
                    run.state = "timed out"
                    break
        if run.state == "running":
            _settle(run, folder, job, died_at)
    except KeyboardInterrupt as interrupt:
        say_briefly(interrupt)
        run.state, run.waits = "interrupted", ""
        if job is not None:
            _ask_where_they_are(folder, job)
            view.interrupted(hang(folder, 0).message.splitlines()[1:-1])
        raise
    finally:
        with _interrupt_held():  # a second interrupt must not leave ranks behind
            if job is not None:
                job.end()
            if place is not None:
                place.end()
            if run.state == "running":
                run.state = "stopped"
            try:
                view = _updated(view)  # the last that was printed, while it is still on disk
                run._bring_home()
                view.close()
            finally:
                _live_runs.discard(run)
                run._ended.set()


def _got_it(run: Run, place: Place, view: View) -> bool:
    """Wait for what a run needs; say meanwhile who has it. Return False where it ends without: stopped, or too late."""
    while not place.ready():
        if why := place.given_up():
            run.error, run.state, run.waits = RankTimeoutError(why, run, None), "timed out", ""
            return False
        run.waits = place.words()
        view = _updated(view)
        if run._stop_asked.wait(0.1):
            run.state, run.waits = "stopped", ""
            return False
    if run.waits:
        run.waits, run._start = "", time.monotonic()
    return True


def _note_deaths(job: Job, died_at: dict[int, int]) -> None:
    for rank, code in job.exit_codes().items():
        if code is not None:
            died_at.setdefault(rank, time.monotonic_ns())


def _updated(view: View) -> View:
    """Redraw. A view that fails must not end the run: say so once, and go on without it."""
    try:
        view.update()
        return view
    except Exception as error:
        warnings.warn(f"the panel stopped, the run goes on: {error!r}", stacklevel=2)
        return View()


def _settle(run: Run, folder: Folder, job: Job, died_at: dict[int, int]) -> None:
    """Decide how a run that is over has ended."""
    if run._stop_asked.is_set():
        run.state = "stopped"
    elif not job.failed():
        run.state = "finished"
    else:
        if others_matter(folder, job.exit_codes()):
            _ask_where_they_are(folder, job)  # before they end too
        grace = time.monotonic() + 0.5  # the other ranks may have their own story to write down
        while time.monotonic() < grace and not job.ended():
            job.wait(0.02)
            _note_deaths(job, died_at)
        run.error = RankError(run=run, **job.cause(died_at)._asdict())
        run.state = "failed"


def _ask_where_they_are(folder: Folder, job: Job, patience: float = 0.5) -> None:
    """Have every live rank write down its stacks and its latest collectives."""
    asked = {rank: pid for rank, pid in job.pids().items() if folder.has(rank, "pid")}  # those that can answer
    for rank, pid in asked.items():
        with contextlib.suppress(OSError):  # it has just ended
            os.kill(pid, signal.SIGUSR1)
            folder.ask_for_calls(rank)
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline and not all(
        stack_of(folder, rank) and folder.has(rank, "calls") for rank in asked
    ):
        time.sleep(0.01)
    time.sleep(0.02)  # faulthandler writes in pieces


@contextmanager
def _interrupt_held() -> Iterator[None]:
    """Hold an interrupt back for a moment that must be whole, then raise it (they come on the main thread)."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    held = []
    before = signal.signal(signal.SIGINT, lambda *_: held.append(True))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if held:
        raise KeyboardInterrupt


os.register_at_fork(after_in_child=_live_runs.clear)  # a fork of this process follows nobody


@atexit.register
def _stop_live_runs() -> None:
    for run in list(_live_runs):
        run.stop()

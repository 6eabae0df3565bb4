"""ddplab: the companion of a course on multi-GPU PyTorch. Real multi-process runs from a notebook cell."""

import sys

if sys.platform == "win32":
    raise ImportError("ddplab runs on Linux and macOS. On Windows use WSL: https://learn.microsoft.com/windows/wsl")

import gc
import importlib
import multiprocessing
import os
import threading

# In a notebook or a script, not in a rank nor in a process of multiprocessing's own: have the forkserver ready.
# (nbval, which sets PYTEST_CURRENT_TEST, runs many notebooks that never launch: there the first launch starts it.)
_warms_up = (
    multiprocessing.parent_process() is None
    and not {"RANK", "DDPLAB_RUN_DIR", "DDPLAB_REHEARSAL", "DDPLAB_GRADING", "PYTEST_CURRENT_TEST"} & os.environ.keys()
    and not ("ddplab" in sys.orig_argv and {*sys.argv[:2]} & {"grade", "check"})  # which launches nothing itself
    and not any(word.startswith(("from multiprocessing", "--multiprocessing-fork")) for word in sys.orig_argv)
)
# Nobody has used torch yet and no thread runs: it is imported here once, and the forkserver is a fork of this process.
_forks = _warms_up and "torch" not in sys.modules and threading.active_count() == 1 and sys.platform == "linux"
if _forks:  # what the forkserver finds when it imports torch by itself (see `processes`)
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# To look through what all these imports make, again and again, for what is garbage: a tenth of their time.
_collects = gc.isenabled()
gc.disable()

# `python -m ddplab why` answers in a blink, and `rehearse` starts others: no need of what follows, and of torch least.
if sys.argv[:2] not in (["-m", "why"], ["-m", "rehearse"]) or "ddplab" not in sys.orig_argv:
    if _forks:
        importlib.import_module("torch._dynamo")  # what the first optimizer or DDP(...) of a process imports
    from ddplab.agents import load_ipython_extension, torchrun
    from ddplab.checks import check
    from ddplab.checkup import doctor
    from ddplab.course.claims import claim, predict, settle
    from ddplab.errors.command import why
    from ddplab.hardware import device, devices
    from ddplab.launcher import launch
    from ddplab.processes import warm_up
    from ddplab.run import RankError, RankTimeoutError, Run
    from ddplab.worker import cleanup, log

__all__ = [
    "RankError",
    "RankTimeoutError",
    "Run",
    "check",
    "claim",
    "cleanup",
    "device",
    "devices",
    "doctor",
    "launch",
    "load_ipython_extension",
    "log",
    "predict",
    "settle",
    "torchrun",
    "why",
]

if _forks:
    gc.freeze()  # both share these objects for as long as nobody, the garbage collector included, touches them
if _warms_up and "launch" in globals():
    warm_up(by_fork=_forks)
if _collects:
    gc.enable()
if "IPython" in sys.modules and (_shell := sys.modules["IPython"].get_ipython()) is not None:
    load_ipython_extension(_shell)

"""ddplab: the companion of a course on multi-GPU PyTorch. Real multi-process runs from a notebook cell."""

import sys

if sys.platform == "win32":
    raise ImportError("ddplab runs on Linux and macOS. On Windows use WSL: https://learn.microsoft.com/windows/wsl")

import multiprocessing
import os

# `python -m ddplab why` answers in a blink: it needs none of what follows, and above all no torch.
if sys.argv[:2] != ["-m", "why"] or "ddplab" not in sys.orig_argv:
    from ddplab.agents import load_ipython_extension, torchrun
    from ddplab.checks import check
    from ddplab.checkup import doctor
    from ddplab.course.claims import claim, predict, settle
    from ddplab.errors.command import why
    from ddplab.hardware import device, devices
    from ddplab.launcher import launch
    from ddplab.processes import IN_FORKSERVER, warm_up
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

# In a notebook or a script, not in a rank nor in a process of multiprocessing's own: let the forkserver import torch.
# (nbval, which sets PYTEST_CURRENT_TEST, runs many notebooks that never launch: there the first launch starts it.)
if (
    "launch" in globals()
    and multiprocessing.parent_process() is None
    and not {"RANK", "DDPLAB_RUN_DIR", "DDPLAB_REHEARSAL", "DDPLAB_GRADING", "PYTEST_CURRENT_TEST"} & os.environ.keys()
    and not ("ddplab" in sys.orig_argv and {*sys.argv[:2]} & {"grade", "check"})  # which launches nothing itself
    and not IN_FORKSERVER
    and "--multiprocessing-fork" not in sys.orig_argv
):
    warm_up()
if "IPython" in sys.modules and (_shell := sys.modules["IPython"].get_ipython()) is not None:
    load_ipython_extension(_shell)

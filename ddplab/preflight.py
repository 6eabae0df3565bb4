"""`python -m ddplab doctor --workshop`: whether this machine bears a room of learners. In the doctor's own style.

A learner is counted as a notebook with its warm processes and a launch of two ranks: the figures below were measured
on Linux without GPUs; what a hub adds for each learner is in workshop/hub/README.md.
"""

from __future__ import annotations

import itertools
import json
import os
import resource
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import torch

from ddplab.checkup import GIB, Finding, Findings
from ddplab.hardware import cpu_cores, device
from ddplab.launcher import launch
from ddplab.run import RankError

PER_LEARNER = 1.0  # GiB: measured 0.4 for a kernel with warm processes after launches; a Jupyter server; a reserve
PROCESSES, FILES = 150, 300  # threads and processes, and open files, of one learner
DISK, INODES = 0.5, 5000  # GiB and files of one learner's temporary folder


def workshop(learners: int) -> Findings:
    """Return a Finding for each thing that a room of so many learners depends on; it runs two ranks on every GPU."""
    findings = Findings()
    looks = (
        rank_pairs,
        enough_memory,
        enough_cores,
        enough_shared_memory,
        temporary_folder,
        limits,
        ports_at_once,
        shared_folders,
        hub,
    )
    for look in looks:
        try:
            findings += look(learners)
        except Exception as error:
            findings.append(Finding(look.__name__, "note", f"could not be looked at: {type(error).__name__}: {error}"))
    return findings


def rank_pairs(learners: int) -> Iterator[Finding]:
    """Two ranks that add: sharing each GPU through gloo, then with one each on pairs of GPUs through nccl."""
    count = torch.cuda.device_count()
    if not count:
        yield two_ranks("two ranks")
    for gpu in range(count):
        yield _elsewhere(f"GPU {gpu}", str(gpu))
    for a, b in itertools.combinations(range(count), 2):
        if count <= 4 or b == a + 1 or (a == 0 and b == count - 1):  # from five up the neighbours only: minutes count
            yield _elsewhere(f"GPUs {a} and {b}", f"{a},{b}")


def two_ranks(about: str, where: str | None = None) -> Finding:
    """A launch of two ranks, 1 and 2 added on them, as a finding. where: `launch`'s device."""
    try:
        run = launch(_add, nproc_per_node=2, device=where, quiet=True, timeout=60)
    except (RankError, RuntimeError, ValueError, OSError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        todo = "`python -m ddplab why` knows errors; between two GPUs with nccl, try NCCL_P2P_DISABLE=1."
        return Finding(about, "problem", f"two ranks did not add: {reason}", todo)
    if run.results != [3.0, 3.0]:
        return Finding(about, "problem", f"two ranks added 1 and 2 to {run.results}", "Leave this out of the room.")
    return Finding(about, "fine", f"two ranks added, on {run.device} through {run.backend}")


def _elsewhere(about: str, numbers: str) -> Finding:
    """The same in a process that sees these GPUs only, counted as this process counts them."""
    mine = [part.strip() for part in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if part.strip()]
    seen = ",".join(mine[int(n)] if mine else n for n in numbers.split(","))
    command = [sys.executable, "-m", "ddplab.preflight", about]
    env = os.environ | {"CUDA_VISIBLE_DEVICES": seen, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    try:
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=180)
        if not done.returncode:
            return Finding(*json.loads(done.stdout.splitlines()[-1]))
        said = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
    except (subprocess.TimeoutExpired, ValueError, IndexError) as error:
        said = type(error).__name__
    todo = "Look with `nvidia-smi` whether the GPU answers; leave it out with CUDA_VISIBLE_DEVICES."
    return Finding(about, "problem", f"two ranks did not add: {said}", todo)


def _add() -> float:
    mine = torch.full((1,), torch.distributed.get_rank() + 1.0, device=device())
    torch.distributed.all_reduce(mine)
    return mine.item()


def enough_memory(learners: int) -> Iterator[Finding]:
    """Whether everybody's notebook fits into memory."""
    free, needed = psutil.virtual_memory().available / GIB, PER_LEARNER * learners
    text = f"{free:.1f} GiB free; {learners} learners need about {needed:.0f}"
    if free < needed:
        yield Finding("memory", "problem", text, f"It bears {int(free / PER_LEARNER)}: fewer learners, or in pairs.")
    else:
        yield Finding("memory", "fine", text)


def enough_cores(learners: int) -> Iterator[Finding]:
    """How many learners share a core."""
    count = cpu_cores()
    text = f"{count} for {learners} learners"
    if count < learners / 2:
        todo = "It works, and slowly: set DDPLAB_LEASES, so that runs take turns, and let learners work in pairs."
        yield Finding("cores", "note", text, todo)
    else:
        yield Finding("cores", "fine", text)


def enough_shared_memory(learners: int) -> Iterator[Finding]:
    """Whether /dev/shm is large enough for all at once."""
    try:
        space = shutil.disk_usage("/dev/shm")
    except OSError:
        return
    text = f"{space.free / GIB:.1f} GiB free in /dev/shm"
    if space.free < learners * GIB / 16:
        todo = f"mount -o remount,size={max(1, learners // 8)}G /dev/shm; in a container, --shm-size."
        yield Finding("shared memory", "problem", text, todo)
    else:
        yield Finding("shared memory", "fine", text)


def temporary_folder(learners: int) -> Iterator[Finding]:
    """Space and files of the folder where runs leave their rows."""
    folder = tempfile.gettempdir()
    about = os.statvfs(folder)
    free = about.f_bavail * about.f_frsize / GIB
    text = f"{free:.1f} GiB and {about.f_favail or 'any number of'} files free in {folder}"
    few = about.f_files and about.f_favail < INODES * learners
    if free < DISK * learners or few:
        todo = f"They want {DISK * learners:.0f} GiB and {INODES * learners} files: clear it, or set TMPDIR."
        yield Finding("temporary folder", "problem", text, todo)
    else:
        yield Finding("temporary folder", "fine", text)


def limits(learners: int) -> Iterator[Finding]:
    """Limits of processes and open files, of this account and of the whole machine."""
    for name, kind, least in (
        ("processes", resource.RLIMIT_NPROC, PROCESSES),
        ("open files", resource.RLIMIT_NOFILE, FILES),
    ):
        soft, _ = resource.getrlimit(kind)
        text = "no limit" if soft == resource.RLIM_INFINITY else f"{soft} for an account"
        if soft != resource.RLIM_INFINITY and soft < least:
            yield Finding(name, "problem", f"{text}; a learner needs {least}", "Raise it in /etc/security/limits.conf.")
        else:
            yield Finding(name, "fine", text)
    pid_max = Path("/proc/sys/kernel/pid_max")
    most = int(pid_max.read_text()) if pid_max.exists() else None
    if most is not None and most < PROCESSES * learners:
        yield Finding("processes", "problem", f"{most} on this machine", "sysctl -w kernel.pid_max=4194304")


def ports_at_once(learners: int) -> Iterator[Finding]:
    """Whether all can have the ports that their ranks meet at, all at once."""
    doors: list[socket.socket] = []
    try:
        for _ in range(4 * learners):
            doors.append(socket.create_server(("127.0.0.1", 0)))
    except OSError as error:
        yield Finding("ports", "problem", f"only {len(doors)} of {4 * learners}: {error}", "`ss -s` says who has them.")
    else:
        yield Finding("ports", "fine", f"{len(doors)} at once on 127.0.0.1")
    finally:
        for door in doors:
            door.close()


def shared_folders(learners: int) -> Iterator[Finding]:
    """Whether the folders that learners share can be written by all and emptied by nobody."""
    for name in ("DDPLAB_LEASES", "DDPLAB_ROOM"):
        folder = os.environ.get(name, "")
        if folder in ("", "off"):
            yield Finding(name, "fine", "not set" if not folder else "off")
            continue
        try:
            mode = Path(folder).stat().st_mode
        except OSError as error:
            yield Finding(name, "problem", f"{folder}: {error.strerror}", "Make it, as the guide says.")
            continue
        if not (stat.S_ISDIR(mode) and mode & stat.S_ISVTX and mode & 0o003 == 0o003):
            todo = f"chmod {'1733' if name == 'DDPLAB_ROOM' else '1777'} {folder}"
            yield Finding(name, "problem", f"{folder} is not a folder that all may write and nobody may empty", todo)
        else:
            yield Finding(name, "fine", f"{folder} can be shared")


def hub(learners: int) -> Iterator[Finding]:
    """Whether the hub answers, where this is one of its servers or JUPYTERHUB_API_URL names one."""
    address = os.environ.get("JUPYTERHUB_API_URL")
    if not address:
        yield Finding("JupyterHub", "fine", "none named here (JUPYTERHUB_API_URL)")
        return
    try:
        with urllib.request.urlopen(address, timeout=5) as answer:
            yield Finding("JupyterHub", "fine", f"answers ({answer.status})")
    except (OSError, ValueError) as error:
        yield Finding("JupyterHub", "problem", f"{address}: {error}", "`journalctl -u ddplab-hub`")


if __name__ == "__main__":  # `_elsewhere`
    found = two_ranks(sys.argv[1], "cuda")
    print(json.dumps([found.about, found.state, found.found, found.todo]))

"""`doctor()`: what this machine has, what will go wrong on it, and what to do about it.

Each function below looks at one thing and yields what it found; `LOOKS` is their order. What only NVIDIA's driver
knows is asked of its own `nvidia-smi`, so that no GPU is touched, save for the last look: a launch of two ranks.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch

from ddplab.hardware import cpu_cores, device
from ddplab.launcher import launch
from ddplab.run import RankError
from ddplab.tables import HTML, html_table

SIGNS = {  # a word and a symbol first; the colour only repeats them
    "fine": ("✓", "var(--jp-success-color1, #2e7d32)"),
    "note": ("◐", "var(--jp-warn-color1, #b26a00)"),
    "problem": ("✗", "var(--jp-error-color1, #c62828)"),
}
GIB = 2**30


@dataclass(frozen=True)
class Finding:
    """One line of the report. `state` is "fine", "note" or "problem"; `todo` is empty where there is nothing to do."""

    about: str
    state: str
    found: str
    todo: str = ""

    def __str__(self) -> str:
        line = f"{SIGNS[self.state][0]} {self.state:<8}{self.about}: {self.found}"
        return f"{line}\n{'':10}→ {self.todo}" if self.todo else line


class Findings(list[Finding]):
    """What `doctor` returns: a list of Finding. A notebook shows it as a table, everything else as lines of text."""

    def __str__(self) -> str:
        return "\n".join(map(str, self))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        rows = []
        for line in self:
            symbol, colour = SIGNS[line.state]
            state = f'<strong style="white-space:nowrap;color:{colour}">{symbol} {line.state}</strong>'
            rows.append([HTML(state), line.about, line.found, line.todo])
        return html_table(["", "about", "found", "what to do"], rows, label="What this machine has", prose=True)


def doctor() -> Findings:
    """Look at this machine, and return a Finding for each thing a distributed job depends on.

    It takes a few seconds, needs no GPU, changes nothing, and does not raise: a look that fails is a finding too.
    """
    findings = Findings()
    for look in LOOKS:
        try:
            findings += look()
        except Exception as error:
            findings.append(Finding(look.__name__, "note", f"could not be looked at: {type(error).__name__}: {error}"))
    return findings


def gpus() -> Iterator[Finding]:
    """How many GPUs the machine has, and whether torch sees them."""
    there, seen = [name for (name,) in _smi("--query-gpu=name")], torch.cuda.device_count()
    if seen:
        yield Finding("GPUs", "fine", f"torch sees {seen}" + (f" ({', '.join(dict.fromkeys(there))})" if there else ""))
    elif there and torch.version.cuda is None:
        yield Finding(
            "GPUs",
            "problem",
            f"{len(there)} in this machine, and a torch that was built without CUDA",
            "Install a CUDA build of torch: https://pytorch.org/get-started/locally/",
        )
    elif there and "CUDA_VISIBLE_DEVICES" not in os.environ:
        yield Finding(
            "GPUs",
            "problem",
            f"{len(there)} in this machine, none of which torch can use",
            'Ask torch why: python -c "import torch; torch.cuda.init()"',
        )
    elif not there and torch.version.cuda:
        yield Finding(
            "GPUs",
            "note",
            f"none, though torch was built for CUDA {torch.version.cuda}",
            "If there is one in this machine, install NVIDIA's driver: `nvidia-smi` has to list it.",
        )
    elif not there:
        yield Finding("GPUs", "fine", "none: ranks run on the CPU, through gloo, and DataParallel on virtual GPUs")


def visible_devices() -> Iterator[Finding]:
    """Whether CUDA_VISIBLE_DEVICES hides GPUs."""
    asked = os.environ.get("CUDA_VISIBLE_DEVICES")
    there, seen = len(_smi("--query-gpu=name")), torch.cuda.device_count()
    if asked is not None and seen < there:
        yield Finding(
            "visible devices",
            "note" if seen else "problem",
            f"CUDA_VISIBLE_DEVICES={asked!r} leaves {seen} of {there} GPUs, and torch counts those from cuda:0",
            "Unset it, or name the GPUs you want, before Python starts. Later changes go unheard.",
        )


def driver() -> Iterator[Finding]:
    """Whether the driver is new enough for torch's CUDA, and torch has code for the GPUs."""
    known = re.search(r"CUDA Version:\s*(\d+)\.(\d+)", _output_of("nvidia-smi") or "")
    if known and torch.version.cuda:
        major, minor = (int(part) for part in torch.version.cuda.split(".")[:2])
        text = f"the driver runs CUDA up to {known[1]}.{known[2]}, torch was built for {major}.{minor}"
        # Within a major version an older driver will do: https://docs.nvidia.com/deploy/cuda-compatibility/
        if int(known[1]) < major:
            yield Finding("driver", "problem", text, f"Update the driver, or install torch built for CUDA {known[1]}.")
        else:
            yield Finding("driver", "fine", text)
    kinds = [re.fullmatch(r"(sm|compute)_(\d+)(\d)\w?", kind) for kind in torch.cuda.get_arch_list()]
    built = [(kind[1], int(kind[2]), int(kind[3])) for kind in kinds if kind]
    for name, capability in dict.fromkeys((name, cap) for name, cap in _smi("--query-gpu=name,compute_cap")):
        major, minor = map(int, capability.split("."))
        runs = any((kind == "compute" or m == major) and (m, n) <= (major, minor) for kind, m, n in built)
        if built and not runs:
            yield Finding(
                "driver",
                "problem",
                f"torch has no code for {name} (compute capability {capability})",
                "Install another build of torch: https://pytorch.org/get-started/locally/",
            )


def nccl() -> Iterator[Finding]:
    """Whether the backend for GPUs is there."""
    if not torch.cuda.device_count():
        return
    if not torch.distributed.is_nccl_available():
        yield Finding(
            "nccl", "problem", "this torch has no nccl", "Use gloo, which carries CUDA tensors too, or another build."
        )
        return
    yield Finding("nccl", "fine", "version " + ".".join(map(str, torch.cuda.nccl.version())))
    if torch.cuda.device_count() == 1:
        yield Finding(
            "nccl",
            "note",
            "it refuses two ranks on one GPU",
            'More ranks run on the CPU. To share the GPU through gloo: launch(..., device="cuda").',
        )


def peer_access() -> Iterator[Finding]:
    """Whether GPUs can copy to each other directly."""
    numbers = range(torch.cuda.device_count())
    pairs = [(a, b) for a in numbers for b in numbers if a != b]
    cut = [f"cuda:{a} → cuda:{b}" for a, b in pairs if not torch.cuda.can_device_access_peer(a, b)]
    if cut:
        yield Finding(
            "peer access",
            "note",
            f"missing for {', '.join(cut[:4])}{' …' * (len(cut) > 4)}",
            "Copies go through the CPU's memory: correct, and slower. If a job hangs at its first collective, try it "
            "with NCCL_P2P_DISABLE=1.",
        )
    elif pairs:
        yield Finding("peer access", "fine", "every GPU can copy to every other")


def others_on_the_gpus() -> Iterator[Finding]:
    """What other processes hold, and whether more than one process may use a GPU."""
    for index, used, total, mode in _smi("--query-gpu=index,memory.used,memory.total,compute_mode"):
        if mode.startswith(("Exclusive", "Prohibited")):
            yield Finding(
                "sharing a GPU",
                "problem",
                f"GPU {index} is in compute mode {mode}: a second process gets no memory on it",
                f"Let the administrator run: nvidia-smi -i {index} -c DEFAULT",
            )
        if used.isdigit() and total.isdigit() and int(used) > 0.1 * int(total):
            yield Finding(
                "other processes",
                "note",
                f"{int(used) / 1024:.1f} of {int(total) / 1024:.0f} GiB of GPU {index} are taken already",
                "`nvidia-smi` lists who; or choose other GPUs with CUDA_VISIBLE_DEVICES.",
            )
    pids = {pid for (pid,) in _smi("--query-compute-apps=pid")} - {str(os.getpid())}
    if pids:
        yield Finding(
            "other processes",
            "note",
            f"{len(pids)} on the GPUs: {', '.join(sorted(pids, key=len)[:8])}",
            "Yours? `ps -fp PID` says. Times measured beside others mean little.",
        )


def shared_memory() -> Iterator[Finding]:
    """Whether /dev/shm, through which DataLoader's workers and nccl pass data, is large enough."""
    try:
        space = shutil.disk_usage("/dev/shm")
    except OSError:
        return  # macOS has no such folder, and does not need it
    text = f"{space.free / GIB:.1f} of {space.total / GIB:.1f} GiB free in /dev/shm"
    if space.total < GIB:
        yield Finding(
            "shared memory",
            "problem",
            f"{text}: DataLoader workers and nccl die of that with `Bus error`",
            "In a container: docker run --shm-size=8g (or --ipc=host).",
        )
    elif space.free < GIB / 4:
        yield Finding(
            "shared memory", "problem", text, "See what fills it, with `ls -l /dev/shm`, and remove leftovers."
        )
    else:
        yield Finding("shared memory", "fine", text)


def ports() -> Iterator[Finding]:
    """Whether ranks can meet on this machine at all, and whether the port of many tutorials is taken."""
    with socket.socket() as door:
        try:
            door.bind(("127.0.0.1", 0))
        except OSError as error:
            yield Finding("ports", "problem", f"no port can be opened on 127.0.0.1: {error}", "Is `lo` up? `ip link`.")
            return
    with socket.socket() as door:
        door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port that was only just left is free
        try:
            door.bind(("127.0.0.1", 29500))
        except OSError:
            yield Finding(
                "ports",
                "note",
                "29500, the port that torch's examples use, is taken",
                "Let torchrun choose: leave --master-port out, or --rdzv-endpoint=localhost:0.",
            )
            return
    yield Finding("ports", "fine", "ranks can meet on 127.0.0.1")


def names() -> Iterator[Finding]:
    """Whether this machine's own name leads to this machine, and how long the name server takes."""
    name, began = socket.gethostname(), time.monotonic()
    todo = f"Add the line `127.0.0.1 {name}` to /etc/hosts, or set GLOO_SOCKET_IFNAME to an interface (`ip link`)."
    try:
        found = {info[4][0] for info in socket.getaddrinfo(name, None)}
    except OSError as error:
        yield Finding("hostname", "problem", f"{name!r} cannot be looked up ({error}): gloo and torchrun need it", todo)
        return
    here = {address.address.partition("%")[0] for card in psutil.net_if_addrs().values() for address in card}
    if not any(address.startswith("127.") or address.partition("%")[0] in here for address in found):
        yield Finding("hostname", "problem", f"{name!r} leads to {sorted(found)[0]}, which is not this machine", todo)
        return
    socket.getnameinfo(("127.0.0.1", 0), 0)  # torch asks this at every connection between ranks
    seconds = time.monotonic() - began
    if seconds > 1:
        yield Finding(
            "hostname",
            "note",
            f"looking up {name!r} and 127.0.0.1 took {seconds:.1f} s, and ranks do so whenever they meet",
            "Put both into /etc/hosts, or set RES_OPTIONS='timeout:1 attempts:1' before Python starts.",
        )
    else:
        yield Finding("hostname", "fine", f"{name!r} leads to this machine")


def cores() -> Iterator[Finding]:
    """How many cores there are for the ranks."""
    cores, ranks = cpu_cores(), max(2, torch.cuda.device_count())
    quota, _, period = _first_line("/sys/fs/cgroup/cpu.max").partition(" ")
    if quota.isdigit() and int(quota) / int(period) < cores:
        cores = int(quota) / int(period)
    text = f"{cores:g} for {ranks} ranks"
    if cores < ranks:
        yield Finding("CPU cores", "note", text, "Ranks take turns, so times say little. Results are the same.")
    else:
        yield Finding("CPU cores", "fine", text)


def memory() -> Iterator[Finding]:
    """How much of the machine's memory is free for the ranks."""
    free, ranks = psutil.virtual_memory().available, max(2, torch.cuda.device_count())
    limit, used = _first_line("/sys/fs/cgroup/memory.max"), _first_line("/sys/fs/cgroup/memory.current")
    if limit.isdigit() and used.isdigit():
        free = min(free, int(limit) - int(used))
    text = f"{free / GIB:.1f} GiB free for {ranks} ranks"
    if free < ranks * GIB:
        yield Finding("memory", "note", text, "Close other notebooks: a rank that finds no memory is killed, silently.")
    else:
        yield Finding("memory", "fine", text)


def environment() -> Iterator[Finding]:
    """Whether variables of another job are set here."""
    left = [name for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT") if name in os.environ]
    if left:
        yield Finding(
            "environment",
            "problem",
            f"{', '.join(left)} set here: init_process_group() takes them for a job's and waits for its ranks",
            f"Before Python starts: unset {' '.join(left)}",
        )


def trial() -> Iterator[Finding]:
    """Whether two ranks really start, meet and add."""
    try:
        run = launch(_add, nproc_per_node=2, quiet=True, timeout=30)
    except (RankError, RuntimeError, OSError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        yield Finding("a launch of two ranks", "problem", reason, "Lesson 6.1 goes through what can be behind it.")
        return
    yield Finding("a launch of two ranks", "fine", f"they met and added, on {run.device} through {run.backend}")


LOOKS = (
    *(gpus, visible_devices, driver, nccl, peer_access, others_on_the_gpus),
    *(shared_memory, ports, names, cores, memory, environment, trial),
)


def _add() -> float:
    one = torch.ones(1, device=device())
    torch.distributed.all_reduce(one)
    return one.item()


def _output_of(*command: str) -> str | None:
    """What a command prints; None where it is missing, fails, or takes over ten seconds."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None


def _smi(query: str) -> list[list[str]]:
    """The rows that nvidia-smi answers to a query; none where there is no NVIDIA driver."""
    text = _output_of("nvidia-smi", query, "--format=csv,noheader,nounits") or ""
    return [[part.strip() for part in line.split(",")] for line in text.splitlines() if line.strip()]


def _first_line(path: str) -> str:
    """The first line of a file; empty where there is none."""
    try:
        return Path(path).read_text().partition("\n")[0]
    except OSError:
        return ""

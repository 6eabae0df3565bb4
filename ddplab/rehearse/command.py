"""`python -m ddplab rehearse`: start the script on virtual GPUs, then say what was found."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil

from . import KINDS, environment, report

USAGE = """usage: python -m ddplab rehearse [--gpus N] [--gpu-type T4] [--gpu-memory 24GiB]
           [--json FILE] [--markdown FILE] [--strict [--copies-per-step N]]
           (--nproc-per-node N [torchrun's own options] | --python) script.py [the script's options]"""
INTERRUPTED = 130  # as a shell has it
UNITS = {"gib": 2**30, "mib": 2**20, "kib": 2**10, "gb": 10**9, "mb": 10**6, "b": 1}


def memory(text: str) -> int:
    """Bytes: "24GiB", "512MiB". Raises ValueError."""
    number = text.rstrip("GgMmKkIiBb")
    return int(float(number) * UNITS[text[len(number) :].lower() or "b"])


VALUES = {  # option -> what it is called here, and what reads its value
    "--gpus": ("gpus", int),
    "--nproc-per-node": ("gpus", int),
    "--gpu-type": ("type", lambda name: KINDS[name] and name),
    "--gpu-memory": ("memory", memory),
    "--json": ("json", str),
    "--markdown": ("markdown", str),
    "--copies-per-step": ("copies", int),
}
SWITCHES = ("--strict", "--python")
NOT_GIVEN = {"gpus": None, "type": None, "memory": 0, "json": None, "markdown": None, "copies": 0}


def parsed(arguments: list[str]) -> tuple[dict, list[str]]:
    """Our options, and what is torchrun's or python's: the options before the script that are not ours, and all after.

    Raises ValueError with what is wrong.
    """
    ours = NOT_GIVEN | {name[2:]: False for name in SWITCHES}
    rest, todo = [], list(arguments)
    while todo and todo[0].startswith("-"):
        name, equals, value = todo.pop(0).partition("=")
        name = name.replace("_", "-")
        if name in SWITCHES:
            ours[name[2:]] = True
        elif name in VALUES:
            if not equals and not todo:
                raise ValueError(f"{name} needs a value")
            value = value if equals else todo.pop(0)
            key, reads = VALUES[name]
            if name == "--nproc-per-node":
                rest.append(f"{name}={value}")
                if ours["gpus"] or not value.isdigit():
                    continue
            try:
                ours[key] = reads(value)
            except (KeyError, ValueError):
                known = f" (there are {', '.join(KINDS)})" if key == "type" else ""
                raise ValueError(f"{name} {value}: not understood{known}") from None
        else:  # torchrun's or python's, which knows which of them take a value
            rest += [name + equals + value if equals else name, *todo]
            return ours, rest
    return ours, rest + todo


def _run(command: list[str], env: dict[str, str]) -> int:
    """Run it to its end and return its exit status; an interrupt ends it and all that it has started: 130."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # timeout's, or of a workflow that is cancelled
    try:
        return subprocess.Popen(command, env=env).wait()
    except KeyboardInterrupt:
        for number in (signal.SIGINT, signal.SIGTERM):  # an impatient second one would leave all of it behind
            signal.signal(number, signal.SIG_IGN)
        print("interrupted: what was found until then", file=sys.stderr)
        started = psutil.Process().children(recursive=True)
        for ask in (psutil.Process.terminate, psutil.Process.kill):
            for it in started:
                with contextlib.suppress(psutil.NoSuchProcess):
                    ask(it)
            _, started = psutil.wait_procs(started, timeout=3)
        return INTERRUPTED


def main(arguments: list[str]) -> int:
    """Run it. Returns the script's exit status; 1 where --strict objects; 2 if it was not started."""
    if arguments[:1] in (["-h"], ["--help"]):
        print(USAGE)
        return 0
    try:
        ours, rest = parsed(arguments)
    except ValueError as error:
        print(f"{USAGE}\n{error}", file=sys.stderr)
        return 2
    if not rest:
        print(USAGE, file=sys.stderr)
        return 2
    gpus, kind = ours["gpus"] or 2, ours["type"]
    limit = ours["memory"] or (KINDS[kind].gib * 2**30 if kind else 0)
    meeting = any(a.startswith(("--standalone", "--nnodes", "--rdzv", "--master", "--node")) for a in rest)
    torchrun = ["-m", "torch.distributed.run", *([] if meeting else ["--standalone"])]
    with tempfile.TemporaryDirectory(prefix="rehearsal-") as folder:
        book = str(Path(folder, "book"))
        env = os.environ | environment(book, gpus, limit, kind or "H100")
        code = _run([sys.executable, *([] if ours["python"] else torchrun), *rest], env)
        found = report.read(book, gpus)
        if code == INTERRUPTED:
            found["stood"] = report.stood(book, gpus)
    found["exit_status"] = code
    found["objections"] = report.objections(found, ours["copies"]) if ours["strict"] else []
    found["gpu_type"], found["gpu_memory"] = kind, limit
    print(report.text(found), file=sys.stderr)
    if ours["markdown"]:
        with open(ours["markdown"], "a", encoding="utf-8") as file:  # a workflow's summary grows
            file.write(report.markdown(found))
    if ours["json"]:
        Path(ours["json"]).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return code or int(bool(found["objections"]))

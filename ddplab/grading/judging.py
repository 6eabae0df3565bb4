"""The processes of `grade`: one that has imported torch and forks itself for each notebook, and these forks.

A fork confines itself, then runs what it is sent, a cell at a time, and judges: with checks that it imports afresh
each time, from files that nothing here can write. It says what it found under the number that came with the question.

What the learner's code may have done to the judge in this same process is looked for in two ways: the blank of the
course is judged as well, and must not pass; and the functions that checks rely on must be those of before. Else the
verdict is worth nothing (`NOT_BELIEVED`). Code that is written against exactly this gets through.
"""

import contextlib
import importlib
import inspect
import json
import os
import random
import shutil
import signal
import socket
import sys
import tempfile
import time
from types import ModuleType
from typing import Any, NoReturn

import psutil

from ddplab.agents import load_ipython_extension
from ddplab.grading.confinement import adopt_orphans, confine, die_with_parent, limit

DID_NOT_RUN, NOT_BELIEVED = "did not run", "not believed"
RELIED_ON = {
    "builtins",
    "math",
    "numpy",
    "operator",
    "torch",
    "torch.distributed",
    "torch.nn.functional",
    "torch.testing",
}


def serve(number: int) -> None:
    """Fork for each order that comes through this socket; end what is left of the fork when that is asked for.

    Ends when nobody holds the other end any more.
    """
    importlib.import_module("matplotlib.pyplot")  # what notebooks import, and what would look for a cache at home
    importlib.import_module("IPython.core.interactiveshell")
    adopt_orphans()
    orders, folder = socket.socket(fileno=number), ""
    while True:
        data, files, *_ = socket.recv_fds(orders, 1 << 20, 2)
        if not data:  # whoever asked is gone, killed perhaps
            _end_all()
            remove(folder)
            return
        order = json.loads(data)
        folder = order["folder"] if order != "end" else folder
        if order == "end":
            _end_all()
        elif sys.platform == "darwin" or os.fork() == 0:  # on macOS one process for each: a fork of torch is unsafe
            orders.close()
            _play(*files, **order)
        for file in files:
            os.close(file)
        orders.send(b"done")


def remove(folder: str) -> None:
    """Remove a folder, also one whose folders were closed. What links in it lead to stays as it is."""
    for where, names, _ in os.walk(folder):
        for path in [os.path.join(where, name) for name in names]:
            if not os.path.islink(path):
                os.chmod(path, 0o700)
    shutil.rmtree(folder, ignore_errors=True)


def _end_all() -> None:
    """Kill what descends from this process, whatever group or session it hides in, and see all of it gone."""
    with contextlib.suppress(ChildProcessError):
        while True:
            for process in psutil.Process().children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
            time.sleep(0.01)


def _play(number: int, output: int, folder: str, readable: list[str], listed: list[str], env: dict) -> NoReturn:
    """Be the process of one notebook: answer each question that comes through the socket, until there are no more."""
    if os.getsid(0) != os.getpid():
        os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for stream in (1, 2):
        os.dup2(output, stream)
    os.close(output)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(folder)
    tempfile.tempdir = None
    limit()
    channel = socket.socket(fileno=number)
    questions, answers = channel.makefile("r", encoding="utf-8"), channel.makefile("w", encoding="utf-8")

    def tell(answer: dict[str, Any]) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    tell({"not_confined": confine(folder, readable, listed)})
    die_with_parent()
    for module in ("torch", "numpy.random", "random"):
        importlib.import_module(module).seed()  # not the same in each fork
    shell = _shell()
    before = _functions()
    for line in questions:
        question = json.loads(line)
        nonce, call = question.pop("nonce"), question.pop("call", None)
        verdict = _replaced(before) if call else None
        tell({"nonce": nonce} | (verdict or (_verdict if call else _run)(shell, *filter(None, [call]), **question)))
    os._exit(0)


def _shell() -> Any:
    """Return an IPython that keeps no history, whose `check` says nothing: what is checked is asked for by name."""
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    shell = InteractiveShell.instance(config=Config(HistoryManager={"enabled": False}))
    load_ipython_extension(shell)
    sys.modules["ddplab"].check = lambda *_, **__: None
    return shell


def _run(shell: Any, source: str) -> dict[str, Any]:
    """Run a cell. Returns its error, if any, and whether it was one of spelling, so that nothing of the cell ran."""
    done = shell.run_cell(source, store_history=False)
    error = done.error_before_exec or done.error_in_exec
    if error is None:
        return {"error": ""}
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    if isinstance(error, SyntaxError):
        text = f"{error.msg} (line {error.lineno})"
    kind = type(error).__name__
    return {"error": f"{kind}: {text}" if text else kind, "unread": done.error_before_exec is not None}


def _functions() -> dict[tuple[str, str], Any]:
    """The functions and classes of modules that checks rely on, by module and name."""
    names = [name for name in sys.modules if name in RELIED_ON or name.partition(".")[0] == "ddplab"]
    owners = [(name, vars(sys.modules[name])) for name in names if not name.startswith("ddplab.checks")]
    tensor = sys.modules["torch"].Tensor
    owners.append(("torch.Tensor", {name: inspect.getattr_static(tensor, name) for name in dir(tensor)}))
    found = {(owner, name): it for owner, there in owners for name, it in there.items() if callable(it)}
    found.pop(("ddplab", "check"), None)  # verdicts do not come from it
    return found


def _replaced(before: dict[tuple[str, str], Any]) -> dict[str, str] | None:
    """The verdict where one of these functions is another now, and none that the course puts there; else None."""
    for (owner, name), now in _functions().items():
        if now is not before.get((owner, name), now) and not _is_ours(now):
            what = f"{owner}.{name} is not what it was: something in this notebook changes what the checks see"
            return {"state": NOT_BELIEVED, "message": what, "hint": ""}
    return None


def _is_ours(function: Any) -> bool:  # virtual GPUs take the place of some of torch's
    if code := getattr(function, "__code__", None):
        return code.co_filename.startswith(os.path.dirname(os.path.dirname(__file__)) + os.sep)
    module = getattr(function, "__module__", None) or ""
    known = getattr(sys.modules.get(module), getattr(function, "__name__", ""), None)
    return module.startswith("ddplab.") and known is function


def _verdict(shell: Any, call: str, blank: str) -> dict[str, str]:
    """Judge the answer that `call`, a line of the course's notebook, passes to `check`: state, message and hint.

    blank: the cell as the course has it, which is judged as well, before or after; "" where it takes long to run.
    """
    namespace = shell.user_ns
    try:
        asked = {"answer": _arguments(call, namespace)}
        if blank:
            unwritten = dict(namespace)
            exec(compile(blank, "<blank>", "exec"), unwritten)
            asked["blank"] = _arguments(call, unwritten)
    except Exception as error:
        return {"state": DID_NOT_RUN, "message": f"{type(error).__name__}: {error}", "hint": ""}
    checks = _fresh_checks()
    found = {which: checks.judge(*asked[which]) for which in random.SystemRandom().sample([*asked], len(asked))}
    if blank and found["blank"].state == checks.CORRECT:
        what = "the unwritten exercise passes as well: something in this notebook changes what the checks see"
        return {"state": NOT_BELIEVED, "message": what, "hint": ""}
    verdict = found["answer"]
    return {"state": verdict.state, "message": verdict.message, "hint": verdict.hint}


def _arguments(call: str, namespace: dict[str, Any]) -> tuple:
    """Return what a line `check(…)` would pass, evaluated in a notebook's namespace."""
    passed: list[tuple] = []
    exec(compile(call, "<check>", "exec"), {**namespace, "check": lambda *given: passed.append(given)})
    return passed[0]


def _fresh_checks() -> ModuleType:
    """Import `ddplab.checks` from its files again: what was done to the modules before is gone."""
    for name in [name for name in sys.modules if f"{name}.".startswith("ddplab.checks.")]:
        del sys.modules[name]
    return importlib.import_module("ddplab.checks")

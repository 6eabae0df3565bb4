"""What other people on the machine can reach of a run: see workshop/SECURITY.md, each line of which names its test."""

import contextlib
import ipaddress
import json
import os
import re
import stat
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from leftovers import until

from ddplab import launch, torchrun
from ddplab.hardware import loopback

ROOT = Path(__file__).parent.parent
NOBODY = 65534
WAITS = """import os, time, torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
if dist.get_rank() == 0:  # alone: a rank that is late would make it again when the test has taken it away
    open(os.environ["READY"], "a").close()
dist.barrier()
while os.path.exists(os.environ["READY"]):
    time.sleep(0.05)
"""


def wait_together():
    exec(WAITS.replace('dist.init_process_group("gloo")', ""))


@pytest.fixture
def ready(tmp_path, monkeypatch):
    """A file that a rank makes when all have met; they go on when it is gone."""
    monkeypatch.setenv("READY", str(tmp_path / "ready"))
    return tmp_path / "ready"


def listening() -> set[tuple[str, int]]:
    """The addresses and ports at which this process and all that it started accept connections."""
    found = set()
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        try:
            connections = process.net_connections(kind="inet")
        except psutil.NoSuchProcess:
            continue
        found |= {tuple(it.laddr) for it in connections if it.status == psutil.CONN_LISTEN}
    return found


def as_another_user(tries: dict[str, Callable]) -> list[str]:
    """Make the tries in a child that is nobody; return the names of those that were let."""
    reads, writes = os.pipe()
    if (child := os.fork()) == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        let = []
        for name, attempt in tries.items():
            with contextlib.suppress(OSError):
                attempt()
                let.append(name)
        os.write(writes, json.dumps(let).encode())
        os._exit(0)
    os.close(writes)
    with open(reads) as answer:
        said = answer.read()
    os.waitpid(child, 0)
    return json.loads(said)


@pytest.mark.parametrize("how", ["launch", "torchrun"])
def test_nothing_listens_beyond_this_machine(how, ready, tmp_path, monkeypatch):
    for name in loopback():
        monkeypatch.delenv(name, raising=False)
    script = tmp_path / "waits.py"
    script.write_text(WAITS)
    before = listening()  # an answer to an exercise, judged by this process, forgot to close its socket
    run = launch(wait_together, wait=False, quiet=True) if how == "launch" else torchrun(script, wait=False, quiet=True)
    until(ready.exists, 60)
    found = listening() - before
    ready.unlink()
    run.wait()
    assert found and all(ipaddress.ip_address(address).is_loopback for address, _ in found), found


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user: needs root")
def test_another_user_reaches_nothing_of_a_run(ready):
    """Neither its folder, nor what it returns, nor the processes' sockets, nor the processes."""
    run = launch(wait_together, wait=False, quiet=True)
    until(ready.exists, 60)
    (folder,) = [it for it in Path(os.environ["TMPDIR"]).glob("ddplab-*")]
    pids = [it.pid for it in psutil.Process().children(recursive=True)]
    tries = {
        "list what is everybody's": lambda: os.listdir("/"),
        "look into its folder": lambda: os.listdir(folder),
        "read its function": lambda: os.open(folder / "fn", os.O_RDONLY),
        "forge a result": lambda: os.open(folder / "0.result", os.O_WRONLY | os.O_CREAT),
        **{f"signal {pid}": lambda pid=pid: os.kill(pid, 0) for pid in pids},
        **{f"see the files of {pid}": lambda pid=pid: os.listdir(f"/proc/{pid}/fd") for pid in pids},
    }
    reached = as_another_user(tries)
    ready.unlink()
    run.wait()
    assert reached == ["list what is everybody's"] and len(tries) >= 10


def test_what_a_run_leaves_for_others_to_unpickle_lies_where_only_its_owner_may_enter(ready):
    run = launch(wait_together, wait=False, quiet=True)
    until(ready.exists, 60)
    folders = [
        it for it in Path(os.environ["TMPDIR"]).iterdir() if it.is_dir() and it.name.startswith(("ddplab-", "pymp-"))
    ]
    modes = {it.name: stat.S_IMODE(it.stat().st_mode) for it in folders}
    ready.unlink()
    run.wait()
    assert len(modes) >= 2 and set(modes.values()) == {0o700}, modes


def test_each_line_of_the_page_names_a_test_that_is_there():
    page = (ROOT / "workshop" / "SECURITY.md").read_text(encoding="utf-8")
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", page)
    assert len(named) >= 11
    for file, test in named:
        assert f"def {test}(" in (ROOT / file).read_text(encoding="utf-8"), f"{file}::{test}"

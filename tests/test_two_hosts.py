"""torchrun over two hosts: two network namespaces with a cable between them, which one test cuts.

A namespace has its own addresses and ports, so a port may be fixed here. Making one needs root and `ip`.
"""

import os
import shutil
import signal
import subprocess
import sys
import uuid
from types import SimpleNamespace

import pytest
from leftovers import until

ADDRESSES = ("198.18.0.1", "198.18.0.2")  # of the range that RFC 2544 sets aside for tests of networks


def ip(*words: str) -> subprocess.CompletedProcess:
    return subprocess.run(["ip", *words], capture_output=True, text=True)


@pytest.fixture
def hosts():
    """Two namespaces that can reach each other: their names, and the name of the card in each."""
    if shutil.which("ip") is None:
        pytest.skip("needs the command `ip`, of the package iproute2")
    tag = uuid.uuid4().hex[:6]
    names, cards = [f"ddplab-{tag}-{n}" for n in "ab"], [f"dl{tag}{n}" for n in "ab"]
    try:
        for name in names:
            if (done := ip("netns", "add", name)).returncode:
                pytest.skip(f"cannot make a network namespace here (that needs root): {done.stderr.strip()}")
        ip("link", "add", cards[0], "netns", names[0], "type", "veth", "peer", "name", cards[1], "netns", names[1])
        for name, card, address in zip(names, cards, ADDRESSES, strict=True):
            ip("-n", name, "addr", "add", f"{address}/24", "dev", card)
            for each in (card, "lo"):
                done = ip("-n", name, "link", "set", each, "up")
                if done.returncode:
                    pytest.skip(f"cannot connect two network namespaces here: {done.stderr.strip()}")
            # a host that is cut off notices when TCP gives up: by default after a quarter of an hour, here in seconds
            ip("netns", "exec", name, "sh", "-c", "echo 3 > /proc/sys/net/ipv4/tcp_retries2")
        yield SimpleNamespace(names=names, cards=cards)
    finally:
        for name in names:
            for pid in ip("netns", "pids", name).stdout.split():
                os.kill(int(pid), signal.SIGKILL)
            ip("netns", "del", name)


@pytest.fixture
def torchrun(hosts, tmp_path):
    """Start torchrun's agent on one of the hosts: (host, options, script) -> Popen."""
    started = []

    def start(host: int, options: list[str], script: str, patience: str = "") -> subprocess.Popen:
        file = tmp_path / "script.py"
        file.write_text(script)
        agent = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=1", "--rdzv-backend=c10d"]
        meeting = [f"--rdzv-endpoint={ADDRESSES[0]}:29400", "--rdzv-id=two-hosts", f"--local-addr={ADDRESSES[host]}"]
        # an agent finds out by its hostname whether it holds the meeting; this hostname leads to neither namespace
        meeting.append(f"--rdzv-conf=is_host={host == 0},{patience}".rstrip(","))
        # gloo would take the address of that hostname, too
        env = {**os.environ, "GLOO_SOCKET_IFNAME": hosts.cards[host], "HOST_NAME": "ab"[host], "OUT": str(tmp_path)}
        command = ["ip", "netns", "exec", hosts.names[host], *agent, *meeting, *options, str(file)]
        with open(tmp_path / f"log{host}", "w") as log:
            started.append(subprocess.Popen(command, env=env, stdout=log, stderr=log))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


SUM = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
value = torch.tensor(10.0 ** dist.get_rank())
dist.all_reduce(value)
open(f"{os.environ['OUT']}/{os.environ['HOST_NAME']}", "w").write(f"{value.item():g}")
from ddplab import cleanup
cleanup()
"""


def test_ranks_on_two_hosts_add_up(torchrun, tmp_path):
    agents = [torchrun(host, ["--nnodes=2"], SUM) for host in (0, 1)]
    assert [agent.wait(120) for agent in agents] == [0, 0], (tmp_path / "log0").read_text()
    assert [(tmp_path / name).read_text() for name in "ab"] == ["11", "11"]


STEPS = """
import datetime, os, time, torch, torch.distributed as dist
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=4))
world = dist.get_world_size()
out = f"{os.environ['OUT']}/{os.environ['HOST_NAME']}"
for step in range(10**6 if world == 2 else 3):
    value = torch.ones(1)
    try:
        dist.all_reduce(value)
    except RuntimeError as error:
        open(out + ".error", "w").write(str(error))
        raise
    with open(f"{out}.{world}", "a") as file:
        file.write(f"{value.item():g}\\n")
    time.sleep(0.05)
from ddplab import cleanup
cleanup()
"""


def cut_off(error: str) -> bool:
    """Whether a collective has failed for want of an answer; the host without a cable may also be told at once."""
    return "imed out" in error or "Network is unreachable" in error


def test_when_a_host_is_cut_off_the_other_says_so_and_goes_on_alone(hosts, torchrun, tmp_path):
    """The cable is cut in the middle of training: no process dies, no connection is closed, there is silence."""
    patience = "last_call_timeout=2,keep_alive_interval=1,keep_alive_max_attempt=3"
    agents = [torchrun(host, ["--nnodes=1:2", "--max-restarts=1"], STEPS, patience) for host in (0, 1)]
    log = tmp_path / "log0"
    assert until(lambda: (tmp_path / "a.2").exists() and (tmp_path / "b.2").exists(), 120), log.read_text()
    ip("-n", hosts.names[0], "link", "set", hosts.cards[0], "down")

    assert agents[0].wait(120) == 0, log.read_text()
    assert cut_off((tmp_path / "a.error").read_text())
    assert set((tmp_path / "a.2").read_text().split()) == {"2"}  # both, until the cut
    assert (tmp_path / "a.1").read_text().split() == ["1"] * 3  # restarted, alone, to the end
    assert agents[1].wait(120) != 0  # its agent has lost the meeting, which host a held
    assert cut_off((tmp_path / "b.error").read_text())
    assert not (tmp_path / "b.1").exists()

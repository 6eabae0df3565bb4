"""Leases: who gets which device when, also when people die, differ or mean harm. Names stand in for real GPUs."""

import ctypes
import fcntl
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import cloudpickle
import psutil
import pytest
from leftovers import until

from ddplab import RankError, RankTimeoutError, launch, lease, log, tickets, torchrun
from ddplab.hardware import cpu_cores
from ddplab.lease import Lease

GPUS = ["gpu a", "gpu b"]


@pytest.fixture
def folder(monkeypatch):
    """A folder of tickets that other users may enter too."""
    above = tempfile.mkdtemp(prefix="leases-", dir="/tmp")
    os.chmod(above, 0o755)
    path = os.path.join(above, "shared")
    monkeypatch.setenv("DDPLAB_LEASES", path)
    monkeypatch.setattr(lease, "LOOK", 0.0)
    yield tickets.lease_folder(path)
    shutil.rmtree(above)


@pytest.fixture
def ask(folder):
    """Take a lease that ends with the test."""
    asked = []

    def ask(count: int, allowed: list[str] = GPUS, limit: int = 0, kind: str = "GPU") -> Lease:
        asked.append(Lease(folder, kind, allowed, count, limit))
        return asked[-1]

    yield ask
    for it in asked:
        it.end()


alive: dict[int, subprocess.Popen | None] = {}  # started and not killed yet; None: a fork of this process
STANDS = "import cloudpickle, sys, time; cloudpickle.load(sys.stdin.buffer)(); print(flush=True); time.sleep(60)"


@pytest.fixture(autouse=True)
def nothing_outlives_a_test():
    yield
    for pid in list(alive):
        kill(pid)


def elsewhere(work) -> int:
    """Run `work` in a process of its own, which then waits for its end; return its pid once it waits.

    No fork: one of pytest's process, after other tests' threads, may crash by itself.
    """
    process = subprocess.Popen([sys.executable, "-c", STANDS], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    alive[process.pid] = process
    process.stdin.write(cloudpickle.dumps(work))
    process.stdin.close()
    assert process.stdout.read(1), "it failed: what it raised stands above"
    return process.pid


def kill(pid: int) -> None:
    process = alive.pop(pid)
    os.kill(pid, signal.SIGKILL)
    process.wait() if process else os.waitpid(pid, 0)
    if process:
        process.stdout.close()


# ------------------------------------------------------------------ order


def test_devices_come_all_at_once_and_in_order(ask):
    first, both, one = ask(1), ask(2), ask(1)
    assert first.devices == ["gpu a"]
    assert not both.ready() and not one.ready(), "one is free, and is kept for who came before"
    assert "waits for 2 GPUs: first in the queue (a run of this notebook has 1 GPU since" in both.words()
    assert one.words().startswith("waits for 1 GPU: second in the queue")
    first.end()
    assert not one.ready() and both.ready() and both.devices == GPUS
    both.end()
    assert one.ready()


def test_who_can_use_other_devices_need_not_wait(ask):
    ask(2), ask(1)
    assert ask(1, ["gpu c"]).devices == ["gpu c"], "a container with a GPU of its own"
    assert ask(1, ["core 0"], kind="core").devices, "cores are no GPUs"


def test_who_has_their_share_is_passed_over(ask, monkeypatch):
    assert ask(1, limit=1).devices
    again = ask(1, limit=1)
    assert not again.devices
    monkeypatch.setenv("JUPYTERHUB_USER", "ben")
    his = ask(1, limit=1)
    assert his.devices == ["gpu b"]
    assert tickets.read_tickets(his.folder)[-1].owner.startswith("ben (")
    his.end()
    assert not again.ready(), "a device is free, but its learner has one"


def test_who_does_not_take_their_turn_is_passed_over_after_a_while(ask, monkeypatch):
    first, stopped, other = ask(2), ask(2), ask(1)
    first.end()
    assert not other.ready(), "it is the other's turn"
    monkeypatch.setattr(lease, "SKIPPED", 0.0)
    time.sleep(0.01)
    assert other.ready() and not stopped.ready()


def test_waiting_has_an_end(ask, monkeypatch):
    ask(2)
    late = ask(1)
    assert late.given_up() == ""
    monkeypatch.setenv("DDPLAB_LEASES_WAIT", "0")
    assert "after 0 s this run still waits for 1 GPU: first" in late.given_up()
    assert "DDPLAB_LEASES_WAIT" in late.given_up()


# ------------------------------------------------------------------ death, users, containers


def test_a_killed_holder_and_a_killed_waiter_leave_nothing(ask, folder):
    holder = elsewhere(lambda: Lease(folder, "GPU", GPUS, 2))
    waiter = elsewhere(lambda: Lease(folder, "GPU", GPUS, 2))
    mine = ask(1)
    assert mine.words().startswith("waits for 1 GPU: second")
    assert f"another notebook or program of yours, process {holder}, has 2 GPUs" in mine.words()
    kill(waiter)
    assert mine.words().startswith("waits for 1 GPU: first")
    kill(holder)
    assert mine.ready() and len(os.listdir(folder)) == 2, "its ticket and the queue"


def test_a_fork_of_the_notebook_holds_nothing(ask):
    held = ask(2)
    if (child := os.fork()) == 0:
        time.sleep(60)
        os._exit(0)
    alive[child] = None
    os.dup2(os.open(os.devnull, os.O_RDONLY), held.descriptor)  # as if this process had ended: no unlock
    assert until(lambda: tickets.read_tickets(held.folder) == [])
    kill(child)


def test_who_is_given_the_descriptor_holds_the_lease_too(ask, folder):
    held, waits = ask(2), ask(1)
    rank = subprocess.Popen(["sleep", "60"], pass_fds=[held.descriptor])
    os.dup2(os.open(os.devnull, os.O_RDONLY), held.descriptor)
    assert not waits.ready(), "the notebook is gone, what it has started is not"
    rank.kill()
    rank.wait()
    assert waits.ready()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can play two users")
def test_two_users_wait_for_each_other_and_remove_only_their_own(ask, folder):
    def as_user(uid: int):
        def work():
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
            os.umask(0o077)
            theirs = Lease(folder, "GPU", GPUS, 1)
            assert theirs.devices
            for it in tickets.read_tickets(folder):
                if it.name != theirs.mine.name and lease.main(["break", it.name]) == 0:
                    os._exit(1)

        return work

    one, two = elsewhere(as_user(23456)), elsewhere(as_user(34567))
    mine = ask(1)
    assert "user 23456's run has 1 GPU" in mine.words() and "user 34567's run has 1 GPU" in mine.words()
    kill(two)
    assert mine.ready() and mine.devices == ["gpu b"]
    kill(one)


@pytest.mark.skipif(os.getuid() != 0 or sys.platform != "linux", reason="only root can make namespaces")
def test_containers_that_share_the_folder_wait_for_each_other(ask, folder):
    """Two namespaces of process ids and mounts: neither sees the other's processes."""
    apart = 0x20000000 | 0x00020000  # CLONE_NEWPID, CLONE_NEWNS

    def contained():
        if ctypes.CDLL(None, use_errno=True).unshare(apart) != 0:
            os._exit(0)
        holds, held = os.pipe()
        if os.fork() == 0:  # the first process of the new namespace
            Lease(folder, "GPU", GPUS, 2)
            os.write(held, b"x")
            time.sleep(60)
        os.read(holds, 1)

    try:
        outside = elsewhere(contained)
    except AssertionError:
        pytest.skip("this machine lets nobody make namespaces")
    mine = ask(1)
    assert not mine.ready() and "process 1, has 2 GPUs" in mine.words()
    os.kill(psutil.Process(outside).children()[0].pid, signal.SIGKILL)
    assert until(mine.ready)
    kill(outside)


def ten_at_once_of_whom_some_die(folder: str) -> None:
    """Fork ten who want devices, three times each; each proves by another kind of lock that it is alone on its device.

    The kernel ends that lock first when its holder dies. AssertionError where two had one device.
    """
    marks = {name: Path(folder).parent / name for name in GPUS}
    for mark in marks.values():
        mark.touch()

    def work():
        random.seed(os.getpid())
        files = {name: open(mark, "r+") for name, mark in marks.items()}
        for _ in range(3):
            mine = Lease(folder, "GPU", GPUS, random.choice([1, 1, 2]))
            while not mine.ready():
                time.sleep(0.002)
            try:
                for name in mine.devices:
                    fcntl.lockf(files[name], fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os._exit(3)
            if random.random() < 0.2:
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(0.003)
            for name in mine.devices:
                fcntl.lockf(files[name], fcntl.LOCK_UN)
            mine.end()

    pids = []
    for _ in range(10):
        if (pid := os.fork()) == 0:
            try:
                work()
                os._exit(0)
            finally:
                os._exit(4)
        pids.append(pid)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    assert set(codes) <= {0, -signal.SIGKILL}, f"3: two had one device: {codes}"
    assert tickets.read_tickets(folder) == []


@pytest.mark.times(1, stress=200)
def test_many_at_once_with_random_deaths_never_share_a_device(folder, times):
    """From a process with one thread: a fork of pytest's own, after other tests' threads, may crash by itself."""
    code = f"import test_lease\nfor _ in range({len(times)}):\n    test_lease.ten_at_once_of_whom_some_die({folder!r})"
    environment = {**os.environ, "PYTHONFAULTHANDLER": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(__file__).parent, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


# ------------------------------------------------------------------ harm


def test_other_files_hold_nothing_up(ask, folder):
    def name(ns: int, part: str) -> str:
        return os.path.join(folder, f"{ns:020d}.{part * 12}")

    claim = {"kind": "GPU", "count": 2, "allowed": GPUS, "limit": 0, "taken": GPUS, "since": 0, "pid": 1, "learner": ""}
    os.mkfifo(name(1, "a"))
    os.symlink("/dev/zero", name(2, "b"))
    os.mkdir(name(3, "c"))
    locked = []
    for ns, part, text in [
        (4, "d", "[" * 100_000),
        (5, "e", json.dumps({**claim, "count": "many"})),
        (time.monotonic_ns() + 10**15, "f", json.dumps(claim)),  # it comes from the future, so as never to get old
    ]:
        Path(name(ns, part)).write_text(text)
        locked.append(os.open(name(ns, part), os.O_RDONLY))
        fcntl.flock(locked[-1], fcntl.LOCK_EX)
    Path(name(7, "1")).write_text(json.dumps(claim))  # nobody holds it
    assert ask(2).devices == GPUS
    for file in locked:
        os.close(file)


def test_a_queue_that_is_kept_locked_is_waited_for_a_while_only(ask, folder, monkeypatch):
    ask(1).end()
    monkeypatch.setattr(tickets, "PATIENCE", 0.05)
    jam = os.open(os.path.join(folder, "queue"), os.O_RDONLY)
    fcntl.flock(jam, fcntl.LOCK_EX)
    with pytest.warns(UserWarning, match="queue locked for 0.05 s; going on without it"):
        assert ask(1).devices
    os.close(jam)


def test_a_dead_runs_ticket_that_somebody_else_keeps_locked_gets_too_old(ask, folder, monkeypatch):
    holder = elsewhere(lambda: Lease(folder, "GPU", GPUS, 2))
    ticket = next(it for it in tickets.read_tickets(folder))
    thief = os.open(os.path.join(folder, ticket.name), os.O_RDONLY)
    kill(holder)
    fcntl.flock(thief, fcntl.LOCK_EX)
    mine = ask(1)
    assert not mine.ready()
    time.sleep(0.3)
    monkeypatch.setenv("DDPLAB_LEASES_HOLD", "0.25")
    assert mine.ready() and mine.devices == GPUS[:1]
    os.close(thief)


def test_the_instructor_sees_who_has_what_and_takes_it_away(ask, folder, capsys):
    first, second = ask(2), ask(1)
    assert lease.main([]) == 0
    table = capsys.readouterr().out
    assert "gpu a, gpu b" in table and "1 GPU" in table and first.mine.name in table
    assert lease.main(["break", first.mine.name]) == 0
    assert second.ready()
    third = ask(2)
    assert lease.main(["break", third.mine.name]) == 0
    assert "was taken from the queue" in third.given_up()
    assert lease.main(["break", "nothing"]) == 1 and lease.main(["mend"]) == 2
    first.end(), second.end()
    capsys.readouterr()
    assert lease.main([]) == 0 and "nobody has or waits" in capsys.readouterr().out


def test_a_folder_that_cannot_be_used_is_said_and_the_run_goes_on(tmp_path, monkeypatch):
    unsafe = tmp_path / "unsafe"
    unsafe.mkdir()
    unsafe.chmod(0o777)
    for path, why in [(unsafe, "chmod 1777"), (tmp_path / "no" / "where", "No such file"), (__file__, "no folder")]:
        monkeypatch.setenv("DDPLAB_LEASES", str(path))
        with pytest.warns(UserWarning, match=f"goes on without a lease.*{why}"):
            assert lease.ask("cpu", 1) is None


# ------------------------------------------------------------------ settings


def test_settings_say_which_gpus_and_how_many(monkeypatch):
    monkeypatch.setattr(lease, "gpu_names", lambda: ["GPU-1", "GPU-2", "GPU-3"])
    monkeypatch.setattr(lease.torch.cuda, "device_count", lambda: 3)
    monkeypatch.setenv("DDPLAB_LEASES", "/nowhere")
    monkeypatch.setenv("DDPLAB_LEASES_GPUS", "2, 0")
    assert lease.allowed_gpus() == ["GPU-1", "GPU-3"]
    monkeypatch.setenv("DDPLAB_LEASES_PER_LEARNER", "1")
    with pytest.warns(UserWarning, match="of the 3 GPUs here the settings .* give a run 1: 2 ranks"):
        assert lease.gpus_for_a_run(2) == 1
    monkeypatch.setenv("DDPLAB_LEASES_GPUS", "5")
    with pytest.raises(ValueError, match="names '5', which is none of this machine's 3 GPUs"):
        lease.allowed_gpus()
    monkeypatch.setenv("DDPLAB_LEASES_PER_LEARNER", "all")
    monkeypatch.setenv("DDPLAB_LEASES_GPUS", "0")
    with pytest.raises(ValueError, match="DDPLAB_LEASES_PER_LEARNER='all' is not a number"):
        lease.gpus_for_a_run()
    monkeypatch.setenv("DDPLAB_LEASES", "off")
    assert lease.gpus_for_a_run() == 3 and lease.ask("cuda", 2) is None


def test_ranks_on_the_cpu_wait_only_where_the_instructor_says_so(monkeypatch):
    monkeypatch.delenv("DDPLAB_LEASES", raising=False)
    monkeypatch.setattr(lease, "Lease", lambda *_: pytest.fail("a lease"))
    assert lease.ask("cpu", 2) is None and lease.ask("virtual", 2) is None


def test_ranks_are_given_the_gpus_of_their_run(ask, monkeypatch):
    monkeypatch.setattr(lease, "gpu_names", lambda: GPUS)
    ask(1)
    assert ask(1).environment() == {"CUDA_VISIBLE_DEVICES": "gpu b"}
    assert ask(2, ["core 0", "core 1", "core 2"], kind="core").environment() == {"DDPLAB_CORES": "2"}


# ------------------------------------------------------------------ runs


def test_a_run_waits_says_so_and_is_stopped_or_gives_up_or_gets_its_turn(folder, capfd, monkeypatch):
    everything = cpu_cores()

    def work(seconds):
        time.sleep(seconds)
        log(cores=cpu_cores())
        return cpu_cores()

    first = launch(work, 600, nproc_per_node=everything, wait=False, quiet=True)
    assert until(lambda: len(first._folder.read(0, "pid") or {}) == 2, 30)
    ticket = tickets.read_tickets(folder)[0].name
    rank = first._folder.read(0, "pid")["pid"]
    assert any(ticket in os.readlink(file) for file in Path(f"/proc/{rank}/fd").iterdir()), "a rank holds it too"

    second = launch(work, 0, nproc_per_node=1, wait=False)
    assert until(lambda: second.waits)
    assert "waits for 1 core: first in the queue (a run of this notebook has" in second.summary()
    second.stop()
    assert second.state == "stopped" and second.waits == "" and len(tickets.read_tickets(folder)) == 1

    monkeypatch.setenv("DDPLAB_LEASES_WAIT", "0.2")
    with pytest.raises(RankTimeoutError, match="still waits for 1 core: first in the queue") as caught:
        launch(work, 0, nproc_per_node=1)
    assert caught.value.rank is None and caught.value.run.state == "timed out"
    assert "1 rank on cpu (gloo): waits for 1 core: first in the queue" in capfd.readouterr().out
    monkeypatch.delenv("DDPLAB_LEASES_WAIT")

    third = launch(work, 0, nproc_per_node=everything + 1, wait=False, timeout=0.5, quiet=True)
    time.sleep(1.0)
    assert third.state == "running" and third.waits, "to wait for others is not to hang"
    os.kill(rank, signal.SIGKILL)
    with pytest.raises(RankError, match="SIGKILL"):
        first.wait()
    assert third.wait().results == [everything] * (everything + 1) and third.state == "finished"
    assert all(0 <= row["time"] < 600 for row in third.metrics), "seconds since its turn came"
    assert tickets.read_tickets(folder) == []


def test_a_killed_agent_of_torchrun_leaves_no_lease(folder, tmp_path):
    script = tmp_path / "job.py"
    script.write_text("import time\ntime.sleep(600)\n")
    run = torchrun(str(script), nproc_per_node=1, wait=False, quiet=True)
    assert until(lambda: run._folder.has(0, "pid"), 60)
    ticket = tickets.read_tickets(folder)[0].name
    agent = psutil.Process(run._folder.read(0, "pid")["pid"]).ppid()
    assert any(ticket in os.readlink(file) for file in Path(f"/proc/{agent}/fd").iterdir()), "its agent holds it too"
    os.kill(agent, signal.SIGKILL)
    with pytest.raises(RankError):
        run.wait()
    assert tickets.read_tickets(folder) == []


def test_the_devices_of_a_killed_notebook_are_free_when_its_ranks_have_ended(ask, folder):
    program = (
        "import time\nfrom ddplab import launch\nif __name__ == '__main__':\n"
        "    run = launch(time.sleep, 600, nproc_per_node=1, wait=False, quiet=True, init=False)\n"
        "    while not run._folder.read(0, 'pid'): time.sleep(0.01)\n"
        "    print(run._folder.read(0, 'pid')['pid'], flush=True)\n    time.sleep(600)\n"
    )
    notebook = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    rank = int(notebook.stdout.readline())
    os.kill(rank, signal.SIGSTOP)  # it cannot end itself now
    notebook.kill()
    notebook.wait()
    notebook.stdout.close()
    assert len(tickets.read_tickets(folder)) == 1, "the rank goes on, and so does the lease"
    os.kill(rank, signal.SIGCONT)
    assert until(lambda: not tickets.read_tickets(folder), 30)

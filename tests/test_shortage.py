"""What a machine has run out of is said in a sentence, nothing is left behind, and the next launch works.

The errors are real ones: the kernel's own, of a limit on this process or of /dev/full.
"""

import contextlib
import errno
import os
import resource
import signal
import socket
import tempfile
import threading
import time

import pytest
import torch
from leftovers import spares_alive, until

from ddplab import RankError, RankTimeoutError, launch, log, processes, torchrun, worker
from ddplab.pointer import POINTER


@contextlib.contextmanager
def limited(what: int, number: int):
    """Set a limit on this process; its children keep theirs."""
    soft, hard = resource.getrlimit(what)
    resource.setrlimit(what, (number, hard))
    try:
        yield
    finally:
        resource.setrlimit(what, (soft, hard))


@contextlib.contextmanager
def says(number: int, *words: str):
    """Expect the OSError with this number, whose message holds these words and that has our pointer."""
    with pytest.raises(OSError) as caught:
        yield
    assert caught.value.errno == number, caught.value
    assert [part for part in words if part not in str(caught.value)] == [], caught.value
    assert POINTER in caught.value.__notes__
    assert caught.value.__suppress_context__ or caught.value.__context__ is None, "no second traceback above it"


def no_rank_begins():
    raise AssertionError("a rank began")


def test_files_that_may_not_grow_are_no_fault_of_the_function():
    values = bytes(500_000)
    with limited(resource.RLIMIT_FSIZE, 100_000), says(errno.EFBIG, "`ulimit -f`", "what ranks log, print and return"):
        launch(lambda: len(values), quiet=True)
    assert launch(lambda: len(values), quiet=True).results == [500_000, 500_000]


def test_a_folder_for_temporary_files_that_is_gone_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    with says(errno.ENOENT, f"nothing can be written in {tmp_path}/gone", "Set TMPDIR"):
        launch(no_rank_begins, quiet=True)


def test_a_full_disk_is_named_where_a_rank_logs_and_where_it_prints():
    def fills(file):
        log(a=1)
        torch.distributed.barrier()
        if torch.distributed.get_rank() == 1:  # from here on the file has no room
            os.dup2(os.open("/dev/full", os.O_WRONLY), worker._log_file if file == "metrics" else 1)
            log(a=2)
            print("printed")

    for file in ("metrics", "output"):
        with pytest.raises(RankError, match=r"^rank 1 raised OSError: .*No space left on device") as caught:
            launch(fills, file, quiet=True)
        assert ", in fills\n" in str(caught.value)
        rows = caught.value.run.metrics
        assert rows.column("a", rank=0) == [1] and rows.column("a", rank=1)[:1] == [1], "what was logged before is kept"

    def writes_half():
        write, written = os.write, []

        def into_the_last_room(number, data):
            if number == worker._log_file and written:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            written.append(number)
            return write(number, data[: len(data) // 2] if number == worker._log_file else data)

        os.write = into_the_last_room
        log(a=1)

    with pytest.raises(RankError, match="No space left on device") as caught:
        launch(writes_half, quiet=True)
    assert len(caught.value.run.metrics) == 0


def test_a_rank_that_cannot_even_write_down_its_exception_is_explained():
    def fills():
        torch.distributed.barrier()
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        log(a=1)

    with limited(resource.RLIMIT_FSIZE, 100_000), pytest.raises(RankError) as caught:
        launch(fills, nproc_per_node=1, quiet=True)
    first, second, *_ = str(caught.value).splitlines()
    assert first == "rank 0 left with exit status 1, without a Python exception"
    assert second.startswith("hint: File too large: a limit is set on the size of the files")


def test_no_free_port_is_said_so_of_launch_and_of_torchrun(monkeypatch, tmp_path):
    def full(*_, **__):
        raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))

    monkeypatch.setattr(socket, "create_server", full)  # the range of ports is the machine's, and no test's to narrow
    with says(errno.EADDRINUSE, "no port of this machine is free", "`ss -s`"):
        launch(no_rank_begins, quiet=True)
    (tmp_path / "job.py").write_text("")
    with says(errno.EADDRINUSE, "no port of this machine is free"):
        torchrun(str(tmp_path / "job.py"), nnodes=2, quiet=True)


def test_too_many_open_files_are_counted_and_spares_that_cannot_be_forked_are_nobodys_business(monkeypatch):
    complaints = []
    monkeypatch.setattr(threading, "excepthook", complaints.append)
    launch(lambda: None, quiet=True)
    assert until(lambda: len(spares_alive()) == 4, 20)
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    with limited(resource.RLIMIT_NOFILE, highest + 1):
        taken = []
        with contextlib.suppress(OSError):  # fill the gaps
            while True:
                taken.append(os.dup(0))
        with says(errno.EMFILE, f"this process has {highest + 1} files, pipes and sockets open", "`ulimit -n`"):
            launch(no_rank_begins, quiet=True)
        for number in taken:
            os.close(number)
    with monkeypatch.context() as patch:
        patch.setattr(processes, "_start", lambda: os.open("/nowhere", 0))  # as it fails when there are too many
        assert launch(torch.distributed.get_rank, nproc_per_node=4, quiet=True).results == [0, 1, 2, 3]
        assert until(lambda: not [t for t in threading.enumerate() if t.name.endswith("(_retire)")], 20)
    assert complaints == []


def test_a_forkserver_that_cannot_fork_is_started_again_once_and_then_it_is_said(monkeypatch):
    asked = []

    def too_many(theirs):
        asked.append(theirs)
        raise EOFError("unexpected EOF")  # what the end of a forkserver looks like from here

    monkeypatch.setattr(processes, "_fork", too_many)
    monkeypatch.setattr(processes, "_spares", [])
    monkeypatch.setattr(processes, "forkserver_alive", lambda patience=0.0: True)
    with says(errno.EAGAIN, "no further process can be started", "`ulimit -u`"):
        launch(no_rank_begins, quiet=True)
    assert len(asked) == 2


def test_a_forkserver_that_is_killed_is_named_and_started_again():
    launch(lambda: None, quiet=True)
    assert until(lambda: len(spares_alive()) == 4, 20)  # two of them will look as if they had ended with it

    def kills_it():
        log(a=1)
        torch.distributed.barrier()
        if torch.distributed.get_rank() == 0:
            os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(60)

    with pytest.raises(RankError, match=r"the forkserver, .*, was killed.*launch again") as caught:
        launch(kills_it, quiet=True)
    assert caught.value.run.metrics.column("a") == [1, 1]
    servers = launch(os.getppid, quiet=True).results
    assert servers[0] == servers[1] == os.getpgid(servers[0]), "■ must not reach it"


def test_a_clock_that_is_set_back_changes_neither_times_nor_patience(monkeypatch):
    years = iter(range(2_000_000_000, 0, -100_000))
    monkeypatch.setattr(time, "time", lambda: float(next(years)))
    monkeypatch.setattr(time, "time_ns", lambda: next(years) * 10**9)

    def trains():
        years = iter(range(2_000_000_000, 0, -100_000))
        time.time, time.time_ns = (lambda: float(next(years))), (lambda: next(years) * 10**9)
        for step in range(5):
            log(loss=step)
        if torch.distributed.get_rank() == 1:
            raise ValueError("the first")
        while True:
            try:
                torch.distributed.barrier()
            except Exception as error:
                raise RuntimeError("the second") from error

    with pytest.raises(RankError, match="rank 1 raised ValueError: the first") as caught:
        launch(trains, quiet=True)
    for rank in (0, 1):
        times = caught.value.run.metrics.column("time", rank=rank)
        assert len(times) == 5 and times == sorted(times) and 0 <= times[0] and times[-1] < 600
    with pytest.raises(RankTimeoutError, match=r"finished anything for 0\.5 s"):
        launch(lambda: threading.Event().wait(), timeout=0.5, quiet=True)

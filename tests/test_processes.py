"""Promise 3: processes are forked ahead, live in the moment of the call, are used once, and go with the notebook."""

import os
import subprocess
import sys
import threading

import psutil
import torch
import torch.distributed as dist
from leftovers import ranks_alive, spares_alive, until

from ddplab import launch, processes


def spares_ready(number: int) -> bool:
    return until(lambda: len(spares_alive()) == number, 20)


def test_ranks_are_forked_ahead_and_none_is_used_twice():
    first = launch(os.getpid, quiet=True).results
    assert spares_ready(4)
    waiting = {process.pid for process in spares_alive()}
    second = launch(os.getpid, quiet=True).results
    assert set(second) < waiting and not set(first) & set(second)
    assert spares_ready(4) and not set(second) & {process.pid for process in spares_alive()}


def test_a_rank_that_was_forked_ahead_lives_in_the_moment_of_the_call(monkeypatch, tmp_path):
    launch(lambda: None, quiet=True)
    assert spares_ready(4)
    monkeypatch.setenv("MY_SETTING", "new")
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "INFO")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(sys, "argv", ["a", "b"])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "written_just_now.py").write_text("value = 42")

    def where():
        import written_just_now

        return (
            *(os.environ["MY_SETTING"], dist.get_debug_level().name, os.getcwd(), sys.argv, written_just_now.value),
            (threading.active_count(), dist.get_rank(), torch.cuda.is_initialized()),
        )

    for rank, result in enumerate(launch(where, quiet=True).results):
        assert result[:5] == ("new", "INFO", str(tmp_path), ["a", "b"], 42)
        assert result[5][1:] == (rank, False)


def test_ranks_that_were_forked_ahead_draw_different_numbers():
    launch(lambda: None, quiet=True)
    assert spares_ready(4)

    def numbers():
        import random

        import numpy

        return torch.rand(1).item(), numpy.random.rand(), random.random()

    drawn = [*launch(numbers, quiet=True).results, *launch(numbers, quiet=True).results]
    assert all(len(set(column)) == 4 for column in zip(*drawn, strict=True))


def test_a_spare_that_somebody_has_killed_is_replaced():
    launch(lambda: None, quiet=True)
    assert spares_ready(4)
    killed = spares_alive()[:3]
    for process in killed:
        process.kill()
    assert psutil.wait_procs(killed, 10)[1] == []
    assert launch(dist.get_rank, quiet=True).results == [0, 1]


def test_spares_are_gone_when_the_program_has_ended():
    program = (
        "import ddplab, psutil, time\n"
        "if __name__ == '__main__':\n"
        "    ddplab.launch(print, quiet=True)\n    time.sleep(1)\n"
        "    print(*[p.pid for p in psutil.Process().children(recursive=True)])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=180)
    pids = [int(pid) for pid in done.stdout.split()]
    assert done.returncode == 0 and done.stderr == "" and len(pids) >= 4
    assert until(lambda: not any(psutil.pid_exists(pid) for pid in pids)), pids


def test_ranks_leave_at_once_though_a_fork_of_the_notebook_holds_their_pipes():
    launch(lambda: None, quiet=True)
    assert spares_ready(4)
    fork = os.fork()
    if fork == 0:  # as a data loader's worker: it inherits every pipe, and lives on
        threading.Event().wait(20)
        os._exit(0)
    try:
        launch(lambda: None, quiet=True)
        assert until(lambda: [p.pid for p in ranks_alive()] == [fork], 3), "only told by the end of the pipe"
    finally:
        os.kill(fork, 9)
        os.waitpid(fork, 0)


def test_a_fork_of_the_program_leaves_its_spares_alone():
    program = (
        "import ddplab, os, psutil, sys, time\n"
        "ddplab.launch(print, quiet=True)\ntime.sleep(1)\n"
        "if os.fork() == 0:\n    sys.exit()\n"
        "os.wait()\nprint(len(ddplab.processes._spares), ddplab.launch(lambda: 7, quiet=True).results)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("4 [7, 7]\n", "")


def test_a_process_that_has_no_group_of_its_own_yet_is_ended_too(monkeypatch):
    monkeypatch.setattr(processes, "end_group", lambda *_: None)  # as if the group were not there
    workers = processes.take(1)
    process = psutil.Process(workers[0].process.pid)
    process.suspend()  # it hears neither its pipe nor SIGTERM
    ending = threading.Thread(target=processes.end, args=[workers])
    ending.start()
    ending.join(5)
    ended = not ending.is_alive()
    if not ended:
        process.kill()
    assert ended


def test_a_rank_that_closes_pipes_it_did_not_open_still_returns():
    def closes_all():
        os.closerange(3, 1000)
        return 7

    assert launch(closes_all, init=False, quiet=True).results == [7, 7]


def test_a_rank_that_leaves_stdout_closed_has_returned_all_the_same():
    def closes_stdout():
        sys.stdout.close()
        return dist.get_rank()

    assert launch(closes_stdout, quiet=True).results == [0, 1]

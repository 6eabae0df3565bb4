"""A script under torchrun alone: what it prints, which processes are its ranks, and that nothing is left of it."""

import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from ddplab.course import bare
from ddplab.course.bare import BareTorchrun, deaths, error_lines, root_cause

SCRIPT = """
import os, time
print(f"rank {os.environ['RANK']} is here")  # in one piece: torchrun's ranks do not buffer, and both print at once
time.sleep(60)
"""


@pytest.mark.fresh  # a fork's command line and environment are not those of what it became
def test_a_job_prints_shows_its_ranks_and_ends(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    job = BareTorchrun(tmp_path / "script.py", nproc_per_node=2).wait_for("is here", times=2)
    pids = job.pids
    assert list(pids) == [0, 1] and "rank 1 is here" in job.output
    assert job.py_spy(1).startswith(f"$ py-spy dump --pid {pids[1]}\n")  # then a stack, or why there is none
    with pytest.raises(TimeoutError, match="has not printed 'never'"):
        job.wait_for("never", seconds=0.1)
    job.stop()
    assert not job.pids and not any(psutil.pid_exists(pid) for pid in pids.values())


@pytest.mark.parametrize(("last", "status"), [("", 0), ("raise ValueError('mine')", 1)])
def test_a_job_that_ends_by_itself_says_no_more_than_under_torchrun(tmp_path, monkeypatch, last, status):
    monkeypatch.setenv("TAKEN_OUT", "still there")
    (tmp_path / "script.py").write_text(f"import os\nprint('done', os.environ.get('TAKEN_OUT'))\n{last}")
    job = BareTorchrun(tmp_path / "script.py", nproc_per_node=1, TAKEN_OUT=None)
    assert job.wait() == status and "done None" in job.output and "Fatal Python error" not in job.output


def test_the_last_line_of_each_traceback_is_found():
    log = "[rank1]: ValueError: n/a\n[rank0]: torch.distributed.DistStoreError: wait\nChildFailedError: \nError: no\nx"
    assert error_lines(log) == log.splitlines()[:2]


# Rank 1 dies when the others are heard and all have been seen; these die a second after torchrun wants it.
DYING = """
import os, signal, sys, time
rank = int(os.environ["RANK"])

def late(*_):
    time.sleep(1)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTERM)

signal.signal(signal.SIGTERM, late)
if rank == 0:
    print("[rank0]: ValueError: a bad row", file=sys.stderr, flush=True)
open(f"{rank} is here", "w").close()
while rank == 1 and not all(os.path.exists(it) for it in ("0 is here", "2 is here", "seen")):
    time.sleep(0.01)
if rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(60)
"""


@pytest.mark.fresh
def test_each_death_is_told_with_its_exit_code_and_its_words(tmp_path, monkeypatch):
    def sleep(seconds):
        if seconds == 0.01:  # all have been seen
            Path("seen").touch()
        time.sleep(seconds)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bare, "time", SimpleNamespace(monotonic=time.monotonic, sleep=sleep))
    (tmp_path / "script.py").write_text(DYING)
    job = BareTorchrun(tmp_path / "script.py", nproc_per_node=3)
    told = deaths(job)
    ends = {it["rank"]: (it["exit"], it["said"]) for it in told}
    assert ends == {0: (-15, "ValueError: a bad row"), 1: (-9, ""), 2: (-15, "")} and told[0]["rank"] == 1
    assert [it["at"] for it in told] == sorted(it["at"] for it in told)
    assert root_cause(job.output) == 1
    assert [it["at"] for it in deaths(job)] == [0, 0, 0]  # nobody has looked in time


def test_a_job_that_ends_well_has_no_deaths(tmp_path):
    (tmp_path / "script.py").write_text("print('done')")
    job = BareTorchrun(tmp_path / "script.py", nproc_per_node=1)
    assert deaths(job) == [] and root_cause(job.output) is None

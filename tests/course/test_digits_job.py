"""The job that lessons 5.4 and 5.5 stop and resume, and 5.4's own two functions. The lesson tests the rest."""

import functools
import os
import re
import signal
from pathlib import Path

import nbformat
import pytest
import torch
import torch.distributed as dist

from ddplab import launch
from ddplab.course import digits_job

LESSON = Path(__file__).parents[2] / "lessons" / "5_torchrun/5.4_checkpoints.ipynb"


def whole_job():
    losses = []
    return digits_job.train(digits_job.make(), range(2), losses), len(losses)


def through_a_file(path, source):
    """Half of the job, a checkpoint in the middle of an epoch, a fresh job, the other half."""
    namespace = {}
    exec(source, namespace)
    job, position = digits_job.make(), (0, 0)
    for half in range(2):
        if half:
            job = digits_job.make()
            position = namespace["load_checkpoint"](path, job)
        for epoch in range(2):
            for batch, (x, y) in enumerate(digits_job.batches(epoch)):
                if (epoch, batch) < position or (half == 0 and (epoch, batch) > (1, 4)):
                    continue
                digits_job.step(job, x, y)
                if half == 0 and (epoch, batch) == (1, 4):
                    namespace["save_checkpoint"](path, job, (epoch, batch + 1))
    return digits_job.train(job, []), dist.get_rank(), position


def test_the_job_ends_the_same_every_time():
    first, second = (launch(whole_job, quiet=True).results for _ in range(2))
    weights, steps = first[0]
    assert steps == 2 * 12
    assert all(torch.equal(other, weights) for other, _ in [*first, *second])


def keeping_its_buckets(run, *args):
    """DDP lays its buckets out anew after the first step; from three ranks on, that changes the rounding."""
    digits_job.DDP = functools.partial(digits_job.DDP, find_unused_parameters=True)  # this process ends with the run
    return run(*args)


@pytest.mark.parametrize(("ranks", "keep", "tolerance"), [(2, False, 0), (3, False, 1e-6), (3, True, 0)])
def test_the_lessons_functions_resume_in_the_middle_of_an_epoch(tmp_path, ranks, keep, tolerance):
    cells = [cell.source for cell in nbformat.read(LESSON, as_version=4).cells]
    written = re.compile(r"%%writefile (-a )?checkpointing\.py\n")  # saving, then loading
    source = "\n\n".join(written.sub("", cell) for cell in cells if written.match(cell))
    jobs = [(whole_job,), (through_a_file, str(tmp_path / "last.pt"), source)]
    jobs = [(keeping_its_buckets, *job) if keep else job for job in jobs]
    calm, resumed = (launch(*job, nproc_per_node=ranks, quiet=True).results for job in jobs)
    assert [place for *_, place in resumed] == [(1, 5)] * ranks
    assert all((weights - calm[rank][0]).abs().max() <= tolerance for weights, rank, _ in resumed)
    assert all(torch.equal(weights, resumed[0][0]) for weights, *_ in resumed)
    assert os.listdir(tmp_path) == ["last.pt"]


def test_the_accident_happens_once_to_one_rank_at_one_place(monkeypatch):
    killed = []
    monkeypatch.setattr(os, "kill", lambda pid, number: killed.append((pid, number)))
    for attempt in "01":
        for rank in "01":
            monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", attempt)
            monkeypatch.setenv("RANK", rank)
            for place in [(2, 7), (2, 8), (1, 8)]:
                digits_job.accident(*place)
    assert killed == [(os.getpid(), signal.SIGKILL)]

"""The flight recorder's list, written down in the ranks and read in the notebook."""

import io
import time
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

from ddplab import RankError, launch
from ddplab.course import recorder
from ddplab.course.recorder import debug_stacks, read_records, write_down_after


def test_what_each_rank_called_is_written_down_and_read(tmp_path):
    def in_rank():
        dist.all_reduce(torch.ones(2, 3))
        dist.broadcast(torch.ones(1), src=0)
        write_down_after(0, tmp_path / "records")
        while not (tmp_path / "records" / f"rank_{dist.get_rank()}").exists():
            time.sleep(0.01)

    launch(in_rank, device="cpu", quiet=True)
    both = read_records(tmp_path / "records")
    assert [[(it["number"], it["call"], it["shape"]) for it in rank] for rank in both] == 2 * [
        [(1, "barrier", ()), (2, "all_reduce", (2, 3)), (3, "broadcast", (1,))]
    ]
    assert any("in_rank" in frame["name"] for frame in both[1][-1]["frames"])


def job(steps):
    """Lesson 6.4's: two epochs of training, after each of which rank 0 evaluates; here under `no_grad`."""
    model = DDP(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2)))
    for _epoch in range(2):
        for _ in range(steps):
            model(torch.ones(4, 2)).sum().backward()
        if dist.get_rank() == 0:
            with torch.no_grad():
                model(torch.ones(4, 2))


@pytest.mark.parametrize(("steps", "ended"), [(2, "timed out"), (1, "failed")])
def test_no_grad_does_not_mend_an_evaluation_on_one_rank(steps, ended):
    with pytest.raises(RankError) as caught:
        launch(job, steps, device="cpu", timeout=3, quiet=True)
    assert caught.value.run.state == ended


def test_a_page_of_stacks_is_text_in_which_a_scripts_own_level_keeps_its_name(monkeypatch):
    page = b'<html><h2 class="rank">Rank 0</h2><pre>File &quot;alone.py&quot;, line 19 in <module></pre></html>'
    monkeypatch.setattr(recorder, "urlopen", lambda address: io.BytesIO(page))
    told = debug_stacks(SimpleNamespace(output="Frontend server started on port 1234"))
    assert told == 'Rank 0File "alone.py", line 19 in <module>'


def test_of_torchs_frames_the_innermost_stands_for_all_and_a_heading_without_frames_is_left_out(monkeypatch):
    page = b"""<html><h2>Rank 0</h2><pre>
        Current thread 0x00007fc8b9ebf6c0 (most recent call first):
Thread 0x00007fc8e28abb80 (most recent call first):
  File "/lib/torch/nn/parallel/distributed.py", line 2363 in _coalesced
  File "/lib/torch/nn/parallel/distributed.py", line 2451 in _default
  File "/lib/torch/nn/modules/module.py", line 1789 in _call_impl
  File "alone.py", line 19 in <module></pre></html>"""
    monkeypatch.setattr(recorder, "urlopen", lambda address: io.BytesIO(page))
    told = debug_stacks(SimpleNamespace(output="Frontend server started on port 1234"))
    innermost = '  File "torch/nn/parallel/distributed.py", line 2363 in _coalesced'
    assert told.splitlines() == ["Rank 0", innermost, "  …", '  File "alone.py", line 19 in <module>']

"""The flight recorder's list, written down in the ranks and read in the notebook."""

import time

import torch
import torch.distributed as dist

from ddplab import launch
from ddplab.course.recorder import read_records, write_down_after


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

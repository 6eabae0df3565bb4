"""The black box of a rank of the pager: what it has written down when a collective ends the process."""

import json
import os
import subprocess
import sys

SCRIPT = """
import os
import torch
import torch.distributed as dist

real = dist.all_reduce
def all_reduce(it):
    return real(it) if it.numel() == 2 else os._exit(3)  # as gloo may end it, before the recorder has the call
dist.all_reduce = all_reduce

from ddplab.course.blackbox import Box
from ddplab.vgpu import virtual_gpus

virtual_gpus(1).on()
dist.init_process_group("gloo", init_method="file://" + os.path.abspath("meeting"), rank=0, world_size=1)
box = Box(os.path.abspath(__file__), 0)
dist.all_reduce(torch.ones(2))
box._write()
os.rename("box0", "before")
dist.all_reduce(torch.full((1,), 7.0))
"""


def test_the_call_in_which_a_process_ends_is_in_the_box_and_one_that_the_recorder_has_is_there_once(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    environment = os.environ | {"TORCH_FR_BUFFER_SIZE": "100", "PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run([sys.executable, script], cwd=tmp_path, env=environment, timeout=120, capture_output=True)
    assert ended.returncode == 3, ended.stderr.decode()
    calls = [json.loads((tmp_path / name).read_text())["calls"] for name in ("before", "box0")]
    assert [(number, shapes) for number, _, shapes, _, _ in calls[0]] == [(1, [[2]])]
    assert calls[1] == [*calls[0], [2, "all_reduce", [[1]], len(SCRIPT.splitlines()), 7.0]]

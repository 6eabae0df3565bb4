"""What some lessons of part 4 say below a slider, run once: the page launches only what its reader asks for."""

import ast
from pathlib import Path
from typing import Any

import nbformat
import pytest
import torch
import torch.distributed as dist

from ddplab.launcher import launch
from ddplab.run import RankError

PART = Path(__file__).parents[2] / "lessons" / "4_ddp"


def functions(lesson: str) -> dict[str, Any]:
    """All that a lesson's cells import and define; of a turn, our way."""
    space: dict[str, Any] = {"__name__": "__main__"}  # so that its functions travel to the ranks
    for cell in nbformat.read(PART / lesson, as_version=4).cells:
        if cell.cell_type == "code" and "your-turn" not in cell.metadata.get("tags", ()):
            tree = ast.parse(cell.source)
            defines = ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef
            tree.body = [statement for statement in tree.body if isinstance(statement, defines)]
            exec(compile(tree, lesson, "exec"), space)
    return space


def test_who_uses_which_head_decides_what_a_backward_leaves():
    space = functions("4.2_inside_ddp.ipynb")
    space["names"] = ("body.weight", "dogs.bias")
    held = space["held_after"]
    assert held([["cats"]] * 2, find_unused_parameters=True)["dogs.bias"] == [None, None]
    searched = held([["cats"], ["dogs"]], find_unused_parameters=True)
    assert searched["dogs.bias"] == [0.5, 0.5]
    assert searched == held([["cats"], ["dogs"]], static_graph=True)
    with pytest.raises(RankError, match=r"rank 0 waits in .* for rank 1, which never came"):
        launch(space["use"], [["cats dogs"], ["cats"]], quiet=True, timeout=3)
    with pytest.raises(RankError, match="Expected to have finished reduction in the prior iteration"):
        launch(space["use"], [["cats dogs", "cats", "cats"]], static_graph=True, nproc_per_node=1, quiet=True)


def test_ddp_that_searches_keeps_the_buckets_of_the_wrap():
    options = {"bucket_cap_mb": 0.01, "find_unused_parameters": True, "quiet": True}
    first, second = launch(functions("4.2_inside_ddp.ipynb")["backwards"], **options).results[0]
    assert first == second and first[:2] == ["3.bias", 256]  # the first leaves early, both times


def test_no_cap_makes_three_buckets_and_none_cuts_a_gradient():
    sizes = functions("4.2_inside_ddp.ipynb")["sizes"]
    layer = 64 * 65 * 4
    caps = {16: [layer] * 4, 20: [2 * layer] * 2, 48: [3 * layer, layer], 64: [4 * layer], 0.2: [256, layer - 256] * 4}
    assert {cap: sizes(bucket_cap_mb=cap / 2**10) for cap in caps} == caps


def test_averaged_memories_are_no_cure_for_a_dark_camera_and_mixed_cameras_are():
    space = functions("4.5_batchnorm_buffers_and_mixed_precision.ipynb")

    def read(dark, **options):
        known = launch(space["two_cameras"], dark, **options, quiet=True).results[0][1]
        return known.float().mean(1).tolist()

    bright, dark = read(0.25, mend=space["average_statistics"])
    assert bright > 0.9 and dark > 0.5
    assert read(0.1, mend=space["average_statistics"])[1] < 0.2
    assert min(read(0.1, mixed=True)) > 0.85
    assert read(0.5)[1] > 0.75


def test_a_look_through_the_module_breaks_no_run():
    look = functions("4.5_batchnorm_buffers_and_mixed_precision.ipynb")["train_with_a_look"]
    for after in (1, 2, 3):
        assert launch(look, after, "model.module", device="cpu", quiet=True).state == "finished"


def test_a_scale_far_too_large_costs_five_steps():
    train = functions("4.5_batchnorm_buffers_and_mixed_precision.ipynb")["scaled_training"]
    zero, one = (history for history, _ in launch(train, "nobody", 2**24, quiet=True).results)
    assert zero == one and [moved for moved, _ in zero] == [False] * 5 + [True]


@pytest.mark.parametrize("samples, set_epoch, unknown", [(43, "each epoch", []), (40, "never", []), (44, "never", [])])
def test_what_is_served_is_known(samples, set_epoch, unknown):
    memorise = functions("4.6_sharding_the_data.ipynb")["memorise"]
    _, right = launch(memorise, samples, set_epoch, nproc_per_node=4, quiet=True).results[0]
    assert torch.nonzero(~right).flatten().tolist() == unknown


def test_four_ranks_with_32_images_are_one_device_with_128():
    gap = functions("4.1_distributed_data_parallel.ipynb")["gap"]
    assert gap([32] * 4, 128, steps=10).max() < 1e-14 and gap([32] * 4, 32, steps=1).max() > 0.5


def read_in_forward(net):
    switch, read = {"send": True}, {}

    def average(p):
        if read["send"]:
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()

    net.register_forward_pre_hook(lambda net, inputs: read.update(switch))
    for p in net.parameters():
        p.register_post_accumulate_grad_hook(average)
    return switch


def test_a_switch_that_is_read_in_forward_is_torchs():
    space = functions("4.9_puzzles_from_a_start_to_ddp.ipynb")
    space["moments"] = {"forward": (False, True), "backward": (True, False), "both": (False, False)}
    assert [space["who_sends"](it).split()[4] for it in space["moments"]] == ["differ", "differ", "agree"]
    space["with_switch"] = read_in_forward
    assert [space["who_sends"](it).split()[4] for it in space["moments"]] == ["agree"] * 3

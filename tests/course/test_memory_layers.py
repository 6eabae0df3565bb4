"""The memory of a step by layer: calculated, and beside it counted in a real step."""

import itertools

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.utils.checkpoint import checkpoint

from ddplab import device, launch
from ddplab.course.data import digits
from ddplab.course.memory import activations, held
from ddplab.course.memory_layers import MODELS, PRECISIONS, SHARED, _blocks, _named, by_layer, memory_by_layer, total
from ddplab.course.models import MLP

OPTIMIZERS = {
    "SGD": torch.optim.SGD,
    "SGD with momentum": lambda weights: torch.optim.SGD(weights, momentum=0.9),
    "Adam": torch.optim.Adam,
}


def step(model, batch, optimizer, precision, checkpointing):
    """The bytes of each part, counted in a real step."""
    net = MODELS[model]().to(device(), PRECISIONS[precision])
    x, y = (tensor[:batch].to(device()) for tensor in digits().tensors)
    x, made = x.to(PRECISIONS[precision]), OPTIMIZERS[optimizer](net.parameters())
    blocks = [torch.nn.Sequential(*block.values()) for block in _blocks(_named(net))]

    def forward():
        now = x
        for block in blocks[:-1]:
            now = checkpoint(block, now, use_reentrant=False) if checkpointing else block(now)
        return F.cross_entropy(blocks[-1](now), y)

    kept = activations(net, forward)
    assert torch.equal(forward(), F.cross_entropy(net(x), y))  # the blocks are the network
    forward().backward()
    made.step()
    buffers = sum(buffer.nbytes for buffer in net.buffers())
    return dict(zip(("weights", "gradients", "state"), held(net, made), strict=True)) | {
        "activations": kept,
        "buffers": buffers,
    }


@pytest.mark.parametrize("model", MODELS)
def test_each_switch_as_a_real_step_has_it(model):
    for batch, precision, checkpointing in itertools.product((1, 8, 64), PRECISIONS, (False, True)):
        asked = (model, batch, "Adam", precision, checkpointing)
        assert total(by_layer(*asked)) == step(*asked), asked
    for optimizer in OPTIMIZERS:
        asked = (model, 8, optimizer, "float32", False)
        assert total(by_layer(*asked)) == step(*asked), asked


def test_by_layer():
    rows = by_layer("CNN with BatchNorm", 1)
    assert [name.split()[0].strip(",") for name in rows] == [
        *("Conv2d", "BatchNorm2d", "ReLU", "MaxPool2d") * 2,
        "Linear",
        "loss",
    ]
    assert rows["Conv2d 1 → 16"]["activations"] == 64 * 4  # the image
    assert rows["Conv2d 1 → 16"]["weights"] == (9 * 16 + 16) * 4
    assert rows["BatchNorm2d"]["buffers"] == 16 * 4 * 2 + 8
    less = by_layer("CNN with BatchNorm", 1, checkpointing=True)
    assert less["ReLU"]["activations"] == 0 and less["Conv2d 1 → 16"] == rows["Conv2d 1 → 16"]


def test_sharding_is_calculated_as_the_tools_of_lesson_8_1_hold_it():
    def rank(tool):
        torch.manual_seed(0)
        net = MLP().to(device())
        if tool == "fsdp":
            fully_shard(net, mesh=init_device_mesh(device().type, (dist.get_world_size(),)))
            optimizer = torch.optim.Adam(net.parameters())
        else:
            optimizer = ZeroRedundancyOptimizer(net.parameters(), torch.optim.Adam)
        net(torch.ones(2, 1, 8, 8, device=device())).sum().backward()
        optimizer.step()
        return tuple(held(net, optimizer))

    parts = ("weights", "gradients", "state")
    all_ = total(by_layer("MLP", 2, ranks=2, shared=SHARED[3]))
    assert launch(rank, "fsdp", quiet=True).results == [tuple(all_[part] for part in parts)] * 2
    state = total(by_layer("MLP", 2, ranks=2, shared=SHARED[1]))
    ranks = launch(rank, "zero", quiet=True).results  # deals out whole tensors: evenly on the average
    assert [sum(of) / 2 for of in zip(*ranks, strict=True)] == [state[part] for part in parts]


def test_what_lesson_1_3_says_to_find():
    eight, nine = (total(by_layer("CNN", batch)) for batch in (8, 9))
    assert nine["activations"] - eight["activations"] == 11_056
    assert eight["activations"] < 97_440 == sum(nine.values()) - nine["activations"] < nine["activations"]
    rows = by_layer("CNN with BatchNorm", 32)
    early = rows["BatchNorm2d"]["activations"] + rows["ReLU"]["activations"]
    assert 0.45 < early / total(rows)["activations"] < 0.5
    assert total(by_layer("MLP", 256)) == total(by_layer("MLP", 256, checkpointing=True))


def test_a_picture_and_a_line_where_nobody_can_press(capsys):
    memory_by_layer("MLP", 8, "SGD")
    assert "weights 19,240, gradients 19,240, state 0, activations " in capsys.readouterr().out


def test_what_ranks_share_out_leaves_activations_and_buffers_and_other_switches_do_not():
    alone = total(by_layer("CNN with BatchNorm", 64))
    shared = total(by_layer("CNN with BatchNorm", 64, ranks=8, shared=SHARED[-1]))
    assert [part for part in alone if shared[part] == alone[part]] == ["activations", "buffers"]
    for switch in ({"checkpointing": True}, {"precision": "bfloat16"}):
        assert total(by_layer("CNN with BatchNorm", 64, **switch))["activations"] < alone["activations"]
    assert total(by_layer("CNN with BatchNorm", 32))["activations"] < alone["activations"]

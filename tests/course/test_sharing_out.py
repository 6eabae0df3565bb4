"""The small training of lesson 8.1: what its text says of it, where no cell shows it."""

from functools import partial

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP

from ddplab.course.sharing_out import COUNT, each_holds, make, on_ranks, planned, sent
from ddplab.hardware import device


def with_zero(net):
    net = DDP(net, gradient_as_bucket_view=True)
    return net, ZeroRedundancyOptimizer(net.parameters(), torch.optim.Adam, lr=0.01)


def with_ddp(net):
    net = DDP(net)
    return net, torch.optim.Adam(net.parameters(), lr=0.01)


def with_fsdp(net, **options):
    mesh = init_device_mesh(device().type, (dist.get_world_size(),))
    for part in (*(layer for layer in net if isinstance(layer, torch.nn.Linear)), net):
        fully_shard(part, mesh=mesh, **options)
    return net, torch.optim.Adam(net.parameters(), lr=0.01)


def test_each_rank_says_what_it_holds_and_where_the_weights_have_come_to():
    ddp, zero, fsdp = on_ranks(2, with_ddp, with_zero, with_fsdp, steps=2)
    assert [parts for parts, _ in ddp] == [{"weights": 4, "gradients": 4, "buckets": 4, "Adam": 8}] * 2
    assert sum(parts["Adam"] for parts, _ in zero) == 8 and "buckets" not in zero[0][0]
    start, ends = torch.cat([p.detach().flatten() for p in make().double().parameters()]), [w for _, w in ddp + zero]
    assert len(start) == COUNT and not torch.equal(ends[0], start)
    assert all(torch.allclose(end, ends[0], atol=1e-10) for end in ends)
    most = [7 * max(sum(parts.values()) for parts, _ in ranks) for ranks in (ddp, zero, fsdp)]
    assert [round(GB) for GB in most] == [140, 85, 56]  # GB for 7 billion; 28 of DDP's are buckets


def test_more_ranks_take_nothing_off_the_first_and_a_line_says_what_a_card_has():
    words, figure = each_holds(with_ddp)(2)
    assert words == "weights 4, gradients 4, buckets 4, Adam 8\n7 billion parameters, 2 GPUs: each holds 140 GB"
    assert [text.get_text() for text in figure.axes[0].get_yticklabels()] == ["alone", "each of 2"]


def _bytes_each(tool, ranks):
    whole, shared = {"ddp": (16, 0), "zero": (8, 8), "fsdp": (0, 16)}[tool]
    return whole + shared / ranks


def test_the_bars_of_a_plan_are_the_learners_function_and_what_was_measured_is_marked():
    held = tuple(({"weights": 4.0, "gradients": 4.0, "Adam": adam}, torch.zeros(0)) for adam in (4.1, 3.9))
    draw = planned(_bytes_each, {2: [held] * 3})
    words, figure = draw(billions=7, ranks=2, card_GB=80)
    (axis,) = figure.axes
    assert words == "DDP 112 GB, ZeRO 84 GB, FSDP2 56 GB"
    assert [sum(bar.get_width() for bar in bars) for bars in zip(*axis.containers, strict=True)] == [16, 12, 8]
    assert [*axis.lines[0].get_xdata()] == [12.1] * 3  # the fullest
    unmeasured = draw(billions=7, ranks=3, card_GB=80)[1].axes[0]
    assert len(unmeasured.lines) == len(axis.lines) - 1


def test_the_largest_models_that_lesson_8_1_says_to_find():
    offered = (0.5, 1, 2, 5, 7, 13, 30, 70)
    largest = [max(n for n in offered if n * _bytes_each(tool, 8) < 11) for tool in ("ddp", "zero", "fsdp")]
    assert largest == [0.5, 1, 5] and 0.5 * _bytes_each("ddp", 1) < 11


def test_what_each_sends_follows_from_the_collectives_counted(capsys):
    tools = {"DDP": with_ddp, "ZeRO": with_zero, "FSDP2": with_fsdp}
    tools["kept"] = partial(with_fsdp, reshard_after_forward=False)
    assert sent(tools, 28) == {"DDP": 28, "ZeRO": 42, "FSDP2": 42, "kept": 28}
    assert capsys.readouterr().out.splitlines()[1].endswith("1 × allreduce, 10 × broadcast")

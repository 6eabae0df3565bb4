"""The small training of lesson 8.1: what its text says of it, where no cell shows it."""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP

from ddplab.course.plan import fake_ranks
from ddplab.course.sharing_out import COUNT, each_holds, left, make, on_cards, on_ranks, weigh
from ddplab.hardware import device


def with_zero(net):
    net = DDP(net, gradient_as_bucket_view=True)
    return net, ZeroRedundancyOptimizer(net.parameters(), torch.optim.Adam, lr=0.01)


def with_ddp(net):
    net = DDP(net)
    return net, torch.optim.Adam(net.parameters(), lr=0.01)


def with_fsdp(net):
    mesh = init_device_mesh(device().type, (dist.get_world_size(),))
    for part in (*(layer for layer in net if isinstance(layer, torch.nn.Linear)), net):
        fully_shard(part, mesh=mesh)
    return net, torch.optim.Adam(net.parameters(), lr=0.01)


def test_each_rank_says_what_it_holds_and_where_the_weights_have_come_to():
    ddp, zero, fsdp = on_ranks(2, with_ddp, with_zero, with_fsdp, steps=2)
    assert [parts for parts, _ in ddp] == [{"weights": 4, "gradients": 4, "buckets": 4, "Adam": 8}] * 2
    assert sum(parts["Adam"] for parts, _ in zero) == 8 and "buckets" not in zero[0][0]
    start, ends = torch.cat([p.detach().flatten() for p in make().double().parameters()]), [w for _, w in ddp + zero]
    assert len(start) == COUNT and not torch.equal(ends[0], start)
    assert all(torch.allclose(end, ends[0], atol=1e-10) for end in ends)
    fit = on_cards(ZeRO=zero, FSDP2=fsdp)  # the largest models of lesson 8.1; DDP's 16 bytes are below
    assert ["line" in fit(tool, n)[0] for tool, n in (("ZeRO", 6), ("ZeRO", 7), ("FSDP2", 10), ("FSDP2", 11))] == [
        True, False, True, False]  # fmt: skip


def test_from_209_images_on_the_activations_are_the_larger_part_unless_they_are_computed_again():
    assert left(208) < 16 * COUNT < left(209) and left(512, again=True) < 16 * COUNT


def test_the_bars_are_ten_thousand_bytes_a_block():
    head, *lines = weigh(8).splitlines()
    assert head == "images: 8" and [line.count("■") for line in lines] == [28, 1, 0]


def test_of_nine_ranks_the_last_has_no_row_and_of_63_the_first_has_two():
    def rows(size, rank):
        with fake_ranks(size, rank=rank):
            layer = fully_shard(make()[1], mesh=init_device_mesh("cpu", (size,)))
            return layer.weight.to_local().shape[0]

    assert [rows(8, 7), rows(9, 8), rows(63, 0), rows(64, 0)] == [8, 0, 2, 1]


def test_more_ranks_take_nothing_off_the_first_and_a_line_says_what_a_card_has():
    words, figure = each_holds(with_ddp)(2)
    assert words == "weights 4, gradients 4, buckets 4, Adam 8\n7 billion parameters, 2 GPUs: each holds 140 GB"
    assert [text.get_text() for text in figure.axes[0].get_yticklabels()] == ["alone", "each of 2"]


def test_a_card_has_room_just_room_or_none():
    ranks = tuple(({"weights": 4.0, "gradients": 4.0, "Adam": adam}, torch.zeros(0)) for adam in (8.0, 2.0))
    fit = on_cards(ZeRO=ranks)
    said = [fit("ZeRO", billions)[0] for billions in (4, 5, 6)]
    assert said[0] == "4 billion, 2 cards of 80 GB, ZeRO: the fuller rank holds 64 GB: below the line"
    assert [words.rpartition(": ")[2] for words in said] == ["below the line", "on the line", "too much"]

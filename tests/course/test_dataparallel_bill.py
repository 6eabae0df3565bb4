"""The bill of `nn.DataParallel`: what a row costs, its bars, and the ring beside it."""

import pytest
import torch
from torch import nn

from ddplab.course.dataparallel_bill import (
    around_a_ring,
    beside_a_ring,
    bill,
    for_rows,
    for_the_model,
    share_of_rows,
    through_each,
)
from ddplab.vgpu import virtual_gpus
from ddplab.vgpu.meter import Meter


def of_a_step(n, rows):
    with virtual_gpus(n) as gpus:
        model, batch = nn.DataParallel(nn.Linear(10, 10).to(gpus[0])), torch.zeros(rows, 10, device=gpus[0])
        gpus.meter.reset()
        model(batch).sum().backward()
        return gpus.meter


def test_a_layer_pays_for_its_numbers_and_for_each_row():
    for_model, for_a_row, work = for_rows(lambda: nn.Linear(10, 10), (10,))
    assert for_model == 2 * 4 * 110  # out and back, four bytes each
    assert for_a_row == 3 * 40 / 2  # half of the rows go away: as inputs and as gradients, and come home as outputs
    assert work == 2 * 2 * 100  # forward, and the gradient of the weights: the input needs none


def test_a_model_that_people_have_gets_a_bill_as_well():
    """Token ids instead of floats; states beside the outputs; a dictionary with ids in it; a norm of a single place."""
    ids = torch.zeros(20, dtype=torch.long)
    for_model, for_a_row, _ = for_rows(lambda: nn.Sequential(nn.Embedding(100, 16), nn.Linear(16, 100)), ids)
    assert for_model == 8 * (100 * 16 + 17 * 100)
    assert for_a_row == (20 * 8 + 2 * 20 * 100 * 4) / 2  # ids of eight bytes go out; their gradient is none
    _, _, work = for_rows(lambda: nn.LSTM(8, 16, batch_first=True), (5, 8))
    first, then = 2 * 8 * 64, 2 * 16 * 64  # four gates of sixteen, from the input and from the state before
    assert work == 5 * (2 * first + 2 * then) + 4 * then  # the state that it begins with needs no gradient

    class Scorer(nn.Linear):
        def forward(self, x):
            scores = super().forward(x)
            return {"scores": scores, "past": None, "best": scores.argmax(1)}

    assert for_rows(lambda: Scorer(4, 4), (4,))[0] == 8 * 20
    assert for_rows(lambda: nn.BatchNorm1d(4), (4,))[1] == 3 * 16 / 2


def test_bars_by_cause_and_the_share_of_rows():
    meter = of_a_step(2, 12)
    assert share_of_rows(meter) == pytest.approx(720 / 1600)
    assert bill(meter, 200).splitlines() == [
        "replicate  GPU 0→1         440 ■■",
        "reduce     GPU 1→0         440 ■■",
        "scatter    GPU 0→1         480 ■■",
        "gather     GPU 1→0         240 ■",
        "together                 1,600, and 45.0% of it are rows",
    ]
    alone = of_a_step(2, 1)
    assert share_of_rows(alone) == 0 and bill(alone, 200).startswith("nothing crosses")


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_a_ring_adds_up_and_moves_as_many_bytes_as_a_star(n):
    moved, right = around_a_ring(110, n)
    assert right and sum(size for *_, size in moved) == 2 * 4 * 110 * (n - 1)
    star = for_the_model(of_a_step(n, 2 * n))
    assert sum(size for *_, size in star) == 2 * 4 * 110 * (n - 1)
    assert {target for _, target, _ in moved} == ({f"vgpu:{k}" for k in range(n)} if n > 1 else set())
    if n > 1:
        assert through_each(star, n) == [880 * (n - 1)] + [880] * (n - 1)


def test_a_ring_with_more_gpus_than_numbers_adds_up():
    assert around_a_ring(3, 5)[1]


def test_star_and_ring_side_by_side():
    meter = Meter()
    for source, target in ((0, 1), (1, 0)):
        meter.count("replicate", source, target, 400)
    meter.count("scatter", 0, 1, 400)
    assert beside_a_ring(meter, for_the_model(meter)[:1], 2, 400).splitlines() == [
        "       DataParallel                      DDP, around a ring",
        "vgpu:0         800 ■■                            400 ■",
        "vgpu:1         800 ■■                            400 ■",
        "sent           800                               400",
    ]

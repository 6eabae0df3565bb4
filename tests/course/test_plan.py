"""The planner against arithmetic; where it does not know, its door, and the ranks that are not there."""

from math import log, sqrt

import pytest
import torch
from torch import nn

from ddplab import launch
from ddplab.course.plan import (
    BACKWARD,
    BUCKET,
    JPEGS,
    LINKS,
    MACHINES,
    SHORT,
    WAITING,
    Link,
    Machine,
    efficiency,
    fit_link,
    hierarchical,
    late,
    memory,
    plan_training,
    ring,
    ring_bytes,
    step,
    time_all_reduce,
    transformer_seconds,
    unknown,
)
from ddplab.course.plan_explorer import planner

FAST, SLOW = Link("fast", 1e-6, 100e9), Link("slow", 1e-5, 1e9)
BOX = Machine("box", 4, FAST, SLOW)

# One all-reduce


@pytest.mark.parametrize("ranks", [1, 2, 3, 8, 1024])
def test_a_ring_sends_2_times_n_less_1_messages_and_that_part_of_the_bytes(ranks):
    assert ring_bytes(1000, ranks) == pytest.approx(2 * (ranks - 1) / ranks * 1000)
    assert ring(0, ranks, Link("", 1.0, 1.0)) == 2 * (ranks - 1)
    assert ring(1000, ranks, Link("", 0.0, 10.0)) == pytest.approx(ring_bytes(1000, ranks) / 10)


def test_a_ring_of_messages_counts_the_same():
    ranks, size = 5, 100.0
    sent = [0.0] * ranks
    for _ in range(2 * (ranks - 1)):  # reduce-scatter, then all-gather: each passes one chunk on
        sent = [each + size / ranks for each in sent]
    assert sent == pytest.approx([ring_bytes(size, ranks)] * ranks)


def test_two_levels_are_two_rings():
    assert hierarchical(8e6, 16, 4, FAST, SLOW) == ring(8e6, 4, FAST) + ring(8e6, 16, SLOW)
    assert hierarchical(8e6, 1, 4, FAST, SLOW) == ring(8e6, 4, FAST)
    assert BOX.all_reduce(8e6, 4) == ring(8e6, 4, FAST) and BOX.all_reduce(8e6, 8) == hierarchical(
        8e6, 2, 4, FAST, SLOW
    )
    assert BOX.all_reduce(8e6, 64) == hierarchical(8e6, 16, 4, FAST, SLOW) < ring(8e6, 64, SLOW)


def test_one_ring_through_all_where_the_nodes_are_slow_inside():
    slow_inside = Machine("", 4, Link("", 1e-6, 2e9), SLOW)
    assert slow_inside.all_reduce(1e9, 64) == ring(1e9, 64, SLOW) < hierarchical(1e9, 16, 4, slow_inside.within, SLOW)
    assert slow_inside.all_reduce(1e3, 64) < ring(1e3, 64, SLOW)  # few bytes: two levels send fewer messages


def test_one_rank_has_nobody_to_talk_to():
    for machine in MACHINES.values():
        alone = step(0.1, 1e9, 1, machine)
        assert (alone.communication, alone.exposed, alone.seconds) == (0, 0, 0.1)


# One step


def test_what_fits_behind_the_backward_pass_is_hidden_but_for_the_last_bucket():
    one = BOX.all_reduce(BUCKET, 8)
    found = step(10.0, 4 * BUCKET, 8, BOX)
    assert found.communication == pytest.approx(4 * one) and found.exposed == pytest.approx(one)
    assert step(10.0, 4 * BUCKET, 8, BOX, hidden=0).exposed == pytest.approx(4 * one)
    computing = 3 / 4 * 1e-3 * (1 + late(8))  # while the latest rank computes, once the first of four is ready
    assert step(1e-3, 4 * BUCKET, 8, BOX, hidden=1).exposed == pytest.approx(4 * one - computing)
    assert found.seconds == found.compute + found.waiting + found.exposed


def test_a_link_that_hides_nothing_exposes_all():
    host = Machine("", 2, Link("", 1e-6, 6e9, hides=False))
    found = step(10.0, 4 * BUCKET, 2, host)
    assert found.exposed == found.communication == pytest.approx(4 * BUCKET / 6e9, rel=1e-3)


def test_all_wait_for_the_latest_rank():
    assert late(1) == 0 and late(64) == WAITING * sqrt(2 * log(64)) == pytest.approx(0.0577, abs=1e-4)
    assert step(2.0, 1e6, 8, BOX).waiting == 2 * late(8) > step(2.0, 1e6, 2, BOX).waiting > 0
    assert step(2.0, 1e6, 8, BOX, waiting=2 * WAITING).waiting == pytest.approx(4 * late(8))


def test_a_scaled_machine_has_so_many_times_alpha_and_bandwidth_everywhere():
    found = BOX.scaled(alpha=2, bandwidth=2)
    for ranks in (4, 8):
        assert found.all_reduce(0, ranks) == pytest.approx(2 * BOX.all_reduce(0, ranks))
        assert found.all_reduce(1e12, ranks) == pytest.approx(BOX.all_reduce(1e12, ranks) / 2, rel=1e-3)
    assert Machine("", 2, FAST).scaled(alpha=2).across is None


def test_the_largest_of_normal_numbers_lies_below_that_many_deviations():
    torch.manual_seed(0)
    means = {}
    for ranks in (2, 8, 64):
        largest = torch.randn(20_000, ranks).amax(1).mean().item()
        assert 0.4 * late(ranks) / WAITING < largest < late(ranks) / WAITING
        means[ranks] = WAITING * largest
    assert means[2] == pytest.approx(0.011, abs=5e-4) and means[64] == pytest.approx(0.047, abs=5e-4)  # as 7.5 says


def test_a_step_takes_no_less_than_loading_its_data():
    alone = step(0.1, 1e6, 8, BOX).seconds
    assert step(0.1, 1e6, 8, BOX, loading=0.05).seconds == alone < 0.3
    assert step(0.1, 1e6, 8, BOX, loading=0.3).seconds == 0.3


@pytest.mark.parametrize("name", [name for name, machine in MACHINES.items() if machine.across])
def test_more_of_what_costs_costs_more(name):
    machine = MACHINES[name]
    ranks = [n * machine.gpus for n in (1, 2, 4, 8, 16, 32)]
    seconds = [step(0.2, 1e9, n, machine).seconds for n in ranks]
    assert seconds == sorted(seconds)
    assert all(efficiency(0.2, 1e9, n, machine) <= 1 for n in ranks)
    grows = [step(0.2, size, ranks[-1], machine, hidden=0).seconds for size in (1e6, 1e7, 1e8, 1e9)]
    assert grows == sorted(set(grows))
    faster = Machine("", machine.gpus, machine.within, Link("", 0.0, 1e15))
    assert step(0.2, 1e9, ranks[-1], faster).seconds < seconds[-1]
    assert efficiency(2.0, 1e9, ranks[-1], machine) >= efficiency(0.2, 1e9, ranks[-1], machine)


def test_ranks_that_share_cores_wait_for_each_other():
    here = Machine("here", 8, SLOW, cores=2)
    assert [here.crowding(n) for n in (1, 2, 3, 4)] == [1, 1, 1.5, 2]
    assert step(1.0, 1e6, 4, here).compute == 2 and step(1.0, 1e6, 4, here).exposed == 2 * ring(1e6, 4, SLOW)
    assert plan_training(1e6, 32, 4, here, 1.0).efficiency < 0.5
    assert Machine("shared", 8, SLOW, cores=1.6).crowding(4) == 2.5


# The whole plan


def test_a_plan_is_its_parts():
    found = plan_training(25e6, 32, 64, BOX, 0.1, optimizer="momentum", activations=3e9)
    assert found.step == step(0.1, 100e6, 64, BOX) and found.memory.total == 12 * 25e6 + 3e9
    assert found.throughput == pytest.approx(64 * 32 / found.step.seconds)
    assert found.efficiency == pytest.approx(efficiency(0.1, 100e6, 64, BOX))
    assert found.days(found.throughput * 86400) == pytest.approx(1) and found.fits is None
    assert plan_training(25e6, 32, 1, BOX, 0.1).efficiency == 1
    half = plan_training(25e6, 32, 64, BOX, 0.1, precision="bf16")
    assert half.step.communication < found.step.communication  # gradients of two bytes


def test_a_transformer_computes_6_operations_a_parameter_and_token():
    machine = MACHINES["8 H100, NVLink, 8x400 Gb InfiniBand"]
    assert transformer_seconds(1e9, 1000, machine, utilisation=1) == pytest.approx(6e12 / 989e12)
    with pytest.raises(ValueError, match="time a step instead"):
        transformer_seconds(1e9, 1000, BOX)


@pytest.mark.parametrize(
    ("optimizer", "precision", "each"),
    [("sgd", "fp32", 8), ("momentum", "fp32", 12), ("adam", "fp32", 16), ("sgd", "bf16", 8), ("adam", "bf16", 16)],
)
def test_bytes_a_parameter(optimizer, precision, each):
    assert memory(1e6, optimizer, precision).total == each * 1e6
    assert str(memory(1e9, optimizer, precision)).endswith(f" = {each:.1f} GB")
    assert memory(1e6, optimizer, precision, activations=5.0).total == each * 1e6 + 5


@pytest.mark.parametrize(("name", "make"), [("sgd", {}), ("momentum", {"momentum": 0.9}), ("adam", None)])
def test_bytes_a_parameter_are_those_of_torch(name, make):
    model = nn.Linear(64, 64, bias=False)
    optimizer = (
        torch.optim.Adam(model.parameters()) if make is None else torch.optim.SGD(model.parameters(), 0.1, **make)
    )
    model(torch.randn(2, 64)).sum().backward()
    optimizer.step()
    state = [t for held in optimizer.state.values() for t in held.values() if torch.is_tensor(t) and t.dim()]
    held = memory(64 * 64, name)
    assert sum(t.nbytes for t in state) == held.optimizer
    assert model.weight.nbytes == held.weights and model.weight.grad.nbytes == held.gradients


# Where it does not know


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"sharded": True}, "sharded training"),
        ({"uneven": True}, "samples differ in length"),
        ({"machine": None}, "links not in the table"),
        ({"planned": None}, "links not in the table"),
        ({"planned": step(SHORT / 2, 1e6, 8, BOX)}, "10 ms a step may be Python starting kernels"),
        ({"images": 2 * JPEGS}, "can a node load 10,000 images a second?"),
        ({"planned": step(0.1, 1e9, 8, BOX)}, "the network decides: measure it"),
    ],
)
def test_the_plan_says_where_it_does_not_know(more, why):
    known = {"planned": step(0.1, 1e6, 8, BOX), "machine": BOX}
    assert unknown(**known) is None and unknown(**{**known, **more}) == why


def test_a_node_that_says_what_it_loads_is_believed():
    loads = Machine("", 8, FAST, images=20_000)
    assert unknown(step(0.1, 1e6, 8, loads), loads, images=1e6) is None
    assert unknown(step(0.1, 1e6, 8, BOX), BOX, images=JPEGS) is None


def test_the_cores_of_a_cpu_are_known():
    here = Machine("here", 4, SLOW, cores=2)
    assert unknown(step(1e-3, 1e9, 4, here), here) is None  # 7.4 plans such steps, and measures them


def test_a_whole_plan_knows_what_it_does_not_know():
    assert plan_training(25e6, 32, 64, BOX, 0.5).unknown is None
    assert "network" in plan_training(25e6, 32, 64, BOX, 0.1).unknown


def test_the_planner_knows_what_fits_and_that_the_network_of_lesson_7_5_is_not_fast_enough():
    assert [memory(7e9, "adam", it).total for it in ("fp32", "bf16")] == [112e9, 112e9]
    assert memory(7e9, "sgd", activations=8e9).total == 64e9
    fits = [planner(model=it, optimizer=of).plan().fits for of in ("adam", "sgd") for it in ("2.7 B", "7 B", "13 B")]
    assert fits == [True, False, False, True, True, False]
    of_64 = planner(model="1.3 B", gpus=64, machine="8 A100, PCIe, 100 Gb Ethernet").plan().step
    found = [1000 * it for it in (of_64.communication, BACKWARD * (of_64.compute + of_64.waiting))]
    assert [round(it) for it in found] == [633, 361]


def test_every_figure_has_its_source():
    assert all(link.source for link in LINKS.values()) and all(machine.source for machine in MACHINES.values())


# Measured here


def test_a_fit_finds_what_made_the_timings():
    for cores in (None, 2):
        truth = Machine("", 8, Link("", 2e-4, 3e9), cores=cores)
        timings = [(n, size, truth.all_reduce(size, n)) for n in (2, 3, 4) for size in (4096, 2**20, 2**23)]
        found = fit_link(timings, cores=cores)
        assert found.alpha == pytest.approx(2e-4) and found.bandwidth == pytest.approx(3e9)


def test_a_fit_without_latency_has_none_and_not_less():
    found = fit_link([(2, 2**20, 0.0009), (2, 2**22, 0.004)])
    assert found.alpha == 0 and 1e9 < found.bandwidth < 1.3e9


def test_all_reduces_are_timed_in_ranks():
    timings = launch(time_all_reduce, (1024, 2**22), repeats=5, nproc_per_node=2, device="cpu", quiet=True).results[0]
    assert [timing[:2] for timing in timings] == [(2, 1024), (2, 2**22)] and all(seconds > 0 for *_, seconds in timings)
    assert fit_link(timings).bandwidth > 0


# At the door


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: ring_bytes(10, 0), "ranks is 0; it must be a whole number, 1 or more"),
        (lambda: ring_bytes(10, 2.0), "ranks is 2.0"),
        (lambda: ring_bytes(10, True), "ranks is True"),
        (lambda: ring_bytes(-1, 2), "size is -1; it must be 0 or more"),
        (lambda: Link("x", -1e-6, 1e9), "alpha is -1e-06"),
        (lambda: Link("x", 1e-6, 0), "bandwidth is 0; it must be above 0"),
        (lambda: Link("x", float("nan"), 1e9), "alpha is nan"),
        (lambda: Machine("x", 0, FAST), "gpus is 0"),
        (lambda: Machine("x", 4, FAST).all_reduce(10, 8), "8 ranks need `across`"),
        (lambda: BOX.all_reduce(10, 6), "6 ranks do not fill nodes of 4; use a multiple of 4"),
        (lambda: step(0, 10, 2, BOX), "compute is 0; it must be above 0"),
        (lambda: step(1, 0, 2, BOX), "size is 0"),
        (lambda: step(1, 10, 2, BOX, loading=-1), "loading is -1; it must be 0 or more"),
        (lambda: late(0), "ranks is 0"),
        (lambda: Machine("x", 4, FAST, images=0), "images is 0; it must be above 0"),
        (lambda: step(1, 10, 2, BOX, hidden=1.5), "hidden is a part of the compute, from 0 to 1, not 1.5"),
        (lambda: memory(0), "parameters is 0"),
        (lambda: memory(10, "lion"), "optimizer is 'lion'; it must be one of 'sgd', 'momentum', 'adam'"),
        (lambda: memory(10, precision="fp16"), "precision is 'fp16'; it must be one of 'fp32', 'bf16'"),
        (lambda: memory(10, activations=-1), "activations is -1"),
        (lambda: plan_training(10, 0, 2, BOX, 1.0), "batch is 0"),
        (lambda: fit_link([(2, 10, 0.1)]), "two sizes at least"),
        (lambda: fit_link([(1, 10, 0.1), (2, 20, 0.1)]), "two ranks at least"),
        (lambda: fit_link([(2, 10, 0.0), (2, 20, 0.1)]), "more than no time"),
        (lambda: fit_link([(2, 10, 0.2), (2, 2**20, 0.1)]), "do not grow with the bytes"),
        (lambda: planner(model="3 B"), "model is '3 B'; it must be one of '124 M'"),
        (lambda: planner(gpus=3), "gpus is 3; it must be one of 1, 2, 4"),
    ],
)
def test_what_cannot_be_is_refused_with_a_reason(call, words):
    with pytest.raises(ValueError) as error:
        call()
    assert words in str(error.value)

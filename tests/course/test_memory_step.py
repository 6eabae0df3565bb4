"""The bytes of a step, moment by moment: against arithmetic, and the meter of virtual GPUs."""

import gc

import pytest
import torch

from ddplab import device
from ddplab.course import memory_step
from ddplab.course.memory_step import CHANNELS, Moment, a_step, over_a_step, peak
from ddplab.vgpu import rehearsed, virtual_gpus

UNIT = 64 * CHANNELS * 64 * 4  # bytes that a layer gives for 64 images
PARAMETERS = 4 * (9 * CHANNELS + CHANNELS + 63 * (9 * CHANNELS**2 + CHANNELS) + 64 * CHANNELS * 10 + 10)


def test_a_step_from_its_beginning_to_its_end():
    moments = a_step()
    assert [*dict.fromkeys(it.phase for it in moments)] == ["forward", "backward", "update"]
    assert {(it.parameters, it.state) for it in moments} == {(PARAMETERS, 2 * PARAMETERS)}
    assert {it.gradients for it in moments if it.phase == "forward"} == {0}
    assert moments[-1].gradients == PARAMETERS and moments[-1].batch < 0.1 * UNIT, "what is left are the images"
    ends = [it for it in moments if it.phase == "forward"][-1]
    assert 64 * UNIT < ends.batch < 65 * UNIT, "a ReLU's output is kept, and nothing else"
    high = peak(moments)
    assert high.phase == "backward" and 65 * UNIT < high.batch < 67 * UNIT, "and gradients of activations are there"
    assert high.gradients < 0.1 * PARAMETERS


@pytest.mark.parametrize("block", [2, 4, 8, 16, 32])
def test_checkpointing_keeps_an_input_for_each_block_and_computes_one_at_a_time(block):
    moments = a_step(block=block)
    ends = [it for it in moments if it.phase == "forward"][-1]
    assert 64 / block - 1 < ends.batch / UNIT < 64 / block + 1
    assert 64 / block + block < peak(moments).batch / UNIT < 64 / block + block + 3


def test_bfloat16_halves_and_few_layers_turn_it_round():
    together = {
        (layers, switch): peak(a_step(**{"layers": layers} | dict([switch]))).together
        for layers in (16, 64)
        for switch in (("block", 0), ("block", 8), ("numbers", "bfloat16"))
    }
    for layers in (16, 64):
        half = together[layers, ("numbers", "bfloat16")] / together[layers, ("block", 0)]
        assert half == pytest.approx(0.5, abs=0.01)
    assert together[64, ("block", 8)] < together[64, ("numbers", "bfloat16")]
    assert together[16, ("block", 8)] > together[16, ("numbers", "bfloat16")]


@pytest.mark.parametrize("switches", [{}, {"block": 8}, {"numbers": "bfloat16"}], ids=str)
def test_the_peak_is_the_one_that_a_virtual_gpu_meters(switches, monkeypatch):
    if device().type == "cuda" and not rehearsed():
        pytest.skip("torch.cuda counts with its allocator's rounding there")
    with virtual_gpus(1) as gpus:
        monkeypatch.setattr(memory_step, "device", lambda: torch.device("vgpu:0"))
        step = memory_step._Watch.begin

        def begin(watch, phase):
            if phase == "forward":
                gc.collect()
                gpus.meter.reset()  # the step before is no part of it
            step(watch, phase)

        monkeypatch.setattr(memory_step._Watch, "begin", begin)
        high = peak(a_step.__wrapped__(**switches)).together  # not one that is kept
        metered = gpus.meter.peak["vgpu:0"]
    assert 0 <= metered - high < 0.01 * high, "labels and Adam's counters are in the meter's"


def test_a_step_in_words_and_a_mark_at_its_peak():
    words, figure = over_a_step(layers=16)
    assert words.startswith("peak 5.3 megabytes, in backward: parameters 0.2, gradients 0.0, state 0.4, batch 4.7")
    axis = figure.axes[0]
    (mark,) = [line for line in axis.get_lines() if line.get_marker() == "o"]
    assert mark.get_ydata()[0] == pytest.approx(5.3, abs=0.05) and 1 < mark.get_xdata()[0] < 2
    assert [it.get_text() for it in axis.get_xticklabels()] == ["forward", "backward", "update"]
    assert len({it.get_hatch() for it in axis.collections}) == 4


def test_a_peak_is_where_most_is_there():
    first, second = Moment("forward", 1, 0, 2, 3), Moment("backward", 1, 1, 2, 3)
    assert peak([first, second, first]) == second and second.together == 7

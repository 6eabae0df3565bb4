"""The timeline: what the profiler's trace becomes, the arithmetic of exposed and hidden, and real ranks."""

import itertools
import json
import re
from base64 import b64decode

import matplotlib
import pytest

matplotlib.use("Agg")

from ddplab import launch
from ddplab.course.timeline import BARS, Row, draw_on, exposed, hidden, lane, length, parts, phase, read, record
from ddplab.plots import COLOURS, drawing


def rows(*given):
    """Rows from (kind, name, start, end)."""
    return [Row(*row, "thread 1") for row in given]


ONE_STEP = rows(
    ("phase", "data", 0, 2),
    ("phase", "forward", 2, 5),
    ("compute", "aten::mm", 2, 5),
    ("phase", "backward", 5, 15),
    ("compute", "aten::mm", 5, 8),
    ("communication", "gloo:all_reduce", 7, 10),
    ("communication", "gloo:all_reduce", 9, 13),  # overlaps the one before
    ("compute", "aten::mm", 11, 12),
    ("phase", "optimiser", 16, 17),
)


def test_exposed_is_communication_without_computation():
    assert exposed(ONE_STEP) == [(8, 11), (12, 13)]
    assert hidden(ONE_STEP) == [(7, 8), (11, 12)]
    assert length(exposed(ONE_STEP)) + length(hidden(ONE_STEP)) == 13 - 7


def test_the_parts_are_the_whole():
    assert parts(ONE_STEP) == {"data": 2, "forward": 3, "backward": 6, "optimiser": 1, "exposed": 4, "between": 1}
    assert sum(parts(ONE_STEP).values()) == 17


def test_a_step_that_waits_outside_of_its_phases_and_one_that_never_waits():
    waits = rows(("phase", "forward", 0, 1), ("communication", "gloo:all_reduce", 0.5, 3), ("phase", "backward", 4, 5))
    assert parts(waits) == {"forward": 0.5, "backward": 1, "exposed": 2.5, "between": 1}
    alone = rows(("phase", "forward", 0, 1), ("phase", "backward", 1, 3), ("phase", "forward", 3, 4))
    assert parts(alone) == {"forward": 2, "backward": 2, "exposed": 0, "between": 0}


def event(name, category, ts, dur, tid=1, **args):
    return {"ph": "X", "name": name, "cat": category, "ts": ts, "dur": dur, "tid": tid, "args": args}


def test_a_trace_of_the_cpu_becomes_rows():
    message = {"Input type": ["c10::Half"], "Input Dims": [[10, 2]]}
    trace = {
        "baseTimeNanoseconds": 1_000_000,  # a millisecond
        "traceEvents": [
            {"ph": "M", "name": "process_name"},
            event("gloo:barrier", "user_annotation", 0, 50, tid=2),
            event("aten::randn", "cpu_op", 10, 50),  # before the first phase
            event("phase: backward", "user_annotation", 100, 400),
            event("autograd::engine::evaluate_function: MmBackward0", "cpu_op", 100, 200),
            event("aten::mm", "cpu_op", 120, 100),  # a part of it
            event("aten::copy_", "cpu_op", 200, 100, tid=2),  # of gloo's thread
            event("gloo:all_reduce", "user_annotation", 250, 900, tid=2, **message),  # its watch stops late
            event("phase: optimiser", "user_annotation", 500, 100),
        ],
    }
    found = read(trace)
    assert [(row.kind, row.name) for row in found] == [
        ("phase", "backward"),
        ("compute", "autograd::engine::evaluate_function: MmBackward0"),
        ("communication", "gloo:all_reduce"),
        ("phase", "optimiser"),
    ]
    assert found[2] == Row("communication", "gloo:all_reduce", 1.25, 1.5, "thread 2", bytes=40)
    assert read({"traceEvents": trace["traceEvents"][:3]}) == []  # nobody marked a phase


def test_on_a_gpu_the_kernels_count():
    nccl = {"stream": 20, "In msg nelems": 8, "dtype": "BFloat16", "Collective name": "allreduce"}
    found = read(
        {
            "traceEvents": [
                event("phase: backward", "user_annotation", 0, 100),
                event("phase: backward", "gpu_user_annotation", 5, 90, stream=7),
                event("aten::mm", "cpu_op", 1, 2),
                event("nccl:all_reduce", "user_annotation", 3, 1),
                event("sgemm", "kernel", 10, 30, tid=7, stream=7),
                event("ncclDevKernel_AllReduce_Sum_bf16", "kernel", 20, 60, tid=20, **nccl),
            ]
        }
    )
    assert [(row.kind, row.where, row.bytes) for row in found] == [
        ("phase", "thread 1", 0),
        ("compute", "stream 7", 0),
        ("communication", "stream 20", 16),
    ]
    assert length(exposed(found)) == pytest.approx(0.04) and length(hidden(found)) == pytest.approx(0.02)


def two_steps(path):
    import torch
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel as DDP

    from ddplab import device

    net = nn.Sequential(*(nn.Linear(64, 64) for _ in range(3))).to(device())
    model = DDP(net, bucket_cap_mb=0.01)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step():
        with phase("forward"):
            loss = model(torch.ones(8, 64, device=device())).mean()
        with phase("backward"):
            loss.backward()
        with phase("my own"):
            optimizer.step()

    step()
    step()
    with record(f"{path}/{torch.distributed.get_rank()}.json") as found:
        step()
        step()
    return found


@pytest.mark.parametrize("kind", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_real_ranks(tmp_path, kind):
    results = launch(two_steps, str(tmp_path), device=kind, quiet=True).results
    for rank, found in enumerate(results):
        phases = [row for row in found if row.kind == "phase"]
        assert [row.name for row in phases] == ["forward", "backward", "my own"] * 2
        assert all(a.end <= b.start for a, b in itertools.pairwise(phases))
        messages = [row for row in found if row.kind == "communication"]
        assert [row.bytes for row in messages] == [64 * 65 * 4] * 6  # three buckets a step
        backwards = [row for row in phases if row.name == "backward"]
        for number, message in enumerate(messages):
            assert backwards[number // 3].start < message.start < message.end <= backwards[number // 3].end
        assert any(row.kind == "compute" for row in found)
        assert sum(parts(found).values()) == pytest.approx(phases[-1].end - phases[0].start)
        trace = json.loads((tmp_path / f"{rank}.json").read_text())
        assert {"phase: forward", "phase: my own"} <= {entry["name"] for entry in trace["traceEvents"]}
    starts = [found[0].start for found in results]
    assert abs(starts[0] - starts[1]) < 60_000  # one clock for all ranks: not a minute apart


def test_the_picture_has_every_bar_and_names_what_it_shows():
    with drawing(4, 2) as figure:
        axis = figure.subplots()
        legend = draw_on(axis, [ONE_STEP, ONE_STEP], "two ranks")
    assert [label.get_text() for label in axis.get_yticklabels()] == ["rank 0", "rank 1"]
    assert [patch.get_label() for patch in legend] == [
        "data", "forward", "backward", "optimiser", "hidden communication", "exposed communication",
    ]  # fmt: skip
    bars = sum(len(collection.get_paths()) for collection in axis.collections)
    assert bars == 2 * (4 + 2 + 2)
    begins = [path.get_extents().x0 for collection in axis.collections for path in collection.get_paths()]
    ends = [path.get_extents().x1 for collection in axis.collections for path in collection.get_paths()]
    spans = [(0, 2), (2, 5), (5, 15), (16, 17), *hidden(ONE_STEP), *exposed(ONE_STEP)]  # milliseconds
    assert list(zip(begins, ends, strict=True)) == 2 * spans
    middles = [collection.get_datalim(axis.transData).y0 for collection in axis.collections]
    assert max(middles[: len(middles) // 2]) < 0.5 < min(middles[len(middles) // 2 :])  # rank 0's bars above rank 1's
    assert axis.get_ylim() == (1.5, -0.5)


def test_a_lane_shows_each_part_of_a_step_as_wide_as_it_is_long_and_waiting_in_no_phase():
    image = lane(ONE_STEP, 0, 20)
    svg = b64decode(re.search(r"base64,([^\"]+)", image)[1]).decode()
    bars = re.findall(r'<rect x="([\d.]+)%" width="([\d.]+)%" (?:y="[\d.]+" )?height="(\d+)" fill="(.*?)"', svg)
    above = {}
    for x, wide, high, colour in bars:
        above.setdefault(colour if high == "15" else "below", []).append((float(x) / 5, float(wide) / 5))
    sums = {BARS[name][0]: ms for name, ms in parts(ONE_STEP).items() if name in BARS} | {COLOURS[7]: 4}
    assert {colour: sum(wide for _, wide in its) for colour, its in above.items() if colour != "below"} == sums
    assert above[COLOURS[7]] == [(8, 3), (12, 1)] and above["below"] == [(7, 1), (11, 1)]
    assert above[BARS["backward"][0]] == [(5, 3), (11, 1), (13, 2)]
    assert re.findall(r"<text.*?>(.*?)<", svg) == ["data", "forward", "backward", "waits"], "where there is room"
    assert image.startswith(
        '<img alt="data 2 ms, forward 3 ms, backward 6 ms, optimiser 1 ms, exposed 4 ms, between 1 ms"'
    )

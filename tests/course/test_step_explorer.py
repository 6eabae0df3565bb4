"""The model of a step: its facts are those of a real DDP. That the page has the same model, `test_browser` holds."""

import matplotlib
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel as DDP

matplotlib.use("Agg")

from ddplab import launch
from ddplab.course.step_explorer import BUCKETS, MIB, MODEL, RANKS, StepModel, explore_step

SLOW = 1  # the rank that begins its backward when all buckets have left the others


def notes_of_ddp(cap: str) -> tuple[list, list, list, dict]:
    """What a rank of a real DDP notes in its second backward, and in one that is held back.

    Its notes are ("ready", layer) and ("leaves", bytes); then which buckets are back when the last one has left, and
    DDP's own log.
    """
    torch.manual_seed(0)
    net = nn.Sequential(*(nn.Linear(512, 512) for _ in range(MODEL["layers"])))
    caps = {} if cap == "default" else {"bucket_cap_mb": BUCKETS[cap][1] / MIB}
    model, notes, sent, back = DDP(net, **caps), [], [], []
    rank, store = dist.get_rank(), dist.distributed_c10d._get_default_store()

    def leave(state, bucket):
        notes.append(("leaves", bucket.buffer().nbytes))
        sent.append(allreduce_hook(state, bucket))
        if bucket.is_last():
            back.append([promise.done() for promise in sent])
            store.set(f"{cap}: all have left rank {rank}", "yes")
        return sent[-1]

    model.register_comm_hook(None, leave)
    for number, layer in enumerate(net):
        layer.weight.register_post_accumulate_grad_hook(lambda _, number=number: notes.append(("ready", number)))
    batch = torch.ones(2, 512)
    model(batch).mean().backward()  # learns the order
    for it in (notes, sent, back):
        it.clear()
    store.delete_key(f"{cap}: all have left rank {rank}")
    dist.barrier()
    loss = model(batch).mean()
    if rank == SLOW:
        store.wait([f"{cap}: all have left rank {other}" for other in range(dist.get_world_size()) if other != SLOW])
    loss.backward()
    exchanged = list(notes)
    notes.clear()
    with model.no_sync():
        model(batch).mean().backward()
    held_back = list(notes)
    model(batch).mean().backward()  # DDP writes its log late
    return exchanged, held_back, back[0], model._get_ddp_logging_data()


def test_buckets_order_and_waiting_are_those_of_ddp():
    ranks = launch(lambda: [notes_of_ddp(bucket) for bucket in BUCKETS], device="cpu", quiet=True).results
    for number, bucket in enumerate(BUCKETS):
        model = StepModel(2, slow=SLOW, slower=3.0, bucket=bucket)
        sizes = [len(layers) * MODEL["bytes"] for layers in model.buckets()]
        order = []
        for layers, size in zip(model.buckets(), sizes, strict=True):
            order += [("ready", layer) for layer in layers] + [("leaves", size)]
        for exchanged, held_back, _, logged in (rank[number] for rank in ranks):
            assert exchanged == order and logged["rebuilt_bucket_sizes"] == ", ".join(map(str, sizes))
            assert held_back == [note for note in order if note[0] == "ready"]  # then all could only be sent after it
        assert model.ready(SLOW, MODEL["layers"]) == model.leaves(0, len(sizes) - 1)  # the same staging in the model
        assert not any(ranks[0][number][2]) and {model.waits_for(n) for n in range(len(sizes))} == {f"rank {SLOW}"}
    assert [len(StepModel(bucket=bucket).buckets()) for bucket in BUCKETS] == [8, 4, 2, 1, 2]


@pytest.mark.parametrize("bucket", BUCKETS)
def test_without_overlap_all_communication_comes_after_backward(bucket):
    for ranks in RANKS:
        on, off = (StepModel(ranks, bucket=bucket, overlap=overlap) for overlap in (True, False))
        last = max(off.ready(rank, 0) for rank in range(ranks))
        assert all(start >= last for start, _ in off.travels()) and on.seconds() <= off.seconds()
        assert (on.travels()[0][0] < last) == (len(on.buckets()) > 1)  # the only bucket leaves at the end anyway


def test_the_best_bucket_grows_with_the_ranks():
    """As lesson 4.2 says."""
    times = {n: {bucket: StepModel(n, slow=None, bucket=bucket).seconds() for bucket in BUCKETS} for n in RANKS}
    assert [min(times[n], key=times[n].get) for n in (2, 4, 8)] == ["1 MiB", "2 MiB", "4 MiB"]
    assert [f"{times[4][bucket]:.1f}" for bucket in ("1 MiB", "2 MiB", "8 MiB")] == ["36.0", "32.0", "39.5"]


def test_without_overlap_the_largest_bucket_is_best_and_none_wins_back_what_a_slow_rank_loses():
    """As lesson 4.2 says."""
    bare = {bucket: StepModel(4, slow=None, bucket=bucket, overlap=False).seconds() for bucket in BUCKETS}
    slow = {bucket: StepModel(4, slow=1, bucket=bucket) for bucket in BUCKETS}
    assert min(bare, key=bare.get) == "8 MiB"
    assert f"{min(step.seconds() for step in slow.values()):.1f}" == "55.0" and slow["2 MiB"].ready(1, 0) == 48


def test_buckets_travel_in_order_and_the_slow_rank_waits_least():
    step = StepModel(8, slow=5, slower=3.0, bucket="1 MiB")
    assert all(end <= start for (_, end), (start, _) in zip(step.travels(), step.travels()[1:], strict=False))
    assert min(range(8), key=step.waiting) == 5 and step.seconds() > StepModel(8, slow=None, bucket="1 MiB").seconds()
    assert StepModel(8, slow=None, bucket="1 MiB").waits_for(3) == "bucket 2"


def test_text_and_a_picture_where_nobody_can_press(capsys, monkeypatch):
    shown = []
    monkeypatch.setattr("IPython.display.display", shown.append)
    explore_step()._ipython_display_()
    assert "bucket 0 (layers 7, 6): travels from 24.0" in capsys.readouterr().out
    labels = [label.get_text() for label in shown[0].axes[0].get_yticklabels()]
    assert labels == ["● rank 0", "■ rank 1", "◆ rank 2", "▲ rank 3"]


def test_where_no_rank_is_slow_the_lanes_are_those_of_more_and_more_ranks():
    """As lesson 7.4 shows: a rank computes as much, and from three ranks on buckets queue up."""
    (axis,) = explore_step(ranks=2, slow=None, bucket="1 MiB").draw().axes
    labels = [label.get_text() for label in axis.get_yticklabels()]
    assert labels == ["each of 2 ranks", "each of 3 ranks", "each of 4 ranks", "each of 8 ranks"]
    hatched = [bar for bar in axis.collections if bar.get_hatch() and bar.get_datalim(axis.transData).y0 % 1 > 0.5]
    waits = [bar.get_datalim(axis.transData).width for bar in hatched]
    steps = [StepModel(ranks, slow=None, bucket="1 MiB") for ranks in RANKS]
    assert waits == pytest.approx([step.waiting(0) for step in steps])
    lasts = [end - start for start, end in (step.travels()[-1] for step in steps)]
    assert [wait > last + 1e-6 for wait, last in zip(waits, lasts, strict=True)] == [False, True, True, True]


def test_what_no_list_offers_is_refused():
    with pytest.raises(ValueError, match="slow is 4; it must be one of None, 0, 1, 2, 3"):
        explore_step(slow=4)

"""The advice of lesson 9.5's guide: ten sentences to bet on, each with a run that shows what it is worth."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim.lr_scheduler import LinearLR
from torch.utils.data import DistributedSampler
from torch.utils.flop_counter import FlopCounterMode

from ddplab.agents import torchrun
from ddplab.course.bets import Bets
from ddplab.course.data import digits
from ddplab.course.memory import held, watch_buckets
from ddplab.course.messages import two_calls
from ddplab.course.models import MLP
from ddplab.course.played_servers import free_port
from ddplab.launcher import launch
from ddplab.run import RankError
from ddplab.vgpu import virtual_gpus
from ddplab.worker import device

Came = tuple[str, str]  # the end of a run, and what was measured, in words

bets = Bets()


def _work(batch: int) -> tuple[int, int]:
    ranks, messages = dist.get_world_size(), []
    model = DDP(MLP().to(device()))

    def hook(group, bucket):  # DDP refuses annotations that are text
        messages.append(bucket.buffer().nbytes)
        return allreduce_hook(group, bucket)

    model.register_comm_hook(None, hook)
    images, labels = (part[: batch // ranks].to(device()) for part in digits().tensors)
    with FlopCounterMode(display=False) as arithmetic:
        F.cross_entropy(model(images), labels).backward()
    return arithmetic.get_total_flops(), sum(messages)


@cache
def _counted(ranks: int) -> list[Any]:
    return launch(lambda: (_work(256), _work(1024)), nproc_per_node=ranks, quiet=True).results


def _hours(share: float, ranks: float) -> float:
    return 24 * (share + (1 - share) / ranks)


@bets.on(
    59,
    "N GPUs, N times faster: 24 hours become 6 on four GPUs, and 3 on eight",
    "256 images are trained on once, by one rank, by two, by four. What halves for a rank, from two to four?",
    "its operations, and the bytes that it sends",
    "its operations, not the bytes",
    "the bytes, not its operations",
    verdict="true if",
    because="what is not divided is next to nothing beside the arithmetic: each rank has its share of the images, "
    "but hands over a gradient of every weight, and updates them all. How near to N, only GPUs can tell",
)
def _divided() -> Came:
    small, large = zip(*(_counted(ranks)[0] for ranks in (1, 2, 4)), strict=True)
    operations, (_, *sent) = zip(*small, strict=True)
    halves = operations[0] == 2 * operations[1] == 4 * operations[2]
    same = sent[0] == sent[1] == large[1][1] == large[2][1]
    words = ", ".join(f"{it:,}" for it in operations)
    words = f"operations of a rank on 1, 2, 4 ranks: {words}; bytes that it gives to the all-reduce on 2 "
    words += f"and 4: {sent[0]:,} and {sent[1]:,}, and as many with 1,024 images. Amdahl's formula: where a "
    words += f"tenth is not divided, 24 hours are {_hours(0.1, 8):.1f} on eight GPUs, and never less than "
    words += f"{_hours(0.1, 1e9):.1f}"
    return "its operations, not the bytes" if halves and same else "otherwise", words


def _bytes_per_parameter(dtype: torch.dtype) -> list[float]:
    model = DDP(MLP().to(device(), dtype))
    optimizer, buckets = torch.optim.Adam(model.parameters()), watch_buckets(model)
    model(torch.ones(8, 64, device=device(), dtype=dtype)).sum().backward()
    optimizer.step()
    parameters = sum(weight.numel() for weight in model.parameters())
    return [part / parameters for part in (*held(model, optimizer), buckets())]


@cache
def _memory() -> list[Any]:
    types = torch.float32, torch.bfloat16
    return launch(lambda: [_bytes_per_parameter(it) for it in types], nproc_per_node=2, quiet=True).results


@bets.on(
    60,
    "A 7B model is fine-tuned on one A100, and with DDP in fewer hours on four or eight",
    "Adam makes an update in DDP, all in 32 bits, then all in 16. Count weights, gradients, what Adam keeps "
    "and DDP's buckets, times 7 billion: what fits on the larger A100, which has 80 GB?",
    "32 bits, and 16",
    "16 bits only",
    "neither",
    verdict="true if",
    because="the card has 80 GB and, say, everything is in 16 bits; with Adam in 32 it fits on no A100, and "
    "DDP divides none of it. (Activations come on top, as 1.3 measures. The hours only GPUs can tell)",
)
def _fits() -> Came:
    one, other = _memory()
    words, fitting = [], []
    for bits, parts in zip((32, 16), one, strict=True):
        alone, with_buckets = 7 * sum(parts[:3]), 7 * sum(parts)
        words.append(f"{bits} bits: {alone:g} GB, and {with_buckets:g} with DDP's buckets")
        fitting.append((alone < 40, alone < 80, with_buckets < 80))
    found = one == other and fitting == [(False, False, False), (False, True, True)]
    return "16 bits only" if found else "otherwise", "; ".join(words) + "; the same on each of two ranks"


FAILS_ONCE = """
import os
import time

from ddplab import log

first_attempt = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
for epoch in range(3):
    if epoch == 2 and first_attempt:
        if os.environ["RANK"] == "1":
            raise RuntimeError("the GPU is gone")
        time.sleep(60)  # rank 0 waits, as it would in a collective
    log(epoch=epoch)
"""


@bets.on(
    63,
    "If a GPU fails, torchrun can start the process again by itself",
    "A script that saves no checkpoint fails once, on rank 1, after two of three epochs: first under torchrun "
    "without an option, then with `--max-restarts 1`. When is it started again?",
    "both times",
    "the second time, and goes on with the third epoch",
    "the second time, and begins with the first epoch",
    verdict="true if",
    because="you say `--max-restarts`; then all ranks start again, from the beginning unless the script "
    "loads a checkpoint. A GPU that stays broken fails the restart as well",
)
def _started_again() -> Came:
    epochs = []
    with tempfile.TemporaryDirectory(prefix="ddplab-advice-") as folder:
        script = Path(folder, "three_epochs.py")
        script.write_text(FAILS_ONCE)
        for options in ({}, {"max_restarts": 1}):
            try:
                run = torchrun(str(script), nproc_per_node=2, quiet=True, **options)
            except RankError as error:
                run = error.run
            epochs.append((run.state, run.metrics.column("epoch", rank=1)))
    by_default, allowed = epochs
    found = by_default == ("failed", [0, 1]) and allowed == ("finished", [0, 1, 0, 1, 2])
    words = f"epochs of rank 1 by default: {by_default[1]}, and the run has {by_default[0]}; "
    words += f"`--max-restarts 1`: {allowed[1]}, and the run has {allowed[0]}"
    return "the second time, and begins with the first epoch" if found else "otherwise", words


def _gradient(each: int) -> torch.Tensor:
    torch.manual_seed(0)
    model = DDP(MLP().to(device(), torch.float64))
    start = dist.get_rank() * each
    images, labels = (part[start : start + each].to(device()) for part in digits().tensors)
    F.cross_entropy(model(images.double()), labels).backward()
    return torch.cat([weight.grad.flatten() for weight in model.parameters()])


def _with_adam(rate: float, warm: int, seed: int) -> float:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(seed)
    model = DDP(MLP().to(device()))
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    scheduler = LinearLR(optimizer, start_factor=0.01 if warm else 1, total_iters=warm)
    images, labels = (part.to(device()) for part in digits().tensors)
    for _ in range(3):
        for pick in torch.randperm(len(labels)).split(256)[:-1]:
            mine = pick[rank::ranks]
            optimizer.zero_grad()
            F.cross_entropy(model(images[mine]), labels[mine]).backward()
            optimizer.step()
            scheduler.step()  # after every update
    return F.cross_entropy(model(images), labels).item()


def _all_seeds(rates: Iterable[float], seeds: Iterable[int]) -> dict[float, list[list[float]]]:
    found = {}
    for rate in rates:
        found[rate] = [[_with_adam(rate, updates, seed) for seed in seeds] for updates in (0, 10)]
    return found


@bets.on(
    69,
    "The effective batch is the number of GPUs times the batch of each",
    "Four ranks with 32 images each take the gradient, and one rank takes that of all 128. DDP's is…",
    "the same, but for rounding",
    "four times as large",
    "a quarter of it",
    verdict="true if",
    because="the loss is a mean, the shares are equal, and no layer draws random numbers or looks at its "
    "batch as a whole: then DDP's mean over N ranks with b samples each is the gradient of N times b",
)
def _effective() -> Came:
    [(whole, quarter)] = launch(lambda: (_gradient(128), _gradient(32)), nproc_per_node=1, quiet=True).results
    two, four = (launch(_gradient, 128 // n, nproc_per_node=n, quiet=True).results[0] for n in (2, 4))
    off = [((it - whole).norm() / whole.norm()).item() for it in (two, four, quarter)]
    words = "off from the gradient of 128 images: "
    words += f"2 ranks with 64 {off[0]:.0e}, 4 with 32 {off[1]:.0e}; "
    words += f"and, to compare, one rank with 32 of them only: {off[2]:.0%}"
    return "the same, but for rounding" if max(off[:2]) < 1e-14 and off[2] > 1 / 3 else "otherwise", words


@bets.on(
    71,
    "With eight GPUs and more, warm up",
    "Batches of 256 go to one rank, or are shared out among eight. Adam trains at a rate of 0.3 and of 0.03, "
    "with a warm-up of ten updates and with none. Where is the loss twice as high, or more, without one?",
    "on eight ranks, at both rates",
    "on eight ranks, at the large rate",
    "at the large rate, on one rank and on eight",
    verdict="misleading",
    because="a large rate calls for it, on one device as on eight, whose losses are the same; "
    "at the smaller rate neither needs it",
)
def _warm_up() -> Came:
    alone = launch(_all_seeds, (0.03, 0.3), range(3), nproc_per_node=1, quiet=True).results[0]
    together = launch(_all_seeds, (0.03, 0.3), range(1), nproc_per_node=8, quiet=True).results[0]
    runs = alone, together
    large = all(min(it[0.3][0]) > 2.5 * max(it[0.3][1]) for it in runs)
    small = all(none <= some for it in runs for none, some in zip(*it[0.03], strict=True))
    seed_0 = [f"{it[0]:.2f}" for rate in (0.3, 0.03) for run in runs for it in run[rate]]
    words = "loss without warm-up → with it, from the same seed: at a rate of 0.3, {} → {} on one rank, "
    words += "{} → {} on eight; at 0.03, {} → {} and {} → {}. Two more seeds on one rank agree"
    words = words.format(*seed_0)
    return "at the large rate, on one rank and on eight" if large and small else "otherwise", words


def _rank_0_reads(rank_1: str, alone: bool = False, lazily: bool = False) -> list[str]:
    port = str(free_port()) if alone else ""
    try:
        run = launch(two_calls, rank_1, port, lazily, init=False, device="cpu", quiet=True)
    except RankError as error:
        run = error.run
    return [row["says"] for row in run.metrics if row["rank"] == 0]


@bets.on(
    73,
    "A timeout in a collective usually means that one GPU is slower, or has another CUDA",
    "Rank 0 waits a second in an `all_reduce` over gloo. All that it can see of rank 1 are the messages of this "
    "call. Rank 1 comes late; or it skips the call; or it calls `broadcast` instead. What is rank 0 told?",
    "the same sentence each time",
    "one sentence when rank 1 is late, another for the two mistakes",
    "a sentence of its own each time",
    verdict="misleading",
    because="slowness is one cause of three here. Each time rank 0 sees the same, that no message has come, and "
    "gloo says no more (by default, `TORCH_DISTRIBUTED_DEBUG` unset). So a timeout alone cannot tell the cause: "
    "ask rank 1 where it is",
)
def _told() -> Came:
    does = "comes late to all_reduce", "skips all_reduce", "calls broadcast instead", "brings two numbers"
    late, skipped, another, two = (_rank_0_reads(it)[-1] for it in does)
    same = late == skipped == another and "for recv" in late and "for send" in two
    words = f"late, skipped, another call: “{late}”. (Where rank 1 brings two numbers to rank 0's one: “{two}”)"
    return "the same sentence each time" if same else "otherwise", words


@bets.on(
    74,
    "`init_process_group` hangs until every rank has called it",
    "In this call gloo connects each rank with all others. With `TORCH_GLOO_LAZY_INIT=1` it connects two ranks "
    "only when they have something to send. Rank 1 makes no call at all; rank 0 makes this one, and then an "
    "`all_reduce`. Where does it wait in vain?",
    "both times in `init_process_group`",
    "first in `init_process_group`, then, lazily, in `all_reduce`",
    "both times in `all_reduce`",
    verdict="true if",
    because="your backend connects all ranks in this call, as gloo does by default, or no launcher holds the store. "
    "Else a rank goes through alone, and waits in the first collective. The guide has NCCL, which has not been run "
    "here: its connections are made lazily, says torch's documentation of this call, unless you give a `device_id`",
)
def _waits() -> Came:
    never = "never begins"
    (at_once, *rest), lazily = _rank_0_reads(never), _rank_0_reads(never, lazily=True)
    alone = [_rank_0_reads(never, alone=True, lazily=it) for it in (False, True)]
    both_came = _rank_0_reads("calls both", lazily=True)
    found = not rest and len(lazily) == 2 and all(it.endswith("/1") for it in (at_once, lazily[1]))
    found = found and (lazily[0], both_came) == ("went through", ["went through", "went through, the sum is 2"])
    found = found and all("1/2 clients joined" in it[0] for it in alone)
    words = f"`init_process_group`: “{at_once}” (at its end stands who is missing). Lazily it {lazily[0]}; "
    words += (
        f"`all_reduce`: “{lazily[1]}”. (Without a launcher rank 0 opens the store itself, and waits there in either "
    )
    words += f"way: “{alone[0][0]}”)"
    return "first in `init_process_group`, then, lazily, in `all_reduce`" if found else "otherwise", words


def _run(order: int) -> tuple[int, float]:
    torch.manual_seed(0)
    model = DDP(MLP().to(device()))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.15)
    sampler = DistributedSampler(digits(), seed=order)
    images, labels = (part.to(device()) for part in digits().tensors)
    updates = 0
    for epoch in range(4):
        sampler.set_epoch(epoch)
        for pick in torch.tensor(list(sampler)).split(64):
            optimizer.zero_grad()
            F.cross_entropy(model(images[pick]), labels[pick]).backward()
            optimizer.step()
            updates += 1
    images, labels = (part.to(device()) for part in digits(train=False).tensors)
    return updates, F.cross_entropy(model.module(images), labels).item()  # the loss over the test images


@bets.on(
    75,
    "Results differ from one GPU's because the samples come in another order",
    "One rank trains for four epochs, with the samples in three orders. Then four ranks do, with the first "
    "order, and batches as large on each. What moves the loss over the test images more?",
    "four ranks",
    "another order",
    "both about as much",
    verdict="misleading",
    because="the order moves them a little; four times the batch with a quarter of the updates, far more",
)
def _moved() -> Came:
    orders = launch(lambda: [_run(order) for order in range(3)], nproc_per_node=1, quiet=True).results[0]
    updates, loss = launch(_run, 0, nproc_per_node=4, quiet=True).results[0]
    losses = [it for _, it in orders]
    more = max(losses) < 1.1 * min(losses) and loss > 2.5 * losses[0] and (orders[0][0], updates) == (92, 24)
    words = f"test loss in three orders: {', '.join(f'{it:.2f}' for it in losses)}, each after "
    words += f"{orders[0][0]} updates; on four ranks: {loss:.2f}, after {updates}"
    return "four ranks" if more else "otherwise", words


@bets.on(
    77,
    "With DDP, GPU 0 runs out of memory because it reduces the gradients",
    "Four ranks hand over their gradients in DDP, and hold memory; then `DataParallel` trains on two "
    "virtual GPUs. Where does GPU 0 get more, or hold more, than the others?",
    "in both",
    "in DDP only",
    "in `DataParallel` only",
    verdict="false",
    because="under DDP each rank holds as much as the others and hands over as much, in an all-reduce "
    "(lesson 3.3 weighs who adds up); `DataParallel` is what brings all to GPU 0",
)
def _reduces() -> Came:
    with virtual_gpus(2) as pair:
        model = torch.nn.DataParallel(MLP()).to(pair[0])
        model(torch.ones(8, 64)).sum().backward()
        onto = [pair.meter.bytes("reduce", target=gpu) for gpu in pair]
    brought, (one, other) = [both[0][1] for both in _counted(4)], _memory()
    alike = brought == [brought[0]] * 4 and one == other and onto == [brought[0], 0]
    words = f"DDP: {brought[0]:,} bytes handed over by each of 4 ranks, and each of 2 holds as much as the "
    words += f"other; `DataParallel`: {onto[0]:,} onto GPU 0, {onto[1]} onto GPU 1"
    return "in `DataParallel` only" if alike else "otherwise", words


@bets.on(
    78,
    "When one GPU is out of memory, match `--nproc-per-node` to the GPUs and set `CUDA_VISIBLE_DEVICES`",
    "Rank 0 saves its network, which is on its GPU, and rank 1 calls `torch.load` with the file and nothing else. "
    "(One process plays both, on two virtual GPUs.) Where do the weights land?",
    "on rank 0's GPU",
    "on rank 1's GPU",
    "on the CPU",
    verdict="misleading",
    because="here there are as many ranks as GPUs, and all are visible. Still GPU 0 has both ranks' weights in the "
    "end: a file notes where each tensor was, and `torch.load` puts it back there, whoever loads. Say where to, by "
    "`map_location`",
)
def _landed() -> Came:
    with virtual_gpus(2) as pair, tempfile.TemporaryDirectory(prefix="ddplab-advice-") as folder:
        file, noted = f"{folder}/rank_0.pt", set()
        torch.save(MLP().to(pair[0]).state_dict(), file)
        torch.load(file, map_location=lambda weights, place: noted.add(place) or weights)
        maps = None, {str(pair[0]): str(pair[1])}, "cpu"
        loaded = [torch.load(file, map_location=it).values() for it in maps]
        bare, mapped, on_cpu = (" ".join({str(weight.device) for weight in weights}) for weights in loaded)
    words = f"the file notes beside each tensor: {' '.join(noted)}. Rank 1 of 2 loads onto {bare}; by a map to its own "
    words += f"GPU onto {mapped}; by `cpu` onto {on_cpu}"
    found = (noted, bare, mapped, on_cpu) == ({"vgpu:0"}, "vgpu:0", "vgpu:1", "cpu")
    return "on rank 0's GPU" if found else "otherwise", words

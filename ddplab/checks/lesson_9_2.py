"""Checks of lesson 9.2, Only one GPU is used: the text's three programs, mended. The third is turn 5.1.c again."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DataParallel
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler

from ddplab.checks.common import gpus_for, lies_on
from ddplab.checks.lesson_5_1 import taken
from ddplab.checks.turns import TURNS, leaving, turn

# The third program

ASKED = TURNS["5.1.c"]
NODES = {  # each process of a node, as torchrun tells it: RANK, LOCAL_RANK, GROUP_RANK; and the node's GPUs
    "node 0 of 3": lambda: ([(0, 0, 0), (1, 1, 0)], 2),
    "node 1 of 3": lambda: ([(2, 0, 1), (3, 1, 1)], 2),
    "node 2 of 3": lambda: ([(4, 0, 2), (5, 1, 2)], 2),
}

turn(
    "9.2.a",
    "A GPU of its own, on every node",
    ASKED.right,
    NODES,
    [
        (wrong, what, "`cuda:` and a number." if "torch.device" in hint else hint)
        for wrong, what, hint in ASKED.mistakes
        if "a node without" not in what
    ]
    + [
        (lambda env, gpus: f"cuda:{min(int(env['RANK']), gpus - 1)}", "RANK runs on, and later nodes share one GPU",
         "Held below `gpus`, the number is the same for both. Which number begins at 0 on each node?"),
    ]
    + [
        (leaving("Invalid device string: 'cuda:-", lambda env, gpus, by=by: f"cuda:{int(env[by]) - 1}"),
         "a GPU below 0 is asked for", "The GPUs are counted from 0, and so is `LOCAL_RANK`.")
        for by in ("RANK", "LOCAL_RANK")
    ],
    call=taken,
    heads=("one process", "the other"),
    hints={"'LOCAL_RANK'": "The variables of the process are in `env`.",
           "must be int, not str": "Variables of the environment are texts: `int(…)`.",
           "not all arguments converted": "Variables of the environment are texts: `int(…)`.",
           "'cuda:-": "Its number is below 0, where the GPUs begin.",
           "Invalid device string": "`cuda:1`, with a colon."},
    otherwise="`cuda:` and a number. Which number begins at 0 on each node?",
)  # fmt: skip


# The first program


class _Rows(dict[str, int]):
    """Place → rows, one for a model and all of its copies."""

    def __deepcopy__(self, memo: Any) -> "_Rows":
        return self


class _Counts(nn.Linear):
    """Notes where its replicas compute, and how many rows."""

    def __init__(self) -> None:
        super().__init__(4, 3)
        self.rows = _Rows()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.rows[lies_on(x)] = self.rows.get(lies_on(x), 0) + len(x)
        return super().forward(x)


def _computes(my_first: Callable[..., Any], gpus: int) -> list[Any]:
    """Return how many rows each GPU has, how many the CPU, and whether the loss is right, and its gradients arrive."""
    torch.manual_seed(0)
    model, images, labels = _Counts(), torch.randn(16, 4), torch.arange(16) % 3
    wanted = F.cross_entropy(nn.functional.linear(images, model.weight, model.bias), labels).item()
    with gpus_for(gpus, virtual=True) as those:
        loss = my_first(model, images, labels, those[0])
        if not any(it.grad is not None for it in model.parameters()):  # or else theirs has done it
            loss.backward()
        rows = [model.rows.get(name, 0) for name in (*(f"GPU {n}" for n in range(gpus)), "CPU")]
        arrives = all(it.grad is not None for it in model.parameters())
    *each, cpu = rows
    ours = ("the batch's" if arrives else "no gradient") if abs(loss.item() - wanted) < 1e-4 else "another"
    return [", ".join(map(str, each)), cpu, ours]


def _my_first(
    model: Any, images: Any, labels: Any, gpu: Any, wrap: Any = DataParallel, moved: Iterable[str] = ("model", "labels")
) -> Any:
    its, x, y = (it.to(gpu) if name in moved else it for name, it in
                 {"model": model, "images": images, "labels": labels}.items())  # fmt: skip
    return F.cross_entropy(wrap(its)(x), y)


def _without_gradients(model: Any, images: Any, labels: Any, gpu: Any) -> Any:
    with torch.no_grad():
        scores = DataParallel(model.to(gpu))(images)
    return F.cross_entropy(scores.requires_grad_(), labels.to(gpu))


EVERYTHING = ("model", "images", "labels")
turn(
    "9.2.b",
    "Every GPU computes",
    _my_first,
    {"2 GPUs": lambda: (2,), "4 GPUs": lambda: (4,)},
    call=_computes,
    heads=("rows on each GPU", "on the CPU", "the loss"),
    mistakes=[
        (partial(_my_first, wrap=lambda model: model, moved=EVERYTHING), "GPU 0 does everything",
         "`DataParallel(model)` deals a batch out to all GPUs. Is it the wrapped one that you call?"),
        (partial(_my_first, wrap=lambda model: model, moved=()), "no GPU does anything, and nobody says so",
         "Nothing is moved, and nothing is wrapped: so all of it happens on the CPU."),
        (leaving("parameters and buffers on device", partial(_my_first, moved=("images", "labels"))),
         "the model is wrapped, and still on the CPU", "`model.to(gpu)`, before it is called."),
        (leaving("target is on cpu", partial(_my_first, moved=("model", "images"))),
         "the labels are still on the CPU", "The scores come back to `gpu`. The labels have to meet them there."),
        (lambda model, images, labels, gpu: DataParallel(model.to(gpu))(images).mean(),
         "it is not the cross entropy of scores and labels", "`F.cross_entropy(scores, labels)`."),
        (_without_gradients, "the loss is right, and its gradients do not arrive at the model",
         "The scores have to come out of `model` itself, with their graph: no copy, no `no_grad`, and no `detach`."),
    ],
    hints={"attribute 'backward'": "Return the loss.",
           "attribute 'item'": "Return the loss.",
           "CUDA enabled": "`.cuda()` asks for a real GPU. These are virtual: `.to(gpu)`.",
           "NVIDIA": "`.cuda()` asks for a real GPU. These are virtual: `.to(gpu)`.",
           "graph a second time": "Return a loss with its graph: the check calls `backward()`.",
           "grad can be implicitly": "That is no loss, but the scores: `F.cross_entropy(scores, labels)`.",
           "mat1": "Model and images have to be in one place, unless `DataParallel` takes the images along.",
           "Tensors must be on": "One of them has not been moved to `gpu`.",
           "not wrapped": "Call the wrapped model.",
           "list index out of range": "Is `device_ids` empty? `device_count()` leaves virtual GPUs out. Do without."},
    otherwise="Wrap, move the model, call the wrapped one, and move the labels to where its scores are.",
)  # fmt: skip


# The second program


class _Sees(nn.Linear):
    def __init__(self) -> None:
        super().__init__(1, 1)
        self.seen: dict[str, list[int]] = {}
        self.busy: set[str] = set()  # with a part of this batch

    def forward(self, samples: torch.Tensor) -> torch.Tensor:
        self.seen.setdefault(lies_on(samples), []).extend(samples.tolist())
        self.busy.add(lies_on(samples))
        return samples


def _deals(my_loader: Callable[..., Any], gpus: int) -> list[int]:
    """Return how many of 32 samples an epoch has, how many once more, and how many GPUs a batch leaves idle.

    Of two epochs, the one that has fewer.
    """
    with gpus_for(gpus, virtual=True) as those:
        loader = my_loader(range(32), gpus)
        if not isinstance(loader, DataLoader):
            raise TypeError(f"no DataLoader: {type(loader).__name__}")
        return min((_epoch(loader, gpus, those[0]) for _ in range(2)), key=lambda epoch: epoch[0])


def _epoch(loader: DataLoader, gpus: int, first: Any) -> list[int]:
    model = DataParallel(_Sees().to(first))
    idle = []
    for samples in loader:
        model.module.busy.clear()
        model(samples)
        idle.append(gpus - len(model.module.busy))
    served = [sample for mine in model.module.seen.values() for sample in mine]
    return [len({*served}), len(served) - len({*served}), max(idle, default=gpus)]


def _my_loader(dataset: Any, gpus: int, **how: Any) -> Any:
    return DataLoader(dataset, **{"batch_size": 16, "shuffle": True} | how)


turn(
    "9.2.c",
    "Every sample, and every GPU",
    _my_loader,
    {"2 GPUs": lambda: (2,), "4 GPUs": lambda: (4,), "8 GPUs": lambda: (8,)},
    call=_deals,
    heads=("samples seen", "seen again", "idle GPUs in a batch"),
    mistakes=[
        (lambda dataset, gpus: DataLoader(dataset, 40, sampler=DistributedSampler(dataset, gpus, 0)),
         "one share is loaded, and nobody loads the others",
         "The sampler deals data out to processes, and here there is one. `DataParallel` cuts batches up by itself."),
        (lambda dataset, gpus: DataLoader(dataset), "a batch has one row, and one GPU does it all",
         "One row cannot be cut up. `batch_size` is 1 if nobody says otherwise; or is the last batch too short?"),
        (lambda dataset, gpus: DataLoader(dataset, gpus // 2), "a batch has fewer rows than there are GPUs",
         "Each batch is cut up for all GPUs: give it more rows, say 16."),
        (partial(_my_loader, batch_size=10), "parts are rounded up, and run out before the last GPUs",
         "10 rows for 8 GPUs are parts of 2, enough for 5 GPUs. Take a batch that divides evenly, say 16 rows."),
        (partial(_my_loader, batch_size=12), "parts are rounded up, and run out before the last GPUs",
         "12 rows for 8 GPUs are parts of 2, enough for 6 GPUs. Take a batch that divides evenly, say 16 rows."),
        (partial(_my_loader, batch_size=20, drop_last=True), "the last batch is dropped",
         "Leave `drop_last` out, or take a batch that divides 32."),
        (lambda dataset, gpus: DataLoader(dataset, 16, sampler=RandomSampler(dataset, replacement=True)),
         "samples are drawn, and put back", "`shuffle=True` deals each of them once."),
        (lambda dataset, gpus: DataLoader(dataset, batch_sampler=iter([range(16), range(16, 32)])),
         "the second epoch is empty", "An iterator is used up after one epoch: give a list, or a sampler."),
        (lambda dataset, gpus: DataLoader([*dataset] * gpus, 16), "each sample comes once for each GPU",
         "`DataParallel` cuts the batch up. The data need no copies."),
    ],
    hints={"no DataLoader": "Return a `DataLoader`, which cuts the samples into batches.",
           "process group": "There is one process, and no group: an ordinary loader.",
           "mutually exclusive": "`shuffle=True` is a sampler already: take one of the two."},
    otherwise="An ordinary `DataLoader`. Each batch, the last one too, is cut into equal parts, rounded up: "
    "is there one for each GPU?",
)  # fmt: skip

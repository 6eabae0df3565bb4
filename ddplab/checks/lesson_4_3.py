"""Checks of lesson 4.3, DataParallel beside DDP."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from ddplab.checks.turns import turn, waiting
from ddplab.hardware import device


def _module(rank: int, size: int) -> tuple[nn.Module]:
    return (nn.Sequential(nn.Linear(1, 1)),)  # DDP wants a parameter, also where nothing is filled in


def _fill(module: Any, scale: str = "parameter", mean: str = "buffer", heads: Any = nn.ParameterList) -> None:
    for name, how in {"scale": scale, "mean": mean}.items():
        if how == "buffer":
            module.register_buffer(name, torch.zeros(3))
        else:
            plain = torch.zeros(3, requires_grad=how == "grad")
            setattr(module, name, nn.Parameter(plain) if how == "parameter" else plain)
    module.heads = heads([nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(3))])


def _agree(_: Any, module: Any) -> list[str]:
    held_by = {name: _tensors(getattr(module, name)) for name in ("scale", "mean", "heads")}
    for tensor in (tensor for held in held_by.values() for tensor in held):
        tensor.data += dist.get_rank() + 1  # whatever was put in, the ranks differ now
    trained = {id(p) for p in DDP(module.to(device())).parameters() if p.requires_grad}
    said: list[str] = []
    for name in held_by:
        held = _tensors(getattr(module, name))
        everyone: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(everyone, [tensor.tolist() for tensor in held])
        agree = "agree" if all(other == everyone[0] for other in everyone) else "differ"
        if (count := sum(tensor.numel() for tensor in held)) != (6 if name == "heads" else 3):
            said.append(f"{count} number{'s' * (count != 1)}")
            continue
        if any(tensor is other for tensor in held_by["heads"] for other in (*held_by["scale"], *held_by["mean"])):
            said.append("shared")
            continue
        if len({id(tensor) for tensor in held}) < len(held):
            said.append("one tensor twice")
            continue
        if name == "heads" and not {tuple(tensor.squeeze().shape) for tensor in held} <= {(3,), (2, 3)}:
            said.append("not two times three")
            continue
        said.append(f"{agree}, {'trained' if all(id(tensor) in trained for tensor in held) else 'not trained'}")
    off = [n for n, it in enumerate(said) if it != f"agree, {'not ' * (n == 1)}trained"]
    if len(off) == 1 and said[off[0]] == "differ, not trained":
        held = _tensors(getattr(module, ("scale", "mean", "heads")[off[0]]))
        if all(tensor.requires_grad and not isinstance(tensor, nn.Parameter) for tensor in held):
            said[off[0]] = "differ, no parameter"
    return said


def _tensors(held: Any) -> list[Any]:
    if isinstance(held, nn.Module) and not isinstance(held, nn.ParameterList | nn.ParameterDict):
        return [*held.parameters(), *held.buffers()]
    held = list(held.values()) if isinstance(held, Mapping | nn.ParameterDict) else held
    return [held] if isinstance(held, torch.Tensor) else list(held)


def _as_a_buffer(both: Any) -> nn.Module:
    held = nn.Module()
    held.register_buffer("both", torch.stack(both).detach())
    return held


def _heads_are_the_scale(module: Any) -> None:
    _fill(module)
    module.heads = nn.ParameterList([module.scale, module.scale])


NO_PARAMETER = "requires a gradient and is no `Parameter`: DDP does not know it"
HEADS = "It looks into no list or dictionary, and plain tensors it ignores. `ParameterList` is a list that it knows."

turn(
    "4.3.a",
    "Known to DDP",
    _fill,
    _module,
    ranks=(2,),
    look=_agree,
    heads=("scale", "mean", "heads"),
    mistakes=[
        (partial(_fill, scale="plain", mean="plain", heads=list), "DDP knows none of the three",
         "`Parameter(tensor)` is known to the module, and so is what `register_buffer` is given."),
        (partial(_fill, scale="plain", mean="plain"), "DDP does not know the plain tensors",
         "`Parameter(tensor)` for what is trained; for what is not, `module.register_buffer`."),
        (partial(_fill, heads=list), "DDP does not know the heads", HEADS),
        (partial(_fill, mean="plain", heads=list), "DDP knows neither the heads nor the mean", HEADS),
        (partial(_fill, mean="plain"), "DDP does not know the mean", "`module.register_buffer(name, tensor)`"),
        (partial(_fill, mean="parameter"), "an optimiser would train the mean", "A buffer is what nobody trains."),
        (partial(_fill, mean="parameter", heads=list), "an optimiser would train the mean, and DDP does not "
         "know the heads", HEADS),
        (partial(_fill, scale="plain"), "DDP does not know the scale", "`Parameter(tensor)`"),
        (partial(_fill, scale="grad"), f"the scale {NO_PARAMETER}", "`Parameter(tensor)`"),
        (partial(_fill, heads=lambda _: [torch.zeros(3, requires_grad=True) for _ in range(2)]),
         f"each of the heads {NO_PARAMETER}", "`Parameter(tensor)`, two of them in a `ParameterList`."),
        (partial(_fill, heads=lambda _: torch.zeros(2, 3, requires_grad=True)),
         f"each of the heads {NO_PARAMETER}", "`Parameter(tensor)`, two of them in a `ParameterList`."),
        (partial(_fill, scale="buffer"), "nobody trains the scale", "A buffer is not trained; a `Parameter` is."),
        (partial(_fill, heads=lambda _: nn.ParameterList([torch.ones(2)] * 3)), "the heads are not two times three",
         "Two of them, of three numbers each."),
        (partial(_fill, heads=lambda both: nn.ParameterList(both[:1])), "three numbers are one head, not two",
         "Two of them, of three numbers each."),
        (partial(_fill, heads=lambda both: nn.ParameterList(both[:1] * 2)), "both heads are one and the same",
         "Make a new one for each."),
        (partial(_fill, heads=_as_a_buffer), "nobody trains the heads",
         "What is trained is a `Parameter` whose `requires_grad` is True; a buffer is not trained."),
        (partial(_fill, scale="buffer", heads=_as_a_buffer), "nobody trains the scale, nor the heads",
         "A buffer is not trained; a `Parameter` is."),
        (partial(_fill, heads=lambda _: nn.ModuleList(nn.Linear(3, 1) for _ in range(2))),
         "the heads are layers with a bias: that makes four numbers each", "A `ParameterList` of two tensors."),
        (_heads_are_the_scale, "the scale is one of the heads", "Each has numbers of its own: make new ones."),
    ],
    hints={
        "'NoneType' object is not iterable": "`register_buffer` makes the attribute, and returns nothing.",
        "buffer name should be": "First the name, and then the tensor.",
        "argument: 'tensor'": "`register_buffer` takes the name, as a text, and then the tensor.",
        "torch.nn.Parameter or None required": "Put the tensor into a `Parameter`: `nn.Parameter(tensor)`.",
        "no attribute 'detach'": "A `Parameter` is made from a tensor, here of three numbers.",
        "Only Tensors of floating point": "What is trained is made of floats.",
        "already exists": "`register_buffer` makes the attribute. Do not assign it before.",
        "not a Module subclass": "`ModuleList` is for modules. For parameters there is `ParameterList`.",
        "attribute 'scale'": "All three are needed: scale, mean, heads.",
        "attribute 'mean'": "All three are needed: scale, mean, heads.",
        "attribute 'heads'": "All three are needed: scale, mean, heads.",
    },
    otherwise="What is trained is a `Parameter`, the heads two of them in a `ParameterList`; what is not, a buffer.",
)  # fmt: skip


class _Counting(nn.Linear):
    def __init__(self) -> None:
        super().__init__(1, 1)
        self.number = 0
        self.register_buffer("total", torch.zeros(()))

    def forward(self, x: Any) -> Any:
        self.number += len(x)
        self.total += len(x)
        return super().forward(x)


def _model_and_batches(rank: int, size: int) -> tuple[Any, list[Any]]:
    rows = 3 if rank == 0 else 2
    return DDP(_Counting().to(device())), [torch.ones(rows, 1, device=device()) for _ in range(4)]


def _rows(model: Any, batches: Any, each: bool = False, share: Any = lambda size: 1, buffer: bool = False,
          reduce: Any = dist.all_reduce, count: Any = len) -> Any:  # fmt: skip
    rows = torch.zeros((), device=device())
    for x in batches:
        model(x).sum().backward()
        rows += count(x)
        if each:
            dist.all_reduce(rows)
    rows = model.module.total if buffer else rows
    if not each:
        reduce(rows)
    return rows.item() * share(dist.get_world_size())


def _counted(rows: Any, model: Any, batches: Any) -> Any:
    if rows is None:
        return "nothing came back"
    through = model.module.number
    if through < sum(map(len, batches)):
        return "rows that never went through" if not through else "rows of which some never went through"
    return round(float(rows), 3)


def _without_the_model(model: Any, batches: Any, through: int = 0) -> Any:
    for x in batches[:through]:
        model(x)
    rows = torch.tensor(sum(map(len, batches)), device=device())
    dist.all_reduce(rows)
    return rows.item()


def _nothing(rows: Any) -> None:
    pass


def _on_rank_0(rows: Any) -> None:
    if dist.get_rank() == 0:
        dist.all_reduce(rows)
        rows.item()


OUTSIDE = "Count `len(x)` in a number of your own."

turn(
    "4.3.b",
    "The rows of all ranks",
    _rows,
    _model_and_batches,
    ranks=(2, 3),
    look=_counted,
    heads=("rows",),
    mistakes=[
        (partial(_rows, reduce=_nothing), "each rank's own rows",
         "`dist.all_reduce` adds up over the ranks, in the tensor that it is given. That one holds the answer."),
        (partial(_rows, reduce=_nothing, buffer=True), "the buffer's number, which is nobody's", OUTSIDE),
        (lambda *given: _rows(*given) and None, "nothing came back",
         "`return` the number. `all_reduce` itself returns nothing: it changes the tensor."),
        (partial(_rows, buffer=True), "the buffers, added up; rank 1's begins with rank 0's", OUTSIDE),
        (partial(_rows, each=True), "added up after each batch, rows that are a sum already",
         "Count on the rank first. Add up over the ranks once, after the loop."),
        (partial(_rows, share=lambda size: 1 / size), "the mean over the ranks", "The sum is asked for."),
        (partial(_rows, share=lambda size: size), "twice as many, or as many times more as there are ranks",
         "Count each row once, and let `all_reduce` add up, once."),
        (partial(_rows, reduce=_nothing, share=lambda size: size), "a rank's own rows, times the ranks",
         "The ranks have different numbers of rows."),
        (lambda model, batches: [model(x) for x in batches] and _rows(model, batches[-1:]), "only one batch is counted",
         "Count each batch in the loop; what comes after all of them stands behind the loop."),
        (partial(_rows, reduce=partial(dist.all_reduce, op=dist.ReduceOp.MAX)), "rank 0's rows, the most of all",
         "The sum over all ranks is asked for: `all_reduce` without an `op` makes it."),
        (lambda model, batches: _rows(model, batches, count=lambda x: len(batches)),
         "the number of batches is counted for each batch", "`len(x)`, of the batch."),
        (partial(_rows, count=lambda x: 1), "batches are counted, not rows", "`len(x)`"),
        (lambda model, batches: _rows(model, batches, count=lambda x: model(x).sum()),
         "what the model returns is added up", "`len(x)`: how many rows it was given."),
        (partial(_rows, reduce=lambda rows: dist.reduce(rows, dst=0)), "rank 0 has the sum, others do not",
         "`dist.all_reduce` leaves it on every rank."),
        (partial(_without_the_model, through=1), "not all batches have gone through the model",
         "Call it with each, in the loop: `model(x)`."),
        (_without_the_model, "no batch has gone through the model", "Call it with each: `model(x)`."),
        (waiting(partial(_rows, reduce=_on_rank_0)), "only rank 0 comes to the all_reduce",
         "Every rank has to call it."),
    ],
    hints={"Expected a": "`dist.all_reduce` takes a tensor: `torch.tensor(rows, device=device())`.",
           "Invalid function argument": "`dist.all_reduce` takes a tensor: `torch.tensor(rows, device=device())`.",
           "must be Tensor, not list": "The model takes one batch at a time: a loop goes through them.",
           "attribute 'number'": "The module inside of DDP is `model.module`.",
           "attribute 'total'": "The module inside is `model.module`; its buffer is no rank's count. Count `len(x)`.",
           "NoneType": "`return` the number. `all_reduce` itself returns nothing: it changes the tensor."},
    otherwise="Call the model with each batch, count its rows, `len(x)`, and after the loop add up over the ranks.",
)  # fmt: skip


def _moved(P: float, n: int, ways: int = 2, size: int = 4, pieces: int = 1) -> tuple[float, float]:
    through_gpu_0 = ways * size * P * (n - 1)
    return through_gpu_0, through_gpu_0 / n * pieces


turn(
    "4.3.c",
    "Through GPU 0, and out of a rank",
    _moved,
    {f"{n} GPUs": partial(lambda n: (1_000_000, n), n) for n in (2, 4, 8)},
    look=lambda both, *_: [f"{round(float(it)):,}" for it in both],
    heads=("GPU 0", "a rank"),
    mistakes=[
        (lambda P, n: (8 * P, _moved(P, n)[1]), "GPU 0's bytes are right for two GPUs",
         "It sends to each *other* GPU, and receives of each."),
        (lambda P, n: (2 * _moved(P, n)[0], _moved(P, n)[1]), "GPU 0's bytes are counted twice",
         "What GPU 0 sends, another GPU receives: that one's side is not asked for."),
        (lambda P, n: (4 * P * (2 * n - 1), _moved(P, n)[1]), "in one direction GPU 0 is counted as one of the others",
         "To how many *other* GPUs, and from how many?"),
        (lambda P, n: (8 * P * n - 1, 8 * P * n - 1 / n), "`*` and `/` go before `-`", "Brackets: `(n - 1)`."),
        (lambda P, n: (8 * P * n - 1, _moved(P, n)[1]), "`*` goes before `-`", "Brackets: `(n - 1)`."),
        (lambda P, n: (_moved(P, n)[0], 8 * P * n - 1 / n), "`*` and `/` go before `-`", "Brackets: `(n - 1)`."),
        (lambda P, n: (_moved(P, n)[0], 8 * P * (n - 1 / n)), "`/` goes before `-`", "Brackets: `(n - 1) / n`."),
        (lambda P, n: (_moved(P, n)[0], _moved(P, n)[1] / 4), "a rank's are numbers, and not bytes",
         "A number has 4 bytes."),
        (lambda P, n: (_moved(P, n)[0] / 4, _moved(P, n)[1]), "GPU 0's are numbers, and not bytes",
         "A number has 4 bytes."),
        (partial(_moved, ways=1), "parameters only, or gradients only", "Parameters go out, gradients come back."),
        (partial(_moved, size=1), "those are numbers, and not bytes", "A number has 4 bytes."),
        (lambda P, n: (8 * P * n, 8 * P), "GPU 0 sends nothing to itself", "To how many *other* GPUs?"),
        (lambda P, n: (8 * P * n, _moved(P, n)[1]), "GPU 0 sends nothing to itself", "To how many *other* GPUs?"),
        (lambda P, n: (_moved(P, n)[0],) * 2, "that is what all ranks send together",
         "All ranks together send as much as goes through GPU 0. And one?"),
        (lambda P, n: (_moved(P, n)[0], 4 * P), "a rank sends each gradient once",
         "Around the ring, 2 (N - 1) / N of the bytes leave each rank."),
        (lambda P, n: (_moved(P, n)[0], 8 * P / n), "a rank sends two chunks", "How many rounds has the ring?"),
        (partial(_moved, size=32), "those are bits", "A number has 4 bytes."),
        (lambda P, n: (_moved(P / 1e6, n)), "those are megabytes", "Bytes."),
        (lambda P, n: _moved(P, 4), "the same, however many GPUs there are", "Write it with `n`."),
        (lambda P, n: (_moved(P, n)[0], 2 * _moved(P, n)[1]), "what a rank sends and what it receives, added up",
         "Only what leaves it is asked for."),
        (lambda P, n: (_moved(P, n)[0], 8 * P), "a rank sends 2 (N - 1) chunks, and a chunk is no (N - 1)-th",
         "The tensor is cut into as many chunks as there are ranks."),
        (lambda P, n: (_moved(P, n)[0], 8 * P * (n - 1) / 2), "a rank's share is right for two ranks",
         "Divide by the number of ranks."),
        (lambda P, n: (_moved(P, n)[0], _moved(P, n)[1] / 2), "a rank sends half of what the ring wants",
         "Around the ring, 2 (N - 1) / N of the bytes leave each rank."),
        (lambda P, n: _moved(P, n)[::-1], "the other way round", "First GPU 0, and then a rank."),
        (lambda P, n: (4 * P * (n - 1), _moved(P, n)[1]), "GPU 0's parameters only, or its gradients only",
         "Parameters go out, gradients come back."),
    ],
    hints={"'NoneType'": "`return` two numbers, GPU 0's first.",
           "'float' object": "Return two numbers, GPU 0's first.", "'int' object": "Return two numbers.",
           "string to float": "Two numbers, and no texts."},
    otherwise="GPU 0: what goes to each *other* GPU, and comes back? A rank: how many rounds, of how large a chunk?",
)  # fmt: skip

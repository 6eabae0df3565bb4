"""Checks of lesson 5.5, restarts."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

from ddplab.checks import NotYet, exercise
from ddplab.checks.common import Number, flat, kind, multiple, needs_function, numbers, off, on_ranks

NODES = ("that counts nodes", "Each node starts 8 processes.")
GONE = "Which server was it that went?"
numbers(
    "5.5.1",
    "Read the command",
    Number("largest", 32, "At most 4 nodes of 8.").with_mistakes(
        (4, *NODES),
        (8, "that is one node", "At most 4 nodes of 8."),
    ),
    Number("smallest", 16, "`--nnodes 2:4` says how many nodes are the least.").with_mistakes(
        (2, *NODES),
        (8, "that is one node, and two are the least", "Read `--nnodes 2:4` again."),
        (1, *NODES),
    ),
    Number("anew", 24, "Who begins at the first line when a rank has died?").with_mistakes(
        (1, "a process group with a hole cannot go on", "Also the ranks that were well begin anew."),
        (8, "that is its node alone", "A process group cannot go on with a part of its ranks."),
        (3, *NODES),
        (0, "there are restarts left", "`--max-restarts 3`."),
        (32, "a node is missing", "Three nodes are there."),
    ),
    Number("left", 0, "What was on gpu03, besides eight ranks?").with_mistakes(
        (24, "that is three nodes, but they have lost something", GONE),
        (16, "that is two nodes, but they have lost something", GONE),
        (8, "that is one node", GONE),
    ),
)


IMAGES = 10


@exercise("5.5.2", "One batch, any number of ranks")
def any_number_of_ranks(my_loss: Callable[..., Any]) -> None:
    """`my_loss(model, images, labels, rank, size)` on 1, 2 and 3 ranks: DDP's gradient must be the whole batch's."""
    needs_function("my_loss", my_loss)

    def gradient() -> str | tuple[Any, Any, int]:
        torch.manual_seed(0)
        net, images, labels = torch.nn.Linear(4, 3), torch.randn(IMAGES, 4), torch.arange(IMAGES) % 3
        whole = torch.autograd.grad(torch.nn.functional.cross_entropy(net(images), labels), net.weight)[0]
        model, seen = DDP(net), []
        net.register_forward_pre_hook(lambda _, inputs: seen.append(len(inputs[0])))
        loss = my_loss(model, images, labels, dist.get_rank(), dist.get_world_size())
        if not isinstance(loss, torch.Tensor):
            return kind(loss)
        loss.backward()
        return flat([net.weight.grad]), flat([whole]), sum(seen)

    for size in (1, 2, 3):
        _compare(on_ranks(gradient, size=size), size)


def _compare(results: list[Any], size: int) -> None:
    if isinstance(results[0], str):
        hint = "Is there a `return`, and no `.item()`?"
        raise NotYet(f"`my_loss` returns {results[0]}, not a tensor with a loss", hint)
    ranks = f"on {size} rank{'s' * (size > 1)}"
    seen = [n for _, _, n in results]
    if size > 1 and seen == [IMAGES] * size:
        hint = "Take every `size`-th image, and begin with your `rank`-th."
        raise NotYet(f"{ranks} each rank takes all {IMAGES} images: nothing is shared", hint)
    if sum(seen) != IMAGES:
        hint = f"{IMAGES} // 3 leaves a rest. `images[rank::size]` leaves none."
        raise NotYet(f"{ranks} the ranks take {' + '.join(map(str, seen))} images, and the batch has {IMAGES}", hint)
    got, whole = results[0][:2]
    if off(got, whole) < 1e-5:
        return
    if (factor := multiple(got, whole, within=1e-5)) is not None:
        hint = "DDP adds the ranks' gradients up and divides by `size`. What has to be left when it has?"
        raise NotYet(f"{ranks} DDP's gradient is {factor:.3g} times that of the whole batch", hint)
    raise NotYet(
        f"{ranks}, with {', '.join(map(str, seen))} images, DDP's gradient is not that of the whole batch",
        "A mean over a small share makes its images count for more. Begin with reduction='sum'.",
    )

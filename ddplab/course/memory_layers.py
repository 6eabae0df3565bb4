"""The memory of a training step, layer by layer: weights, gradients, the optimiser's state, activations, buffers.

What a forward pass keeps is measured here, with 2 images and with 3; it grows evenly with the batch. The page
(memory_layers.js) does the arithmetic of `by_layer` in the browser.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from ddplab import screen
from ddplab.course.controls import widget
from ddplab.course.data import digits
from ddplab.course.models import CNN, MLP
from ddplab.course.training_drawings import layer_bars
from ddplab.hardware import device
from ddplab.plots import COLOURS

MODELS = {"MLP": MLP, "CNN": CNN, "CNN with BatchNorm": lambda: CNN(batch_norm=True)}
PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}
STATE = {"SGD": 0, "SGD with momentum": 1, "Adam": 2}  # numbers kept for each weight
SHARED = ("nothing", "state", "state, gradients", "state, gradients, weights")  # ZeRO's stages 0 to 3
PARTS = ("weights", "gradients", "state", "activations", "buffers")
BATCHES = (1, 8, 32, 64, 128, 256)
RANKS = (1, 2, 4, 8)


class Layer(NamedTuple):
    """What a layer holds, in bytes. Of the batch it keeps `fixed` and, for each image, `each`."""

    name: str
    weights: int
    buffers: int
    fixed: int
    each: int


def layers(model: str, precision: str = "float32", checkpointing: bool = False) -> list[Layer]:
    """Measure a model's layers, and the loss, in the order of the forward pass.

    checkpointing: keep only the input of each block that begins with a convolution or a linear layer, but for the last.
    """
    torch.manual_seed(0)
    net = MODELS[model]().to(device(), PRECISIONS[precision])
    two, three = (_kept(net, images, PRECISIONS[precision], checkpointing) for images in (2, 3))
    found = []
    for name, layer in (_named(net) | {"loss": nn.Module()}).items():
        own = [sum(t.nbytes for t in tensors) for tensors in (layer.parameters(), layer.buffers())]
        each = three[name] - two[name]
        found.append(Layer(name, *own, two[name] - 2 * each, each))
    return [layer for layer in found if layer.name != "Flatten"]  # which holds nothing


def by_layer(
    model: str,
    batch: int,
    optimizer: str = "Adam",
    precision: str = "float32",
    checkpointing: bool = False,
    ranks: int = 1,
    shared: str = "nothing",
) -> dict[str, dict[str, float]]:
    """Return what a training step holds on a rank: layer → part → bytes, when the forward pass has just ended.

    batch: images on each rank. shared: what the ranks share out, evenly.
    """
    stage = SHARED.index(shared)
    rows = {}
    for layer in layers(model, precision, checkpointing):
        rows[layer.name] = {
            "weights": layer.weights / (ranks if stage >= 3 else 1),
            "gradients": layer.weights / (ranks if stage >= 2 else 1),
            "state": layer.weights * STATE[optimizer] / (ranks if stage >= 1 else 1),
            "activations": layer.fixed + batch * layer.each,
            "buffers": layer.buffers,
        }
    return rows


def total(rows: dict[str, dict[str, float]]) -> dict[str, float]:
    """Return the bytes of each part, over all layers."""
    return {part: sum(row[part] for row in rows.values()) for part in PARTS}


def memory_by_layer(model: str = "CNN", batch: int = 32, optimizer: str = "Adam") -> None:
    """Show what a training step holds, a bar for each layer; in a live notebook, with switches.

    model: a name in `MODELS`. batch: one of `BATCHES`. optimizer: a name in `STATE`. Where nobody can turn a switch
    it is a picture, and what it comes to in bytes.
    """
    from IPython.display import display

    rows = by_layer(model, batch, optimizer)
    if not screen.live():
        display(layer_bars(rows))
    told = ", ".join(f"{part} {held:,.0f}" for part, held in total(rows).items())
    screen.show(f"bytes in all: {told}", lambda: _page(model, batch, optimizer))


def _page(model: str, batch: int, optimizer: str):
    measured = {
        f"{name}, {precision}, {again}": layers(name, precision, again)
        for name in MODELS
        for precision in PRECISIONS
        for again in (False, True)
    }
    options = {
        "model": list(MODELS),
        "batch on each rank": BATCHES,
        "optimiser": list(STATE),
        "numbers": list(PRECISIONS),
        "checkpointing": ("off", "on"),
        "ranks": RANKS,
        "they share out": SHARED,
    }
    chosen = {"model": model, "batch on each rank": batch, "optimiser": optimizer}
    return widget(
        "memory_layers", measured=measured, options=options, chosen=chosen, state=STATE, parts=PARTS, colours=COLOURS
    )


def _named(net: nn.Module) -> dict[str, nn.Module]:
    """The layers in the order of the forward pass, each under a name of its own."""
    found: dict[str, nn.Module] = {}
    for layer in net.modules():
        if not list(layer.children()):
            sizes = [layer.weight.shape[1], layer.weight.shape[0]] if isinstance(layer, nn.Conv2d | nn.Linear) else []
            name = " ".join([type(layer).__name__, " → ".join(map(str, sizes))]).strip()
            found[f"{name}, the second" if name in found else name] = layer
    return found


def _blocks(named: dict[str, nn.Module]) -> list[dict[str, nn.Module]]:
    """Stretches of layers, each but perhaps the first beginning with weights that the batch is multiplied with."""
    blocks: list[dict[str, nn.Module]] = [{}]
    for name, layer in named.items():
        begun = any(isinstance(it, nn.Conv2d | nn.Linear) for it in blocks[-1].values())
        if begun and isinstance(layer, nn.Conv2d | nn.Linear):
            blocks.append({})
        blocks[-1][name] = layer
    return blocks


def _kept(net: nn.Module, images: int, dtype: torch.dtype, checkpointing: bool) -> dict[str, int]:
    """Bytes that a forward pass leaves for the backward pass, by the layer that kept them first; and the loss's."""
    known = {t.data_ptr() for t in (*net.parameters(), *net.buffers())}
    named = _named(net)
    kept: dict[int, tuple[str, int]] = {}
    now = ""

    def note(tensor: Tensor) -> Tensor:
        place = tensor.data_ptr()
        if place not in known:
            name, size = kept.get(place, (now, 0))
            kept[place] = name, max(size, tensor.nbytes)
        return tensor

    def run(x: Tensor, block: dict[str, nn.Module]) -> Tensor:
        nonlocal now
        for name, layer in block.items():
            now = name if name != "Flatten" else now
            x = layer(x)
        return x

    images_, labels = (tensor[:images].to(device()) for tensor in digits().tensors)
    x, blocks = images_.to(dtype), _blocks(named)
    with saved_tensors_hooks(note, lambda tensor: tensor):
        for block in blocks:
            now = next(name for name in block if name != "Flatten")  # a checkpoint keeps what its block begins with
            last = block is blocks[-1]
            x = checkpoint(run, x, block, use_reentrant=False) if checkpointing and not last else run(x, block)
        now = "loss"
        result = F.cross_entropy(x, labels)  # held on to until all is counted
    found = dict.fromkeys([*named, "loss"], 0)
    for name, size in kept.values():
        found[name] += size
    del result
    return found

"""Eight updates by hand, one of them in hiding: a learner examines trainings under `nn.DataParallel`, and names it.

Every examination is a real one: forty steps on one GPU or on two, and what has become of the tensors.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD

from ddplab.course.data import digits
from ddplab.course.models import MLP

STEPS, RATE = 40, 0.5
UPDATES = {  # run after each backward(); the last one's comment is what `in_forward` does
    "children": "for child in net.module.children():\n    for p in child.parameters(): p.data -= 0.5 * p.grad",
    "replica 0": "for p in ran[0].parameters(): p.data -= 0.5 * p.grad",
    "last replica": "for p, own in zip(weights(ran[-1]), net.parameters()): p.data -= 0.5 * own.grad.to(p.device)",
    "clones": "for p, own in zip(clones, net.parameters()): p.data -= 0.5 * own.grad",
    "new tensor": "for p in net.parameters(): p = p - 0.5 * p.grad",
    "zero_grad": "net.zero_grad()\nSGD(net.parameters(), lr=0.5).step()",
    "tiny rate": "SGD(net.parameters(), lr=0.5e-9).step()",
    "in forward": "kept[:] = [p.grad.clone() for p in net.parameters()]\n"
    "# and forward begins with: p.data = p.data - 0.5 * kept",
}
USUAL = "SGD(net.parameters(), lr=0.5).step()"
EXAMS = ("loss, 2 GPUs", "loss, 1 GPU", ".grad", "own weights", "others")
BEGIN, PATIENTS, BUDGET, WRONG = "begin a night", 6, 18, 2
MOVES = [BEGIN, *(f"examine: {it}" for it in EXAMS), *(f"name: {it}" for it in UPDATES)]


@dataclass(frozen=True)
class Trained:
    """Forty steps: losses before each, the net, the modules that ran last, and what the update has written on."""

    losses: list[float]
    net: nn.DataParallel
    ran: list[nn.Module]
    grad: bool  # whether the gradients are still there
    moved: float  # the largest change of a weight of the net
    others: int  # tensors that the last update has changed: clones, and those on the last of several GPUs


def weights(module: nn.Module) -> list[Tensor]:
    """Weight and bias of each layer, which in a replica are no parameters."""
    layers = [layer for layer in module.modules() if isinstance(layer, nn.Linear)]
    return [tensor for layer in layers for tensor in (layer.weight, layer.bias)]


def train(update: str, gpus: Sequence[Any]) -> Trained:
    """Train a small net on 128 digits on these GPUs, with the update of that name, or by the optimiser for another."""
    return _train(update, tuple(gpus))


@cache
def _train(update: str, gpus: tuple) -> Trained:
    images, labels = (tensor[:128] for tensor in digits().tensors)
    losses, ran, kept = [], [], []

    def in_forward(module: nn.Module, *_: Any) -> None:
        for p, gradient in zip(weights(module), kept, strict=False):  # nothing is kept at first
            p.data = p.data - RATE * gradient.to(p.device)

    torch.manual_seed(0)
    net = nn.DataParallel(MLP().double().to(gpus[0]), device_ids=list(gpus))
    clones = [p.detach().clone() for p in net.parameters()]
    first = copy.deepcopy(clones)
    net.module.register_forward_pre_hook(in_forward)
    net.module.register_forward_hook(lambda module, *_: ran.append(module))
    names = {"net": net, "ran": ran, "clones": clones, "kept": kept, "weights": weights, "SGD": SGD}
    for _ in range(STEPS):
        net.zero_grad()
        ran.clear()
        loss = nn.functional.cross_entropy(net(images.double().to(gpus[0])), labels.to(gpus[0]))
        loss.backward()
        ran.sort(key=lambda module: weights(module)[0].device.index)
        others = [*clones, *(it for module in ran[1:] for it in weights(module))]
        before = [it.detach().clone() for it in others]
        exec(UPDATES.get(update, USUAL), names)
        losses.append(loss.item())
    changed = sum(not torch.equal(old, new.detach()) for old, new in zip(before, others, strict=True))
    grad = all(p.grad is not None for p in net.parameters())
    moved = max((p.detach() - old).abs().max().item() for p, old in zip(net.parameters(), first, strict=True))
    return Trained(losses, net, list(ran), grad, moved, changed)


def examined(update: str, gpus: Sequence[Any]) -> dict[str, str]:
    """What each examination finds: losses, whether gradients are there, how far weights moved, others written on."""
    two, one = train(update, gpus), train(update, gpus[:1])
    ends = [f"{it.losses[0]:.2f} → {it.losses[-1]:.2f}" for it in (two, one)]
    return dict(zip(EXAMS, [*ends, "there" if two.grad else "None", f"{two.moved:.1g}", f"{two.others}"], strict=True))


def six_patients(gpus: Sequence[Any], seed: int | None = None) -> Callable[..., str]:
    """What `move` draws: a night with six of the eight, drawn at random, and your notes, which outlive the night."""
    chance, known, wins, nights = random.Random(seed), set(), [], 0
    patients: list[str] = []  # who is still to come; the first is here
    left, seen, ruled_out = BUDGET, set(), set()

    def play(your_move: str) -> str:
        nonlocal patients, left, seen, ruled_out, nights
        what, _, which = your_move.partition(": ")
        if your_move == BEGIN:
            nights += bool(patients) and left < BUDGET  # whoever leaves a night has not won it
            patients, left, seen, ruled_out = chance.choices(list(UPDATES), k=PATIENTS), BUDGET, set(), set()
            said = "A training comes in. What is its update?"
        elif not patients:
            said = f"The night is over. Choose “{BEGIN}” for another."
        elif which in seen | ruled_out:
            said = "You know that already, and it costs nothing."
        elif what == "examine" and left == 0:
            said = "No examination is left: name it, and be right."
        elif what == "examine":
            left -= 1
            seen.add(which)
            said = f"{which}: {examined(patients[0], gpus)[which]}"
        elif which == patients[0]:
            known.add(patients.pop(0))
            seen, ruled_out = set(), set()
            said = f"✓ Yes, {which}. " + ("The next one comes in." if patients else f"All six, and {left} to spare!")
            nights += not patients
            wins.extend([left] * (not patients))
        else:
            left -= WRONG
            ruled_out.add(which)
            said = f"✗ It is not {which}: {WRONG} examinations less."
            if left < 0:
                said = f"✗ Not {which}, and your examinations are spent. It was {patients[0]}. Another night?"
                known.add(patients[0])
                patients, nights = [], nights + 1
        place = f"Training {PATIENTS + 1 - len(patients)} of {PATIENTS}" if patients else "The night is over"
        here = (
            [examined(patients[0], gpus)[it] if it in seen else "?" for it in EXAMS] if patients else ["…"] * len(EXAMS)
        )
        rows = {"": EXAMS, "→ this one": here}
        for name in UPDATES:
            mark = "✗" if name in ruled_out else "✓" if name in known else "☐"
            rows[f"{mark} {name}"] = [*examined(name, gpus).values()] if name in known else ["…"] * len(EXAMS)
        table = [f"{name:16}" + "".join(f"{it:14}" for it in row).rstrip() for name, row in rows.items()]
        best = f"; the best had {max(wins)} to spare" if wins else ""
        score = f"Nights: {nights}, won: {len(wins)}{best}"
        return "\n".join([f"{place}; examinations left: {max(left, 0)} of {BUDGET}", said, "", *table, "", score])

    return play

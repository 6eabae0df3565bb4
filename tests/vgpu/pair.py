"""What the tests of virtual GPUs share: two devices, two modules, a comparison with one device."""

import copy

import pytest
import torch
from torch import nn


class Pair:
    """Two devices to run DataParallel on; the same one twice where a machine has a single GPU."""

    def __init__(self, kind: str, ids: list[int]):
        self.kind, self.ids = kind, ids
        self.d0, self.d1 = (torch.device(kind, i) for i in ids)

    def dp(self, module: nn.Module, **options) -> nn.DataParallel:
        return nn.DataParallel(module.to(self.d0), device_ids=self.ids, **options)

    def need_two(self) -> None:
        if self.d0 == self.d1:
            pytest.skip("needs two different devices")


class Seen(nn.Module):
    """Keeps what each replica was given."""

    def __init__(self, answer):
        super().__init__()
        self.answer, self.calls = answer, []
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, *args, **kwargs):
        self.calls.append((args, kwargs))
        return self.answer(self, *args, **kwargs)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.second.weight = self.first.weight
        self.again = self.first

    def forward(self, x):
        assert self.second.weight is self.first.weight and self.again is self.first
        return self.again(self.second(self.first(x)))


def same_as_one_device(g, module, *inputs, steps=3, optimiser=None, tol=1e-5):
    """Train a copy on the CPU and a copy under DataParallel: equal outputs, gradients and weights."""
    alone, spread = module, g.dp(copy.deepcopy(module))
    optimiser = optimiser or (lambda p: torch.optim.SGD(p, lr=0.1))
    opts = optimiser(list(alone.parameters())), optimiser(list(spread.parameters()))
    for _ in range(steps):
        outs = alone(*inputs), spread(*(x.to(g.d0) for x in inputs))
        outs = [o[0] if isinstance(o, tuple) else o for o in outs]
        assert outs[1].device == g.d0
        torch.testing.assert_close(outs[1].cpu(), outs[0], atol=tol, rtol=tol)
        for opt, out in zip(opts, outs, strict=True):
            opt.zero_grad()
            out.square().mean().backward()
        for p, q in zip(alone.parameters(), spread.parameters(), strict=True):
            torch.testing.assert_close(q.grad.cpu().to_dense(), p.grad.to_dense(), atol=tol, rtol=tol)
        for opt in opts:
            opt.step()
    for p, q in zip(alone.parameters(), spread.parameters(), strict=True):
        assert q.device == g.d0 and isinstance(q, nn.Parameter)
        torch.testing.assert_close(q.detach().cpu(), p.detach(), atol=tol, rtol=tol)

"""What holds how much while no optimizer has stepped: when memory is out, all objects that there are get asked."""

import gc
from collections import Counter

import torch

from ddplab.vgpu.tensor import VTensor, raw


def by_kind() -> Counter:
    """(GPU, kind) -> bytes of parameters, of their gradients, and of what an optimizer's first step has made so far."""
    found, forward = Counter(), torch._C._current_autograd_node() is None
    with raw():
        for it in gc.get_objects():
            if type(it) is VTensor and it.is_leaf and not it.is_sparse:
                # in a backward activation checkpoints make leaves too
                if isinstance(it, torch.nn.Parameter) or (it.requires_grad and forward):
                    found[it.gpu, "parameters"] += it.nbytes
                    found[it.gpu, "gradients"] += 0 if it.grad is None or it.grad.is_sparse else it.grad.nbytes
            elif issubclass(type(it), torch.optim.Optimizer):
                for state in it.state.values():
                    for t in state.values() if isinstance(state, dict) else ():
                        if type(t) is VTensor:
                            found[t.gpu, "optimizer state"] += t.nbytes
    return found

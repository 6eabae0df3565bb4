"""Whether the ranks end with the same parameters: digests of what DDP wraps and of what optimizers step, taken late.

Ranks that train one model have the same numbers in it at the end, whoever averages the gradients. Where ranks hold
parts of one model (pipelines, tensor parallelism, sharded optimizers), their numbers differ rightly: what shows that is
noted, and what no DDP wraps is then not compared. Nothing is kept alive for this longer than its optimizer is.
"""

import weakref
from hashlib import sha256

import torch
import torch.distributed as dist

from ddplab.vgpu.tensor import VTensor, raw

from .report import PART

_PARTS = ("send", "recv", "alltoall", "reduce_scatter")  # what ranks that hold parts of a model do
_WHOLE = ("AccumulateGrad", "SyncBatchNormBackward")  # in whose backward ranks that hold all of it talk


class Weights:
    """What one process writes down of its parameters."""

    def __init__(self):
        self.wrapped: list[list[weakref.ref]] = []  # by each DDP
        self.stepped: list[weakref.ref] = []  # of each optimizer's _Held
        self.digests: list[tuple[str, str, str]] = []  # which one, what it looks like, its digest
        self.parts = ""  # what shows that ranks hold parts
        self.left_out: set[str] = set()  # why what was not compared

    def watch(self, params) -> None:
        """DDP wraps these."""
        self.wrapped.append([weakref.ref(p) for p in params])

    def exchanged(self, name: str, everybody: bool) -> None:
        """Ranks are in this collective, or send something."""
        node = torch._C._current_autograd_node()
        if name.strip("_").startswith(_PARTS):
            self.parts = self.parts or name.strip("_").replace("recv", "send")
        elif not everybody:
            self.parts = self.parts or "groups of some ranks"
        elif node is not None and not node.name().endswith(_WHOLE):
            self.parts = self.parts or f"{name.strip('_')} in a backward"

    def steps(self, optimizer, *_) -> None:
        """Before each optimizer step."""
        held = optimizer.__dict__.get("_rehearsed")
        if held is None and dist.is_initialized():
            held = optimizer._rehearsed = _Held(self, optimizer)
            self.stepped.append(weakref.ref(held))
        if held is not None:
            held.groups = optimizer.param_groups  # load_state_dict makes another list

    def gathered(self, given) -> None:
        """Ranks put these together. Where an optimizer steps one of them, each may hold a part: its digest says so."""
        for held in filter(None, (ref() for ref in self.stepped)):
            if held.sizes.isdisjoint(t.nbytes for t in given):  # most of what is gathered is no parameter
                continue
            memory = {t.untyped_storage().data_ptr() for t in given}
            if any(type(p) is VTensor and p.untyped_storage().data_ptr() in memory for p in held.params()):
                held.name = held.name.removesuffix(PART) + PART

    def compare(self) -> None:
        """Take the digests of all that lives: when the process group goes, or the process ends."""
        for i, refs in enumerate(self.wrapped):
            params = [p for ref in refs if (p := ref()) is not None]
            if len(params) == len(refs):
                self.take(f"model {i}", params)
        self.wrapped.clear()
        for ref in self.stepped:
            if held := ref():
                held.take()

    def take(self, name: str, params: list) -> None:
        """The digest of these parameters."""
        ranks = dist.get_world_size() if dist.is_initialized() else 0
        like = repr([ranks, *((tuple(p.shape), p.dtype) for p in params)])
        digest = sha256()
        with raw():
            for p in params:
                digest.update(p.detach().contiguous().reshape(-1).view(torch.uint8).numpy())
        self.digests.append((name, sha256(like.encode()).hexdigest(), digest.hexdigest()))


class _Held:
    """Hangs on an optimizer, so that its parameters live until their digest is taken: at the latest when it goes."""

    def __init__(self, weights: Weights, optimizer):
        self.weights, self.name, self.groups = weights, f"optimizer {len(weights.stepped)}", optimizer.param_groups
        mine = {id(p) for p in self.params()}
        self.sizes = {p.nbytes for p in self.params()}
        self.by_ddp = any(mine <= {id(ref()) for ref in refs} for refs in weights.wrapped)
        others = [held for ref in weights.stepped if (held := ref())]
        self.done = any(mine < {id(p) for p in other.params()} for other in others)  # ZeRO's own, of this rank's part

    def params(self) -> list:
        return [p for group in self.groups for p in group["params"]]

    def take(self) -> None:
        done, self.done = self.done, True
        if done:
            return
        params = self.params()
        if not all(type(p) is VTensor for p in params):
            self.weights.left_out.add("shards, or what is on the CPU")
        elif self.weights.parts and not self.by_ddp:
            why = f"since ranks that use {self.weights.parts} may hold parts of it"
            self.weights.left_out.add(f"what no DDP wraps, {why}")
        else:
            self.weights.take(self.name, params)

    __del__ = take

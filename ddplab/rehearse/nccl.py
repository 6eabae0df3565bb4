"""dist.init_process_group("nccl"): gloo does the work, on the CPU memory behind the labels; scripts see NCCL.

`ProcessGroupNCCL` takes the place of torch's class of that name, which a CPU build lacks. It is a
`dist.ProcessGroup` written in Python, so every collective comes through here, whether Python calls it or DDP's
reducer in C++. What it refuses, it refuses in the words of torch (the sources are named) or of NCCL.
"""

import functools
import multiprocessing
import os
import socket
import sys
import weakref
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d as c10d

from ddplab.vgpu import comm, meter
from ddplab.vgpu.tensor import VTensor, here, label, place, place_of, raw

from . import circles
from .trail import Trail

_KINDS = "int8 uint8 bool int32 int64 float16 bfloat16 float32 float64 complex64 complex128 float8_e5m2 float8_e4m3fn"
_DTYPES = {getattr(torch, name) for name in _KINDS.split()}  # ncclDataType, torch/csrc/distributed/c10d/NCCLUtils.cpp

_IN_CPP = {torch.float32: "float", torch.float64: "double", torch.float16: "c10::Half", torch.bfloat16: "c10::BFloat16"}


def _tensors(args):
    for arg in args:
        if isinstance(arg, Tensor):
            yield arg
        elif isinstance(arg, (list, tuple)):
            yield from _tensors(arg)


def _plain(arg):  # the CPU tensor behind the label
    if isinstance(arg, Tensor):
        return arg.detach()
    return [_plain(a) for a in arg] if isinstance(arg, (list, tuple)) else arg


class _Done(dist.Work):
    """What has been waited for already."""

    def wait(self, timeout=None) -> bool:
        return True

    def is_completed(self) -> bool:
        return True


class _Message(dist.Work):
    """A send or a receive that can say what it waits for."""

    def __init__(self, work, needs):
        super().__init__()
        self.work, self.needs = work, needs
        self.is_completed, self.get_future, self.result = work.is_completed, work.get_future, work.result

    def wait(self, *timeout) -> bool:
        with circles.current.waiting(self.needs):
            return self.work.wait(*timeout)


def _check_dense(t: Tensor) -> None:  # ProcessGroupNCCL.cpp: check_gpu_single_tensor
    with raw():
        if t.layout is not torch.strided:
            raise ValueError("Tensors must be CUDA and dense")


def _nccl_error(
    kind: str, last: str
) -> dist.DistBackendError:  # NCCLUtils.hpp: C10D_NCCL_CHECK, ncclGetErrorWithVersion
    means = {
        "Usage": "This usually reflects invalid usage of NCCL library.",
        "Argument": "Invalid value for an argument.",
    }
    return dist.DistBackendError(
        f"NCCL error in: (rehearsed), invalid {kind.lower()} (run with NCCL_DEBUG=WARN for details), "
        f"NCCL version 2.29.7\nncclInvalid{kind}: {means[kind]}\nLast error:\n{last}"
    )


def _reducible(tensors, op) -> None:
    """Raise as ProcessGroupNCCL.cpp: getNcclReduceOp."""
    for name in ("BAND", "BOR", "BXOR"):
        if op == getattr(dist.ReduceOp, name):
            raise ValueError(f"Cannot use ReduceOp.{name} with NCCL")
    if op == dist.ReduceOp.PREMUL_SUM:
        raise NotImplementedError("ReduceOp.PREMUL_SUM is not rehearsed: multiply, then sum")
    if op == dist.ReduceOp.AVG and any(t.dtype == torch.bool for t in tensors):
        raise TypeError("Cannot use ReduceOp.AVG with boolean inputs")


def _alike(what: str, tensors, like: Tensor) -> None:
    """Raise as Utils.hpp: assertTypeAndSizesMatch, which ProcessGroupNCCL.cpp asks about the root's list."""

    def options(t):
        device = "cpu" if place(t) is None else f"cuda:{place(t)}"
        return (
            f"TensorOptions(dtype={_IN_CPP.get(t.dtype, t.dtype)}, device={device}, layout=Strided, "
            "requires_grad=false (default), pinned_memory=false (default), memory_format=(nullopt))"
        )

    refused = f"ProcessGroupNCCL::{what}: invalid tensor"
    for i, t in enumerate(tensors):
        if (place(t) is None) != (place(like) is None):  # of other dtypes Python has asked already
            raise ValueError(f"{refused} type at index {i} (expected {options(like)}, got {options(t)})")
        if t.shape != like.shape:
            expected, found = (f"({', '.join(map(str, shape))})" for shape in (like.shape, t.shape))
            raise ValueError(f"{refused} size at index {i} (expected {expected}, got {found})")


def _flat(tensors, like: Tensor):  # gloo wants one shape, NCCL goes by the number of elements
    return tensors if all(t.shape == like.shape for t in tensors) else [t.view(-1) for t in tensors]


class _Options:  # ProcessGroupNCCL.Options
    def __init__(self, *_, **__):
        self._timeout, self.is_high_priority_stream = timedelta(minutes=10), False
        self.global_ranks_in_group, self.group_name = [], ""
        self.config = type("Config", (), {})()


class ProcessGroupNCCL(dist.ProcessGroup):
    """NCCL as a script can notice it. `twin` is the same group for DDP's C++, whose buckets carry no label."""

    Options = _Options

    def __init__(self, store, rank, size, options=None, twin_of=None):
        super().__init__(rank, size)
        self.store, self.trusted = store, twin_of is not None
        if twin_of is not None:
            self.inner, self.world, self.seen, self.trail = twin_of.inner, twin_of, twin_of.seen, twin_of.trail
            return
        self.options = options or _Options()
        self.inner = dist.ProcessGroupGloo(store, rank, size, timeout=self.options._timeout)
        self.world, self.seen = self, set()
        self.trail = Trail(store, rank, size)
        self.twin = ProcessGroupNCCL(store, rank, size, twin_of=self)  # for DDP's C++, whose buckets have no label
        if dist.group.WORLD is None:
            meter.book.ranked(rank)
        if dist.group.WORLD is None or circles.current is None:
            of_all = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (rank, size)
            circles.Circles(self.trail.name, *of_all)

    @property
    def twin_or_self(self):
        return self if self.trusted else self.twin

    # ---- what it is asked ----------------------------------------------------------------------------------

    def _get_backend_name(self):
        return "nccl"

    getBackendName = name = _get_backend_name

    @property
    def _device_types(self):
        return [torch.device(name) for name in self._devices()]

    def _devices(self):
        config = c10d._world.pg_backend_config.get(self.world, "cuda:nccl")
        return [part.split(":")[0] for part in str(config).split(",")]

    def _get_backend(self, device):
        if torch.device(device).type not in self._devices():
            raise RuntimeError(f"No backend type associated with device type {torch.device(device).type}")
        return self.inner

    def _set_group_name(self, name):
        self._name = name

    @property
    def group_name(self):
        return self._name

    def _set_group_desc(self, desc):
        self._desc = desc

    @property
    def group_desc(self):
        return self._desc

    def _set_sequence_number_for_group(self):
        pass

    def _get_sequence_number_for_group(self):
        return 0

    def shutdown(self):
        pass

    abort = shutdown

    # ---- what it refuses -----------------------------------------------------------------------------------

    def _check(self, args, p2p=False):
        if self.trusted or getattr(here, "functional", False):
            for t in _tensors(args):  # a gradient of nn.Embedding(sparse=True) that DDP brings
                _check_dense(t)
            return
        gpus = set()
        for t in _tensors(args):
            where = place(t)
            if where is None:
                if "cpu" not in self._devices():  # ProcessGroup.hpp, getBackend
                    raise RuntimeError("No backend type associated with device type cpu")
                continue
            gpus.add(where)
            _check_dense(t)
            with raw():  # as well there; and getNcclDataType
                dense = t.is_contiguous() or (t.dim() == 4 and t.is_contiguous(memory_format=torch.channels_last))
                if not dense and not p2p:
                    raise ValueError("Tensors must be contiguous")
            if t.dtype not in _DTYPES:
                kind = t.type().rsplit(".", 1)[1].removesuffix("Tensor")
                raise TypeError(f"Input tensor data type is not supported for NCCL process group: {kind}")
        for gpu in gpus:
            self._meet(gpu, p2p)

    def _meet(self, gpu: int, p2p: bool = False) -> None:
        """What making a communicator checks: no two ranks on one GPU (NCCL, src/init.cc)."""
        bound = self.world.bound_device_id
        if bound is not None and bound.index != gpu:
            raise dist.DistBackendError(
                "Attempt to perform collective on tensor not on device passed to init_process_group"
            )
        if gpu in self.seen or p2p:  # a p2p communicator has two ranks only; not rehearsed
            return
        turn = len(self.seen)
        self.seen.add(gpu)
        self.store.set(f"gpu/{turn}/{self.rank()}", f"{socket.gethostname()}/{meter.book.visible()[gpu]}")
        others = [self.store.get(f"gpu/{turn}/{r}").decode() for r in range(self.size())]
        for other, place_ in enumerate(others):
            if other != self.rank() and place_ == others[self.rank()]:
                bus = (int(place_.rsplit("/", 1)[1]) + 1) << 12
                which = f"rank {self.rank()} and rank {other} both on CUDA device {bus:x}"
                raise _nccl_error("Usage", f"Duplicate GPU detected : {which}")

    # ---- what it does --------------------------------------------------------------------------------------

    def _run(self, name, *args, p2p=False):
        self._check(args, p2p)
        nbytes = sum(t.nbytes for t in _tensors(args))
        meter.count(name, self._from(args), "peers", nbytes)
        meter.book.weights.exchanged(name, self.size() == dist.get_world_size())
        if not p2p:
            self._enter(name, nbytes, next((a.rootRank for a in args if hasattr(a, "rootRank")), None))
        with raw():
            return getattr(self.inner, name)(*_plain(args))

    def _enter(self, name, nbytes, root=None):
        self.trail.enter(name, nbytes, root)
        circles.current.begun[self.trail.name] += 1
        turn = circles.current.begun[self.trail.name]
        circles.current.needs = [(rank, self.trail.name, turn) for rank in self._ranks()]

    def _ranks(self) -> list[int]:  # the job's number of each rank of this group
        ranks = c10d._world.pg_group_ranks.get(self.world) or {rank: rank for rank in range(self.size())}
        return sorted(ranks, key=ranks.get)

    def _message(self, name, tensors, other, tag):
        mine, theirs = f"{name} {other}", f"{'recv' if name == 'send' else 'send'} {self.rank()}"
        work = self._run(name, tensors, other, tag, p2p=True)
        circles.current.begun[f"{self.trail.name} {mine}"] += 1
        often = circles.current.begun[f"{self.trail.name} {mine}"]
        return _Message(work, [(self._ranks()[other], f"{self.trail.name} {theirs}", often)])

    def _from(self, args) -> int | None:  # the GPU whose bytes they are; a bucket, which has no label, is where DDP is
        labelled = not self.trusted and not getattr(here, "functional", False)
        first = next(_tensors(args), None) if labelled else None
        return next(iter(self.seen), here.gpu) if first is None else place(first)

    def _averaged(self, name, tensors, out, opts):  # gloo has no ReduceOp.AVG
        _reducible(_tensors(tensors), dist.ReduceOp.SUM if opts is None else opts.reduceOp)
        if opts is None or opts.reduceOp != dist.ReduceOp.AVG:
            return self._run(name, *tensors, *([] if opts is None else [opts]))
        opts.reduceOp = dist.ReduceOp.SUM
        work = self._run(name, *tensors, opts)
        work.wait()
        with raw():
            for t in _tensors(_plain(list(out))):
                t.div_(self.size(), rounding_mode=None if t.is_floating_point() or t.is_complex() else "trunc")
        return work if name.startswith("allreduce") else _Done()  # gloo's other works write the sum at each wait

    def allreduce(self, tensors, opts=None, *rest):
        tensors = [tensors] if isinstance(tensors, Tensor) else tensors
        if isinstance(opts, dist.ReduceOp.RedOpType) or opts is None:
            op, opts = opts, dist.AllreduceOptions()
            opts.reduceOp = op if op is not None else dist.ReduceOp.SUM
        return self._averaged("allreduce", [tensors], tensors, opts)

    def allreduce_coalesced(self, tensors, opts=None):
        return self._averaged("allreduce_coalesced", [tensors], tensors, opts)

    def broadcast(self, tensors, opts=None, *rest, root=None):
        tensors = [tensors] if isinstance(tensors, Tensor) else tensors
        if not isinstance(opts, dist.BroadcastOptions):
            root, opts = root if opts is None else opts, dist.BroadcastOptions()
            opts.rootRank = root or 0
        if not 0 <= opts.rootRank < self.size():  # NCCL, src/misc/argcheck.cc
            root = f"invalid root {opts.rootRank} (root should be in the 0..{self.size()} range)"
            raise _nccl_error("Argument", f"Broadcast : {root}")
        return self._run("broadcast", tensors, opts)

    def reduce(self, tensors, opts=None):
        if opts and opts.rootRank == self.rank():
            return self._averaged("reduce", [tensors], tensors, opts)
        self._check(tensors)  # NCCL writes on the root only, gloo into what any rank gives
        with raw():
            spare = [t.detach().clone() for t in tensors]
        return self.twin_or_self._averaged("reduce", [spare], [], opts)

    def allgather(self, outputs, inputs, opts=None):
        meter.book.weights.gathered(inputs)
        if len(outputs[0]) != self.size():  # our words: NCCL does not ask
            room = f"the list of all_gather has room for {len(outputs[0])} of {self.size()} ranks"
            raise ValueError(f"{room}: on GPUs NCCL would write past its end, or leave out a rank")
        if len({t.numel() for t in outputs[0]}) == 1:
            if (room := outputs[0][0].numel()) != (mine := inputs[0].numel()):  # our words, again
                room = f"all_gather has room for {room} elements of each rank, and this one brings {mine}"
                raise ValueError(f"{room}: on GPUs NCCL does not ask, and the numbers are wrong")
            *outs, given = _flat([*outputs[0], inputs[0]], inputs[0])
            return self._run("allgather", [outs], [given], *([opts] if opts else []))
        outputs[0][self.rank()].copy_(inputs[0])  # of several sizes, which gloo refuses: NCCL broadcasts each
        for root, t in enumerate(outputs[0]):
            self.broadcast([t], root).wait()
        return self.inner.barrier(dist.BarrierOptions())

    def all_gather_single(self, output, input, opts=None):
        meter.book.weights.gathered([input])
        self._check([output, input])  # gloo cuts the output along its first dimension, NCCL goes by bytes
        if input.dtype != output.dtype:
            raise TypeError("output tensor must have the same type as input tensor")
        if input.numel() * self.size() != output.numel():
            raise ValueError("output tensor size must be equal to world_size times input tensor size")
        return self.twin_or_self._run("_allgather_base", output.view(-1), input.view(-1), *([opts] if opts else []))

    _allgather_base = all_gather_single

    def allgather_coalesced(self, outputs, inputs, opts=None):
        return self._run("allgather_coalesced", outputs, inputs, *([opts] if opts else []))

    def all_gather_single_coalesced(self, outputs, inputs, opts=None):
        works = [self.all_gather_single(o, i, opts) for o, i in zip(outputs, inputs, strict=True)]
        for work in works:
            work.wait()
        return works[-1]

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def reduce_scatter_single(self, output, input, opts=None):
        opts = opts or dist.ReduceScatterOptions()
        self._check([output, input])
        if input.dtype != output.dtype:
            raise TypeError("input tensor must be the same type as the output tensor.")
        if input.numel() != output.numel() * self.size():
            raise ValueError("input tensor must be the same size as output size times world size")
        return self.twin_or_self._averaged("_reduce_scatter_base", [output.view(-1), input.view(-1)], [output], opts)

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter(self, outputs, inputs, opts=None):
        opts, out, mine = opts or dist.ReduceScatterOptions(), outputs[0], inputs[0][self.rank()]
        if out.numel() != mine.numel():  # our words: NCCL does not ask
            room = f"reduce_scatter has room for {out.numel()} elements, and the list has {mine.numel()} for this rank"
            raise ValueError(f"{room}: on GPUs NCCL would write past its end, or leave some out")
        if len({t.numel() for t in inputs[0]}) == 1:
            got, *given = _flat([out, *inputs[0]], out)
            return self._averaged("reduce_scatter", [[got], [given]], [got], opts)
        for root, t in enumerate(inputs[0]):  # of several sizes, which gloo refuses: NCCL reduces each
            each, part = dist.ReduceOptions(), t.clone()
            each.reduceOp, each.rootRank = opts.reduceOp, root
            self.reduce([part], each).wait()
            if root == self.rank():
                out.copy_(part.view_as(out))
        return self.inner.barrier(dist.BarrierOptions())

    def reduce_scatter_single_coalesced(self, outputs, inputs, opts=None):
        works = [self.reduce_scatter_single(o, i, opts) for o, i in zip(outputs, inputs, strict=True)]
        for work in works:
            work.wait()
        return works[-1]

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def gather(self, outputs, inputs, opts=None):
        if place(inputs[0]) is not None and outputs:
            _alike("gather", outputs[0], inputs[0])
        return self._run("gather", outputs, inputs, *([opts] if opts else []))

    def scatter(self, outputs, inputs, opts=None):
        if place(outputs[0]) is not None and inputs:
            _alike("scatter", inputs[0], outputs[0])
        return self._run("scatter", outputs, inputs, *([opts] if opts else []))

    def alltoall(self, outputs, inputs, opts=None):
        flat = torch.cat([t.detach().reshape(-1) for t in inputs])
        out = torch.empty_like(flat).resize_(sum(t.numel() for t in outputs))
        self._check([*outputs, *inputs])
        self._enter("alltoall", 0)
        meter.book.weights.exchanged("alltoall", True)
        with raw():
            out, flat = _plain(out), _plain(flat)
            work = self.inner.alltoall_base(
                out, flat, [t.numel() for t in outputs], [t.numel() for t in inputs], dist.AllToAllOptions()
            )
            work.wait()
            for t, piece in zip(outputs, out.split([t.numel() for t in outputs]), strict=True):
                _plain(t).copy_(piece.view(t.shape))
        return work

    def all_to_all_single(self, output, input, output_sizes, input_sizes, opts=None):
        return self._run("alltoall_base", output, input, output_sizes, input_sizes, opts or dist.AllToAllOptions())

    alltoall_base = all_to_all_single

    def send(self, tensors, dst, tag=0):
        return self._message("send", tensors, dst, tag)

    def recv(self, tensors, src, tag=0):
        return self._message("recv", tensors, src, tag)

    def recv_anysource(self, tensors, tag=0):
        raise RuntimeError("ProcessGroupNCCL does not support recvAnysource")

    def barrier(self, opts=None, *rest):
        device = getattr(opts, "device", None)
        if not (device is not None and device.type == "cpu" and "cpu" in self._devices()):
            # ProcessGroupNCCL.cpp, barrier: the device given, else one used before, else a guess by rank
            guess = next(iter(self.seen), dist.get_rank() % torch.cuda.device_count())
            self._meet(guess if device is None or device.index is None else device.index)
        self._enter("barrier", 0)
        return self.inner.barrier(dist.BarrierOptions())


# ---- functional collectives, which DTensor uses: C++ makes their outputs, and those carry no label ---------------


def _functional(name: str):
    def run(*args, **kwargs):
        here.functional = True
        try:
            return getattr(torch.ops._c10d_functional, name)(*args, **kwargs)
        finally:
            here.functional = False

    return run


_NAMES = "all_reduce all_gather_into_tensor reduce_scatter_tensor all_to_all_single broadcast"
kernels = {f"_c10d_functional::{name}": _functional(name) for name in _NAMES.split()}


# ---- DDP's C++: its buckets are plain CPU tensors, so it talks to the twin, which takes them --------------------


def _for_cpp(pg, tensors=()):
    if not isinstance(pg, ProcessGroupNCCL):
        return pg
    pg._check(tensors)
    return pg.twin


def patches() -> list[tuple[object, str, object]]:
    """What is replaced in torch.distributed: (where, name, what with)."""
    wrapped = weakref.WeakSet()  # what DDP wraps
    real_reducer, verify = dist.Reducer, dist._verify_params_across_processes

    def reducer(*args, **kwargs):
        args = [_for_cpp(a) for a in args]
        kwargs = {name: _for_cpp(a) for name, a in kwargs.items()}
        params = args[0] if args else kwargs["params"]
        by_view = kwargs.get("gradient_as_bucket_view", args[7] if len(args) > 7 else False)
        for p in params:
            if type(p) is VTensor and not by_view:  # the buckets: C++ makes them, so they are counted here
                meter.hold(p.gpu, p.nbytes)
                meter.book.keep(p.gpu, "buckets", p.nbytes)
        meter.book.weights.watch(params)
        if isinstance(ddp := sys._getframe(1).f_locals.get("self"), torch.nn.parallel.DistributedDataParallel):
            if not torch.nn.modules.module._global_forward_pre_hooks:  # not before: it shows in each traceback
                torch.nn.modules.module.register_module_forward_pre_hook(called)
            wrapped.add(ddp.module)
        return real_reducer(*args, **kwargs)

    def called(module, _):
        if isinstance(module, torch.nn.parallel.DistributedDataParallel):
            here.inside = module.module
        elif module is getattr(here, "inside", None):
            here.inside = None
        elif module in wrapped and module.training and torch.is_grad_enabled():
            meter.book.passed_by()

    init, destroy = dist.init_process_group, dist.destroy_process_group

    @functools.wraps(init)
    def init_process_group(*args, **kwargs):
        ranks = int(os.environ.get("LOCAL_WORLD_SIZE", 1)) if "TORCHELASTIC_RUN_ID" in os.environ else 1
        if ranks > 1 and multiprocessing.parent_process() and "DDPLAB_RUN_DIR" not in os.environ:
            instead = f"python -m ddplab rehearse --gpus {ranks} --python {os.path.basename(sys.argv[0])}"
            raise RuntimeError(  # on GPUs they meet at one port, and fail or wait
                f"[rehearsal] Two launchers for one job: torchrun has started this script {ranks} times, and each of "
                f"them starts ranks of its own. Start it once: {instead}"
            )
        init(*args, **kwargs)

    def destroy_process_group(group=None):
        meter.book.weights.compare()
        destroy(group)

    def helper(*args, device_id=None, **kwargs):
        pg, store = comm.new_group(*args, device_id=device_id, **kwargs)
        if isinstance(pg, ProcessGroupNCCL) and device_id is not None:
            pg.bound_device_id = device_id
            pg._meet(place_of(device_id))  # NCCL connects at once
        return pg, store

    buffer, gradients = dist.GradBucket.buffer, dist.GradBucket.gradients  # what a comm hook gets to see

    def gpu_of(bucket):
        return next((p.gpu for p in bucket.parameters() if type(p) is VTensor), None)

    get_future, wait = dist.Work.get_future, dist.Work.wait  # and what comes out of gloo's, which knows no label

    def labelled(x, gpu):
        with raw():
            return label(x, gpu)

    def found(x):  # back on the GPU that its memory counts for
        if isinstance(x, (list, tuple)):
            return [found(item) for item in x]
        block = getattr(x.untyped_storage(), "_block", None) if type(x) is Tensor else None
        return labelled(x, block.gpu) if block else x

    def future(work):  # NCCL's is complete once it is in the queue: what follows runs here, not in a thread of gloo's
        wait(work)  # ours, which nobody who notes a script's waits is to see
        return get_future(work).then(lambda done: found(done.value()))

    return [
        (c10d, "init_process_group", init_process_group),
        (dist, "init_process_group", init_process_group),
        (c10d, "destroy_process_group", destroy_process_group),
        (dist, "destroy_process_group", destroy_process_group),
        (dist.GradBucket, "buffer", lambda self: labelled(buffer(self), gpu_of(self))),
        (dist.GradBucket, "gradients", lambda self: [labelled(g, gpu_of(self)) for g in gradients(self)]),
        (dist.Work, "get_future", future),
        (c10d, "_new_process_group_helper", helper),
        (c10d, "_get_split_source", lambda pg: None),  # gloo cannot split a group, which who is outside would have to
        (c10d, "_NCCL_AVAILABLE", True),
        (c10d, "default_pg_nccl_timeout", timedelta(minutes=10)),
        (c10d, "ProcessGroupNCCL", ProcessGroupNCCL),
        (dist, "ProcessGroupNCCL", ProcessGroupNCCL),
        (dist, "Reducer", reducer),
        (dist, "_verify_params_across_processes", lambda pg, ts, logger=None: verify(_for_cpp(pg, ts), ts, logger)),
        (dist, "_broadcast_coalesced", lambda pg, ts, *rest: comm.broadcast_over_ranks(_for_cpp(pg, ts), ts, *rest)),
    ]

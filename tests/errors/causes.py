"""Causes the errors that no lesson and no rehearsal causes, in one process: `python causes.py` prints name → its words.

Each function does what the entry of `ddplab/errors/entries` with `caused_by` = its name is about, and returns or raises
the words that a person sees.
"""

import argparse
import contextlib
import io
import json
import logging
import multiprocessing
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
import warnings
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, distribute_tensor
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

from ddplab import launch, lease, vgpu


def not_initialized():
    dist.all_reduce(torch.ones(1))


def no_nccl():
    if not dist.is_nccl_available():
        dist.init_process_group("nccl", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
    return "Distributed package doesn't have NCCL built in"  # a CUDA build: nothing to cause


def store_unreachable():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    dist.TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=1))


def gloo_interface():
    os.environ["GLOO_SOCKET_IFNAME"] = "nope9"
    try:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    finally:
        del os.environ["GLOO_SOCKET_IFNAME"]


def all_in_init():
    def meet():
        dist.init_process_group("gloo", world_size=3)

    launch(meet, init=False, device="cpu", timeout=3, quiet=True)


def init_twice():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)


def comm_hook_backend():
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook

    DDP(nn.Linear(2, 2)).register_comm_hook(None, bf16_compress_hook)


def ready_twice():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 2)

        def forward(self, x):
            return checkpoint(self.layer, checkpoint(self.layer, x, use_reentrant=True), use_reentrant=True)

    model = DDP(Twice(), find_unused_parameters=True)
    model(torch.ones(1, 2, requires_grad=True)).sum().backward()


def static_graph_changed():
    class Heads(nn.Module):
        def __init__(self):
            super().__init__()
            self.heads = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])

        def forward(self, x, head):
            return self.heads[head](x)

    model = DDP(Heads(), static_graph=True)
    for head in (0, 1):
        model(torch.ones(1, 2), head).sum().backward()


def syncbn_gpu_only():
    DDP(nn.SyncBatchNorm(2))


def no_parameters():
    DDP(nn.ReLU())


def found_nothing_unused():
    model = DDP(nn.Linear(2, 2), find_unused_parameters=True)
    for _ in range(2):  # the warning is C++'s, on stderr
        model(torch.ones(1, 2)).sum().backward()


def wrapped_attribute():
    DDP(nn.Linear(2, 2)).in_features  # noqa: B018


def changed_in_place():
    y = torch.ones(2, requires_grad=True).exp()
    y += 1
    y.sum().backward()


def backward_twice():
    loss = (torch.ones(2, requires_grad=True) ** 2).sum()
    loss.backward()
    loss.backward()


def no_grad_fn():
    torch.ones(1).backward()


def fsdp_partly_frozen():
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[0].requires_grad_(False)
    FSDP(model, device_id=torch.device("cpu"), use_orig_params=False)


def no_set_epoch():
    DataLoader([1], shuffle=True).sampler.set_epoch(1)


class Fails(Dataset):
    def __len__(self):
        return 1

    def __getitem__(self, i):
        raise ValueError("a broken image")


class Dies(Fails):
    def __getitem__(self, i):
        os.kill(os.getpid(), signal.SIGKILL)


def worker_caught():
    list(DataLoader(Fails(), num_workers=1))


def loader_worker_killed():
    list(DataLoader(Dies(), num_workers=1))


def invalid_rank():
    DistributedSampler([1], num_replicas=2, rank=2)


def batchnorm_one_row():
    nn.BatchNorm1d(3)(torch.ones(1, 3))


def state_dict_mismatch():
    nn.Linear(2, 2).load_state_dict(nn.Linear(3, 2).state_dict())


def both_prefixed():
    other = nn.DataParallel(nn.Sequential(nn.Linear(2, 2)))
    nn.DataParallel(nn.Linear(2, 2)).load_state_dict(other.state_dict())


def dp_keyword_parts():
    with vgpu.virtual_gpus(3) as gpus:
        nn.DataParallel(Scaled().to(gpus[0]))(2.0, tokens=torch.ones(2, 1, device=gpus[0]))


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, factor, tokens):
        return self.scale * factor * tokens


def half_written():
    file = io.BytesIO()
    torch.save(torch.ones(1000), file)
    torch.load(io.BytesIO(file.getvalue()[:2000]))


def optimizer_state_mismatch():
    one, two = torch.optim.SGD(nn.Linear(2, 2).parameters()), torch.optim.SGD([torch.ones(1, requires_grad=True)])
    two.load_state_dict(one.state_dict())


def weights_only():
    file = io.BytesIO()
    torch.save(argparse.Namespace(lr=0.1), file)
    torch.load(io.BytesIO(file.getvalue()))


def amp_scaler():
    scaler, sgd = torch.amp.GradScaler("cpu"), torch.optim.SGD([torch.ones(1, requires_grad=True)])
    scaler.scale(torch.ones(1))
    scaler.step(sgd)


def no_cuda_build():
    if torch.version.cuda is None:
        torch.ones(1).cuda()
    return "Torch not compiled with CUDA enabled"  # a CUDA build: nothing to cause


def local_rank_argument():
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.suppress(SystemExit):
        argparse.ArgumentParser().parse_args(["--local-rank=0"])  # as torch.distributed.launch starts a script
    return said.getvalue()


def omp_note():
    import torch.distributed.run as run

    said = io.StringIO()
    handler = logging.StreamHandler(said)
    os.environ.pop("OMP_NUM_THREADS", None)
    run.logger.addHandler(handler)
    run.config_from_args(run.parse_args(["--standalone", "--nproc-per-node", "2", "x.py"]))
    return said.getvalue()


def sigterm_to_agent():
    from torch.distributed.elastic.multiprocessing import api

    signal.signal(signal.SIGTERM, api._terminate_process_handler)  # as torchrun's agent does
    try:
        os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def closing_signal():
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, api, start_processes

    said = io.StringIO()
    api.logger.addHandler(logging.StreamHandler(said))
    folder = os.path.join(sys.argv[1], "logs")
    start_processes("rank", "sleep", {0: ("60",)}, {0: {}}, DefaultLogsSpecs(log_dir=folder)).close()  # as the agent
    return said.getvalue()


def main_guard():
    script = "import multiprocessing as m\nm.get_context('spawn').Process(target=print).start()"
    path = os.path.join(sys.argv[1], "unguarded.py")
    with open(path, "w") as file:
        file.write(script)
    return subprocess.run([sys.executable, path], capture_output=True, text=True).stderr


def _has_a_child(said):
    try:
        multiprocessing.get_context("fork").Process(target=print).start()
    except AssertionError as error:
        said.send(f"AssertionError: {error}")


def daemon_children():
    here, there = multiprocessing.Pipe()
    multiprocessing.get_context("fork").Process(target=_has_a_child, args=(there,), daemon=True).start()
    return here.recv() if here.poll(30) else ""


def no_keyboard():
    with open(os.devnull) as sys.stdin:
        input()


def too_many_open_files():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
    try:
        return str([torch.ones(1).share_memory_() for _ in range(100)])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def mixed_dtensor():
    mesh = init_device_mesh("cpu", (1,))
    return distribute_tensor(torch.ones(2, 2), mesh, [Replicate()]) @ torch.ones(2, 2)


def sharded_parameter_empty():
    return torch.nn.functional.embedding(torch.tensor([0]), torch.empty(0))


def checkpoint_of_shards():
    torch.nn.Linear(2, 2).load_state_dict({"weight": torch.empty(0), "bias": torch.empty(0)})


def old_launcher():
    from torch.distributed.launch import main

    with warnings.catch_warnings(record=True) as said, contextlib.suppress(SystemExit):
        warnings.simplefilter("always")
        with contextlib.redirect_stdout(io.StringIO()):
            main(["--help"])  # it warns before it reads its options
    return str(said[0].message)


def not_wrapped():
    nn.Linear(1, 1).module.state_dict()


def list_for_each_rank():
    dist.gather(torch.ones(1), [torch.ones(1), torch.ones(1)])


def list_on_one_rank():
    dist.gather(torch.ones(1), [])


def no_such_rank():
    dist.broadcast(torch.ones(1), src=1)


def lease_in_vain():
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(DDPLAB_LEASES=folder, DDPLAB_LEASES_WAIT="0")
        first, second = lease.ask("cpu", 99), lease.ask("cpu", 99)
        try:
            return first.ready() and not second.ready() and second.given_up()
        finally:
            second.end(), first.end()
            del os.environ["DDPLAB_LEASES"], os.environ["DDPLAB_LEASES_WAIT"]


def words_of(cause) -> str:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return cause() or ""
    except Exception:
        return traceback.format_exc()


CAUSES = {
    name: value
    for name, value in list(globals().items())
    if callable(value) and getattr(value, "__module__", "") == __name__ and name[0] in "abcdefghijklmnopqrstuvwxyz"
}
del CAUSES["words_of"]

if __name__ == "__main__":
    found = {name: words_of(cause) for name, cause in CAUSES.items()}
    with open(os.path.join(sys.argv[1], "found.json"), "w") as out:
        json.dump(found, out)
    dist.destroy_process_group()

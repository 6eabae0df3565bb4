"""A training script to keep: data parallel, on CPUs or GPUs, one node or many, and it goes on after a kill.

    torchrun --standalone --nproc-per-node 2 train.py --epochs 90 --batch 1024 --checkpoint /shared/run7.pt
    TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 torchrun --standalone --nproc-per-node 8 --max-restarts 3 train.py  # restarts

Put your own data and model where it says YOURS. It needs torch and nothing else. The same line typed again goes on
after the last epoch that was finished; to train anew, delete the checkpoint. (Do so for more --epochs too: the schedule
is saved as well, and its cosine, once down, would rise again.)
"""

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Subset, TensorDataset


def make_data(samples: int, seed: int) -> Dataset:
    """YOURS. Here: points in the plane, and the ring (0, 1 or 2) in which each lies. The same on every rank."""
    points = torch.randn(samples, 2, generator=torch.Generator().manual_seed(seed))
    rings = points.norm(dim=1).long().clamp(max=2)
    return TensorDataset(points, rings)


def make_model() -> nn.Module:
    """YOURS."""
    return nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))


def save(path: str, job: dict, next_epoch: int) -> None:
    """Every rank calls it; rank 0 writes. Whoever opens `path` finds a whole checkpoint, the old one or the new one."""
    if dist.get_rank() == 0:
        states = {name: part.state_dict() for name, part in job.items()}
        with open(f"{path}.new", "wb") as file:
            torch.save({**states, "next_epoch": next_epoch}, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(f"{path}.new", path)
    dist.barrier()  # nobody goes on before the file is there


def load(path: str, job: dict) -> int:
    """Every rank calls it. Returns the epoch to go on with: 0 where there is no checkpoint."""
    next_epoch = 0
    if os.path.exists(path):
        saved = torch.load(path, map_location="cpu")
        for name, part in job.items():
            part.load_state_dict(saved[name])
        next_epoch = saved["next_epoch"]
    found = [None] * dist.get_world_size()
    dist.all_gather_object(found, next_epoch)
    if len(set(found)) > 1:
        raise RuntimeError(f"the ranks would go on with epochs {found}: do all nodes share the disk of {path!r}?")
    return next_epoch


@torch.no_grad()
def evaluate(net: nn.Module, data: Dataset, device: torch.device) -> float:
    """Accuracy over all ranks. Each counts its own part; nothing is counted twice."""
    mine = Subset(data, range(dist.get_rank(), len(data), dist.get_world_size()))
    right = torch.zeros((), device=device)
    net.eval()
    for x, y in DataLoader(mine, batch_size=512):
        right += (net(x.to(device)).argmax(dim=1) == y.to(device)).sum()
    net.train()
    dist.all_reduce(right)
    return right.item() / len(data)


@record
def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch", type=int, default=64, help="samples a step, of all ranks together")
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--workers", type=int, default=0, help="processes that load data, for each rank")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--checkpoint", default="checkpoint.pt", help="on a disk that all nodes share")
    asked = parser.parse_args()

    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpu else "gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    if asked.batch % size:
        raise ValueError(f"--batch {asked.batch} cannot be shared out among {size} ranks")

    torch.manual_seed(asked.seed)
    model = DDP(make_model().to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=asked.lr)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=asked.epochs)
    # On a GPU, 16 bits where that is safe. bfloat16 needs no scaler; older GPUs have float16 only, which does.
    half = torch.bfloat16 if not on_gpu or torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16
    scaler = torch.amp.GradScaler(device.type, enabled=half is torch.float16)

    training, test = make_data(2000, seed=1), make_data(500, seed=2)
    sampler = DistributedSampler(training, seed=asked.seed, drop_last=True)
    loader = DataLoader(
        training,
        batch_size=asked.batch // size,
        sampler=sampler,
        drop_last=True,
        num_workers=asked.workers,
        pin_memory=on_gpu,
    )

    job = {"model": model.module, "optimizer": optimizer, "scheduler": scheduler, "scaler": scaler}
    start = load(asked.checkpoint, job)
    if rank == 0:
        print(f"{size} ranks on {device.type}, {asked.epochs} epochs, beginning at {start}", flush=True)
    for epoch in range(start, asked.epochs):
        sampler.set_epoch(epoch)
        # Each epoch draws from a state of its own, so none has to be saved; dropout differs from rank to rank.
        torch.manual_seed((asked.seed * 1000 + epoch) * 10000 + rank)
        total = torch.zeros((), device=device)
        for x, y in loader:
            x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
            with torch.autocast(device.type, dtype=half, enabled=on_gpu):
                loss = cross_entropy(model(x), y)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            total += loss.detach()
        scheduler.step()
        dist.all_reduce(total)
        mean, accuracy = total.item() / len(loader) / size, evaluate(model.module, test, device)
        if rank == 0:
            print(f"epoch {epoch}  loss {mean:.4f}  accuracy {accuracy:.3f}", flush=True)
        save(asked.checkpoint, job, epoch + 1)

    dist.barrier()
    time.sleep(0.1)  # gloo ends its last piece of work on a thread of its own; destroyed meanwhile, it can hang
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

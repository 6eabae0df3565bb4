"""A script as people have them, with nothing of ours in it: argparse, AMP, workers, a sampler, checkpoints, resume."""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--die-at", type=int, default=-1)
    args = parser.parse_args()
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    device = torch.device("cuda", local_rank)
    dist.init_process_group("nccl")
    torch.manual_seed(0)
    x = torch.randn(32, 1, 8, 8)
    data = TensorDataset(x, (x.mean((1, 2, 3)) > 0).long())
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=8, sampler=sampler, num_workers=1, pin_memory=True)
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.1), nn.Linear(144, 2)
    )
    model = DDP(net.to(device), device_ids=[local_rank])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scaler, start = torch.amp.GradScaler("cuda"), 0
    if os.path.exists(args.checkpoint):
        saved = torch.load(args.checkpoint, map_location={"cuda:0": f"cuda:{local_rank}"})
        model.module.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        scaler.load_state_dict(saved["scaler"])
        start = saved["epoch"]
    for epoch in range(start, args.epochs):
        sampler.set_epoch(epoch)
        total = torch.zeros((), device=device)
        for step, (images, labels) in enumerate(loader):
            images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad(set_to_none=True)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            total += loss.detach()
            if local_rank == 1 and step == args.die_at:
                raise ValueError("a bad sample")
        dist.all_reduce(total)
        if dist.get_rank() == 0:
            print(f"epoch {epoch} loss {total.item():.3f}", flush=True)
            state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(state | {"scaler": scaler.state_dict(), "epoch": epoch + 1}, args.checkpoint)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

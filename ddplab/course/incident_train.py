"""A small network learns the digits, on four ranks with a GPU each."""

import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler

from ddplab.course.data import digits

SEED, EPOCHS, BATCH = 7, 3, 64


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU())
        self.head = nn.Linear(64, 10)

    def forward(self, x):
        return self.head(self.body(x))


@torch.no_grad()
def evaluate(net, x, y):
    """The accuracy: each rank looks at every fourth image, then all add up."""
    x, y = x[rank::size], y[rank::size]
    guesses = net(x.to(device)).argmax(1).cpu()
    hits = (guesses == y).sum()
    images = torch.tensor(len(y))
    totals = [hits, images]
    for total in totals:
        dist.all_reduce(total)
    return (hits.sum() / images).item()


rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
device = torch.device("vgpu", int(os.environ["LOCAL_RANK"]))
dist.init_process_group("gloo")
torch.manual_seed(SEED)

train, test = digits(), digits(train=False)[:350]
sampler = DistributedSampler(train, seed=SEED)
loader = DataLoader(train, BATCH, sampler=sampler)
net = Net().to(device)
model = DDP(net)
optimizer = torch.optim.SGD(net.parameters(), lr=0.2, momentum=0.9)

losses = []
for epoch in range(EPOCHS):
    start = time.time()
    sampler.set_epoch(epoch)
    for x, y in loader:
        loss = cross_entropy(model(x.to(device)), y.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    accuracy = evaluate(net, *test)
    if rank == 0:
        torch.save(net.state_dict(), "last.pt")
        print(f"epoch {epoch}: loss {losses[-1]:.3f}, accuracy {accuracy:.1%}, {time.time() - start:.1f} s")
    dist.barrier()
dist.destroy_process_group()

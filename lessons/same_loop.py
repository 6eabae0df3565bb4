"""The training loop of lesson 16 by three names.

torchrun --nproc-per-node 2 same_loop.py torch
torchrun --nproc-per-node 2 same_loop.py accelerate
torchrun --nproc-per-node 2 same_loop.py lightning_fabric
"""

import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from ddplab import cleanup
from ddplab.data import digits
from ddplab.models import MLP

torch.manual_seed(0)
net = MLP()
optimizer = torch.optim.Adam(net.parameters(), lr=0.01)

if sys.argv[1] == "torch":
    dist.init_process_group("gloo")
    net, backward = DDP(net), torch.Tensor.backward

elif sys.argv[1] == "accelerate":
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    net, optimizer = accelerator.prepare(net, optimizer)
    backward = accelerator.backward

elif sys.argv[1] == "lightning_fabric":
    from lightning_fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp")
    fabric.launch()
    net, optimizer = fabric.setup(net, optimizer)
    backward = fabric.backward

x, y = digits().tensors
for step in range(20):
    mine = slice(64 * step + dist.get_rank(), 64 * step + 64, dist.get_world_size())
    optimizer.zero_grad()
    loss = F.cross_entropy(net(x[mine]), y[mine])
    backward(loss)
    optimizer.step()

if dist.get_rank() == 0:
    print(f"{sys.argv[1]}: {type(net).__name__}, last loss {loss.item():.5f}")
cleanup()

# torchrun --nproc-per-node 2 train_digits.py
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader

from ddplab import cleanup, device, log
from ddplab.course import data, models

dist.init_process_group("nccl" if device().type == "cuda" else "gloo")  # NEW
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)  # on each rank, so that all shuffle alike
model = DDP(models.MLP().to(device()))
loader = DataLoader(data.digits(), batch_size=64, shuffle=True, drop_last=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
for _ in range(5):
    for x, y in loader:
        x, y = x[rank::size].to(device()), y[rank::size].to(device())
        loss = torch.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        log(loss=loss)
print("loss of the last step:", round(loss.item(), 2))
cleanup()  # NEW

"""Handwritten digits with DistributedDataParallel: a plain PyTorch script, nothing in it knows of SwitchSum.

    torchrun --nproc-per-node 4 examples/train_digits.py --backend gloo
    torchrun --nproc-per-node 4 examples/train_digits.py --backend switchsum

Only the name of the backend differs. With SWITCHSUM_CONTROLLER=HOST:PORT in the environment the second line uses that
controller's switch; without it, an embedded switch starts beside the workers.
"""

import argparse

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset, random_split
from torch.utils.data.distributed import DistributedSampler

parser = argparse.ArgumentParser(description="Train a small network on scikit-learn's digits.")
parser.add_argument("--backend", default="gloo", help="name of a torch.distributed backend")
parser.add_argument("--epochs", type=int, default=5)
options = parser.parse_args()

torch.set_num_threads(1)  # the workers share this machine's cores
torch.manual_seed(1)
dist.init_process_group(options.backend)
rank, world_size = dist.get_rank(), dist.get_world_size()

pixels, labels = load_digits(return_X_y=True)
images = torch.tensor(pixels / 16, dtype=torch.float32).reshape(-1, 1, 8, 8)
train, test = random_split(TensorDataset(images, torch.tensor(labels)), [0.8, 0.2])
sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(train, world_size, rank)
loader = DataLoader(train, batch_size=max(1, 64 // world_size), sampler=sampler)

network = nn.Sequential(nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.ReLU(), nn.Flatten(), nn.Linear(512, 10))
model = DistributedDataParallel(network)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

for epoch in range(options.epochs):
    sampler.set_epoch(epoch)
    total = torch.zeros(1)
    for batch_images, batch_labels in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(batch_images), batch_labels)
        loss.backward()
        optimizer.step()
        total += loss.detach()
    dist.all_reduce(total)
    if rank == 0:
        print(f"epoch {epoch + 1}: mean loss {total.item() / (len(loader) * world_size):.4f}", flush=True)

if rank == 0:
    test_images, test_labels = next(iter(DataLoader(test, batch_size=len(test))))
    with torch.no_grad():
        right = network(test_images).argmax(1) == test_labels
    print(f"test accuracy {100 * right.float().mean().item():.1f} % over {dist.get_backend()}", flush=True)
dist.destroy_process_group()

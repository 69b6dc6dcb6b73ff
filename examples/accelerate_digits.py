"""Handwritten digits with Hugging Face Accelerate over a backend that is chosen by name (needs: pip install accelerate).

    torchrun --nproc-per-node 4 examples/accelerate_digits.py --backend gloo
    torchrun --nproc-per-node 4 examples/accelerate_digits.py --backend switchsum

On CPUs Accelerate (1.15) takes no name but Gloo's in InitProcessGroupKwargs(backend=...): with cpu=True it refuses, without it
does not wrap the model, so that nothing is summed. But it takes a default group that is there, so the script makes one.
"""

import argparse

import torch
import torch.distributed as dist
from accelerate import Accelerator
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

parser = argparse.ArgumentParser(description="Train a small network on scikit-learn's digits with Accelerate.")
parser.add_argument("--backend", default="gloo", help="name of a torch.distributed backend")
parser.add_argument("--epochs", type=int, default=5)
options = parser.parse_args()

torch.set_num_threads(1)  # the workers share this machine's cores
torch.manual_seed(1)
dist.init_process_group(options.backend)
accelerator = Accelerator(cpu=True)

pixels, labels = load_digits(return_X_y=True)
images = torch.tensor(pixels / 16, dtype=torch.float32).reshape(-1, 1, 8, 8)
train, test = random_split(TensorDataset(images, torch.tensor(labels)), [0.8, 0.2])
batch = max(1, 64 // accelerator.num_processes)
network = nn.Sequential(nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.ReLU(), nn.Flatten(), nn.Linear(512, 10))
model, optimizer, loader, test_loader = accelerator.prepare(
    network,
    torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9),
    DataLoader(train, batch, shuffle=True),
    DataLoader(test, batch),
)

step = 0
for _ in range(options.epochs):
    for batch_images, batch_labels in loader:
        optimizer.zero_grad()
        accelerator.backward(nn.functional.cross_entropy(model(batch_images), batch_labels))
        optimizer.step()
        step += 1

losses, right = [], []
with torch.no_grad():
    for batch_images, batch_labels in test_loader:
        logits, everybodys = accelerator.gather_for_metrics((network(batch_images), batch_labels))
        losses.append(nn.functional.cross_entropy(logits, everybodys, reduction="none"))
        right.append(logits.argmax(1) == everybodys)
loss, accuracy = torch.cat(losses).mean().item(), torch.cat(right).float().mean().item()
accelerator.print(f"step {step}: test loss {loss:.4f}, accuracy {accuracy:.4f} over {dist.get_backend()}")
accelerator.end_training()

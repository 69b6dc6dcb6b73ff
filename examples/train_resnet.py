"""A small residual network with BatchNorm on scikit-learn's digits: plain PyTorch, nothing in it knows of SwitchSum.

torchrun --nproc-per-node 4 examples/train_resnet.py --backend gloo
torchrun --nproc-per-node 4 examples/train_resnet.py --backend switchsum
"""

import torch
import torch.distributed as dist
from journal import Journal, parser
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset, random_split
from torch.utils.data.distributed import DistributedSampler

BATCH = 64  # images of a step, over all workers


class Block(nn.Module):
    """Two convolutions beside a short cut."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.path = nn.Sequential(
            nn.Conv2d(before, after, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(after),
            nn.ReLU(),
            nn.Conv2d(after, after, 3, padding=1, bias=False),
            nn.BatchNorm2d(after),
        )
        same = before == after and stride == 1
        shortcut = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))
        self.shortcut = nn.Identity() if same else shortcut

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.path(images) + self.shortcut(images))


def resnet() -> nn.Module:
    """216,000 weights; takes images float32[batch, 1, 8, 8]."""
    stem = [nn.Conv2d(1, 24, 3, padding=1, bias=False), nn.BatchNorm2d(24), nn.ReLU()]
    blocks = [Block(24, 24, 1), Block(24, 48, 2), Block(48, 48, 1), Block(48, 96, 2)]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(96, 10))


arguments = parser("Train a small residual network on scikit-learn's digits.")
arguments.add_argument("--epochs", type=int, default=12)
options = arguments.parse_args()

torch.set_num_threads(1)  # the workers share this machine's cores
torch.manual_seed(options.seed)
dist.init_process_group(options.backend)
rank, world_size = dist.get_rank(), dist.get_world_size()

pixels, labels = load_digits(return_X_y=True)
images = TensorDataset(torch.tensor(pixels / 16, dtype=torch.float32).reshape(-1, 1, 8, 8), torch.tensor(labels))
train, test = random_split(images, [0.8, 0.2], torch.Generator().manual_seed(0))
test_images, test_labels = next(iter(DataLoader(test, batch_size=len(test))))
sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(train, world_size, rank, seed=options.seed)
loader = DataLoader(train, batch_size=max(1, BATCH // world_size), sampler=sampler, drop_last=True)

network = resnet()
model = DistributedDataParallel(network)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.epochs * len(loader))
journal = Journal(options.json, "test accuracy")

for epoch in range(options.epochs):
    sampler.set_epoch(epoch)
    for batch_images, batch_labels in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(batch_images), batch_labels)
        loss.backward()
        optimizer.step()
        schedule.step()
        journal.add(loss)
    network.eval()
    with torch.no_grad():
        accuracy = (network(test_images).argmax(1) == test_labels).float().mean().item()
    network.train()
    journal.write((epoch + 1) * len(loader), accuracy)

journal.end(network)
dist.destroy_process_group()

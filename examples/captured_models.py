"""Models of full size on noise, for the shape of their gradients: the captures that come with SwitchSum were made from them.

    switchsum bench capture --output MODEL.json -- torchrun --standalone --nproc-per-node 2 examples/captured_models.py MODEL

Plain PyTorch; nothing in it knows of SwitchSum.
"""

import argparse
from itertools import pairwise

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel


class Bottleneck(nn.Module):
    """Three convolutions beside a short cut (He and others, 2015); the middle one has the stride."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        after = 4 * width
        self.path = nn.Sequential(
            nn.Conv2d(before, width, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, after, 1, bias=False),
            nn.BatchNorm2d(after),
        )
        same = before == after and stride == 1
        shortcut = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))
        self.shortcut = nn.Identity() if same else shortcut

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.path(images) + self.shortcut(images))


class ResNet50(nn.Module):
    """25,557,032 weights; images float32[batch, 3, 224, 224] to their classes' logits."""

    def __init__(self) -> None:
        super().__init__()
        stem = [nn.Conv2d(3, 64, 7, 2, padding=3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1)]
        blocks, before = [], 64
        for width, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
            for number in range(count):
                blocks.append(Bottleneck(before, width, stride if number == 0 else 1))
                before = 4 * width
        self.layers = nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.layers(images)

    def loss(self, model: nn.Module) -> torch.Tensor:
        return functional.cross_entropy(model(torch.randn(2, 3, 224, 224)), torch.randint(1000, (2,)))


class Layer(nn.Module):
    """Attention to the words before, then a small network for each place."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_network = nn.LayerNorm(width), nn.LayerNorm(width)
        self.questions_keys_values, self.answer = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.network = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU("tanh"), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        heads = self.questions_keys_values(self.before_attention(x)).view(batch, length, 3, self.heads, -1).transpose(1, 3)
        attended = functional.scaled_dot_product_attention(*heads.unbind(2), is_causal=True)
        x = x + self.answer(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.network(self.before_network(x))


class GPT2(nn.Module):
    """The small GPT-2 (Radford and others, 2019): 124,439,808 weights; words int64[batch, length] to logits of the next."""

    WORDS, CONTEXT, WIDTH, HEADS, LAYERS = 50257, 1024, 768, 12, 12

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(self.WORDS, self.WIDTH), nn.Embedding(self.CONTEXT, self.WIDTH)
        nn.init.normal_(self.words.weight, std=0.02)
        self.layers = nn.Sequential(*(Layer(self.WIDTH, self.HEADS) for _ in range(self.LAYERS)), nn.LayerNorm(self.WIDTH))

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        x = self.words(text) + self.places(torch.arange(text.shape[1]))
        return functional.linear(self.layers(x), self.words.weight)  # the same weights read words and write them

    def loss(self, model: nn.Module) -> torch.Tensor:
        text = torch.randint(self.WORDS, (1, 65))
        return functional.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())


class Recommender(nn.Module):
    """DLRM as in its benchmark on Criteo's Kaggle data (Naumov and others, 2019), with at most ROWS rows a table.

    6,354,353 weights, 93 % of them in 26 embeddings, whose gradients are dense. From float32[batch, 13] and int64[26][batch].
    """

    ROWS, WIDTH, DENSE = 40_000, 16, 13
    # Values of each of the data set's categorical features.
    VALUES = (1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194, 27, 14992, 5461306, 10, 5652)
    VALUES += (2173, 4, 7046547, 18, 15, 286181, 105, 142572)

    def __init__(self) -> None:
        super().__init__()
        self.rows = [min(values, self.ROWS) for values in self.VALUES]
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, self.WIDTH, mode="sum") for rows in self.rows)
        vectors = len(self.rows) + 1
        self.pairs = torch.tril_indices(vectors, vectors, -1).unbind()
        self.bottom = self.dense_layers(self.DENSE, 512, 256, 64, self.WIDTH)
        self.top = self.dense_layers(self.WIDTH + vectors * (vectors - 1) // 2, 512, 256, 1)[:-1]

    @staticmethod
    def dense_layers(*widths: int) -> nn.Sequential:
        return nn.Sequential(*(layer for before, after in pairwise(widths) for layer in (nn.Linear(before, after), nn.ReLU())))

    def forward(self, dense: torch.Tensor, features: list[torch.Tensor]) -> torch.Tensor:
        below = self.bottom(dense)
        looked_up = [table(ids.unsqueeze(1)) for table, ids in zip(self.tables, features, strict=True)]
        vectors = torch.stack([below, *looked_up], 1)
        products = (vectors @ vectors.transpose(1, 2))[:, *self.pairs]
        return self.top(torch.cat([below, products], 1)).squeeze(1)

    def loss(self, model: nn.Module) -> torch.Tensor:
        logits = model(torch.randn(128, self.DENSE), [torch.randint(rows, (128,)) for rows in self.rows])
        return functional.binary_cross_entropy_with_logits(logits, torch.randint(2, (128,)).float())


MODELS = {"resnet50": ResNet50, "gpt2": GPT2, "recommender": Recommender}

parser = argparse.ArgumentParser(description="Train a model of full size on noise for a few steps.")
parser.add_argument("model", choices=MODELS)
parser.add_argument("--steps", type=int, default=8)
parser.add_argument("--backend", default="gloo", help="name of a torch.distributed backend")
options = parser.parse_args()

torch.set_num_threads(1)  # the workers share this machine's cores
torch.manual_seed(1)
dist.init_process_group(options.backend)
network = MODELS[options.model]()
model = DistributedDataParallel(network)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(1, options.steps + 1):
    optimizer.zero_grad()
    loss = network.loss(model)
    loss.backward()
    optimizer.step()
    if dist.get_rank() == 0:
        print(f"step {step}: loss {loss.item():.3f}", flush=True)
dist.destroy_process_group()

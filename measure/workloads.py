"""Six small trainings of the kinds that Alibaba-PAI's study counts (arXiv 1910.05930), to hold predictions against.

They are scale models: seconds on one core and a few megabytes of gradients, so that on links of 100 Mbit/s computing and sums
are about as they are on real hosts with real links. Data are made up, by seed, and nothing that is learnt matters. No model
keeps state besides its parameters, so that gradients are all that travels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

_SAMPLES = 64  # of a data set, which is gone through again and again


class _Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1), nn.GroupNorm(8, width), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1)
        )

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.layers(x))


class Convolution(nn.Module):
    """A residual network that classifies images of 3 x 24 x 24."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 48, 3, padding=1),
            nn.ReLU(),
            _Block(48),
            nn.Conv2d(48, 96, 3, stride=2, padding=1),
            _Block(96),
            nn.Conv2d(96, 128, 3, stride=2, padding=1),
            _Block(128),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(128, 10),
        )

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.layers(images), labels)


class Translation(nn.Module):
    """Sequence to sequence: an LSTM reads 20 words, another one writes 20 and attends to what was read."""

    def __init__(self, words: int = 1000, width: int = 192) -> None:
        super().__init__()
        self.read_words, self.written_words = nn.Embedding(words, width), nn.Embedding(words, width)
        self.encoder = nn.LSTM(width, width, batch_first=True)
        self.decoder = nn.LSTM(width, width, batch_first=True)
        self.out = nn.Linear(2 * width, words)

    def forward(self, read: Tensor, written: Tensor) -> Tensor:
        seen, state = self.encoder(self.read_words(read))
        said, _ = self.decoder(self.written_words(written[:, :-1]), state)
        attended = F.scaled_dot_product_attention(said, seen, seen)
        guessed = self.out(torch.cat([said, attended], dim=-1))
        return F.cross_entropy(guessed.flatten(0, 1), written[:, 1:].flatten())


class Language(nn.Module):
    """BERT-like: a transformer's encoder guesses what each of 64 words is, some of which are masked."""

    def __init__(self, words: int = 2000, width: int = 128, layers: int = 4) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(64, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.out = nn.Linear(width, words)

    def forward(self, masked: Tensor, words: Tensor) -> Tensor:
        x = self.words(masked) + self.places(torch.arange(masked.shape[1]))
        return F.cross_entropy(self.out(self.encoder(x)).flatten(0, 1), words.flatten())


class Speech(nn.Module):
    """Convolutions over 128 frames of 40 bands, three recurrent layers in both directions, CTC."""

    def __init__(self, width: int = 96, letters: int = 29) -> None:
        super().__init__()
        self.frames = nn.Sequential(nn.Conv1d(40, 128, 5, stride=2, padding=2), nn.ReLU())
        self.recurrent = nn.GRU(128, width, num_layers=3, bidirectional=True, batch_first=True)
        self.out = nn.Linear(2 * width, letters)

    def forward(self, frames: Tensor, letters: Tensor) -> Tensor:
        seen, _ = self.recurrent(self.frames(frames).transpose(1, 2))
        likely = F.log_softmax(self.out(seen), dim=-1).transpose(0, 1)
        batch, longest = letters.shape
        heard = torch.full((batch,), likely.shape[0], dtype=torch.long)
        return F.ctc_loss(likely, letters, heard, torch.full((batch,), longest, dtype=torch.long))


class Recommendation(nn.Module):
    """Eight tables, of which each sample looks up four rows, and a small network: many bytes, little to compute. As PyTorch's
    DistributedDataParallel does it by default, the tables' gradients are dense."""

    def __init__(self, rows: int = 4000, width: int = 24) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum") for _ in range(8))
        self.dense = nn.Sequential(nn.Linear(13, 64), nn.ReLU(), nn.Linear(64, width), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(9 * width, 128), nn.ReLU(), nn.Linear(128, 1))

    def forward(self, numbers: Tensor, rows: Tensor, clicked: Tensor) -> Tensor:
        looked_up = [table(rows[:, index]) for index, table in enumerate(self.tables)]
        guessed = self.top(torch.cat([self.dense(numbers), *looked_up], dim=1)).squeeze(1)
        return F.binary_cross_entropy_with_logits(guessed, clicked)


class Graph(nn.Module):
    """Three graph convolutions over 1,024 nodes with eight neighbours each: gathers and scatters, some products."""

    def __init__(self, width: int = 320, classes: int = 16) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(128, width), nn.Linear(width, width)
        self.third, self.out = nn.Linear(width, width), nn.Linear(width, classes)

    def forward(self, nodes: Tensor, neighbours: Tensor, classes: Tensor) -> Tensor:
        x, near, classes = nodes[0], neighbours[0], classes[0]
        for layer in (self.first, self.second, self.third):
            x = F.relu(layer(x + x[near].mean(dim=1)))
        return F.cross_entropy(self.out(x), classes)


def _images(random: torch.Generator) -> tuple[Tensor, ...]:
    return torch.randn(3, 24, 24, generator=random), torch.randint(10, (), generator=random)


def _sentences(random: torch.Generator) -> tuple[Tensor, ...]:
    return torch.randint(1000, (20,), generator=random), torch.randint(1000, (21,), generator=random)


def _masked(random: torch.Generator) -> tuple[Tensor, ...]:
    words = torch.randint(1, 2000, (64,), generator=random)
    return words * (torch.rand(64, generator=random) > 0.15), words


def _sounds(random: torch.Generator) -> tuple[Tensor, ...]:
    return torch.randn(40, 128, generator=random), torch.randint(1, 29, (20,), generator=random)


def _clicks(random: torch.Generator) -> tuple[Tensor, ...]:
    rows = torch.randint(4000, (8, 4), generator=random)
    return torch.randn(13, generator=random), rows, torch.randint(2, (), generator=random).float()


def _graphs(random: torch.Generator) -> tuple[Tensor, ...]:
    neighbours = torch.randint(1024, (1024, 8), generator=random)
    return torch.randn(1024, 128, generator=random), neighbours, torch.randint(16, (1024,), generator=random)


class _Made(Dataset[tuple[Tensor, ...]]):
    def __init__(self, sample: Callable[[torch.Generator], tuple[Tensor, ...]], seed: int) -> None:
        random = torch.Generator().manual_seed(seed)
        self._samples = [sample(random) for _ in range(_SAMPLES)]

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        return self._samples[index]


@dataclass(frozen=True)
class Workload:
    """`model()`: its forward takes a batch and gives the loss. `batch_size`: of one worker."""

    model: Callable[[], nn.Module]
    sample: Callable[[torch.Generator], tuple[Tensor, ...]]
    batch_size: int

    def batches(self, seed: int) -> Iterator[list[Tensor]]:
        """Without end. `seed`: of the data, each worker's its own."""
        loader = DataLoader(_Made(self.sample, seed), self.batch_size)
        while True:
            yield from loader


WORKLOADS = {
    "convolution": Workload(Convolution, _images, 16),
    "translation": Workload(Translation, _sentences, 16),
    "language": Workload(Language, _masked, 8),
    "speech": Workload(Speech, _sounds, 8),
    "recommendation": Workload(Recommendation, _clicks, 32),
    "graph": Workload(Graph, _graphs, 1),
}

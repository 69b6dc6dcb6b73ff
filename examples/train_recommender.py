"""Who clicks on what, from embeddings: a recommender in the manner of DLRM. Plain PyTorch, nothing in it knows of SwitchSum.

    torchrun --nproc-per-node 4 examples/train_recommender.py --backend gloo
    torchrun --nproc-per-node 4 examples/train_recommender.py --backend switchsum
    torchrun --nproc-per-node 4 examples/train_recommender.py --backend switchsum --autocast float16

The clicks are made up by a hidden model: users and items have tastes, which the history of a user and the item's category
betray. Nearly all weights are embeddings, and a step touches few of them, so that most of every gradient is zero. With
float16 the loss is scaled, and the scale grows until gradients overflow: those steps are skipped, on every rank or on none.
"""

import torch
import torch.distributed as dist
from journal import Journal, parser
from torch import nn
from torch.nn.parallel import DistributedDataParallel

USERS, ITEMS, CATEGORIES, HISTORY, DENSE = 6000, 3000, 40, 8, 4
TRAIN, TEST = 160_000, 20_000
WIDTH = 32  # of an embedding
BATCH = 512  # samples of a step, over all workers

Samples = dict[str, torch.Tensor]


def clicks(count: int) -> Samples:
    """Always the same: ids int64[count], history int64[count, HISTORY], dense float32[count, DENSE], click 0.0 or 1.0."""
    dice = torch.Generator().manual_seed(0)

    def popular(size: int, *shape: int) -> torch.Tensor:
        return (size * torch.rand(*shape, generator=dice) ** 2).long()  # low ids are met more often

    user_taste, item_taste = (torch.randn(size, 4, generator=dice) for size in (USERS, ITEMS))
    category_of = torch.randint(CATEGORIES, (ITEMS,), generator=dice)
    item_taste += 1.5 * torch.randn(CATEGORIES, 4, generator=dice)[category_of]
    # A user's history holds the best of some items for that user.
    met = popular(ITEMS, USERS, 4 * HISTORY)
    liked = torch.einsum("ut,umt->um", user_taste, item_taste[met]).topk(HISTORY).indices
    history_of = met.gather(1, liked)

    user, item = popular(USERS, count), popular(ITEMS, count)
    dense = torch.randn(count, DENSE, generator=dice)
    fit = (user_taste[user] * item_taste[item]).sum(1)
    click = torch.rand(count, generator=dice) < torch.sigmoid(fit + 0.7 * dense[:, 0] - 0.5 * dense[:, 1] ** 2 - 1)
    return {
        "user": user,
        "item": item,
        "category": category_of[item],
        "history": history_of[user],
        "dense": dense,
        "click": click.float(),
    }


class Recommender(nn.Module):
    """389,000 weights, 385,000 of them embeddings: vectors of all features, their products, and a network over both."""

    def __init__(self) -> None:
        super().__init__()
        sizes = {"user": USERS, "item": ITEMS, "category": CATEGORIES, "history": ITEMS}
        self.bags = nn.ModuleDict({name: nn.EmbeddingBag(size, WIDTH, mode="mean") for name, size in sizes.items()})
        for bag in self.bags.values():
            nn.init.normal_(bag.weight, std=0.05)
        self.dense = nn.Sequential(nn.Linear(DENSE, 32), nn.ReLU(), nn.Linear(32, WIDTH))
        vectors = len(sizes) + 1
        self.pairs = torch.triu_indices(vectors, vectors, 1).unbind()
        self.top = nn.Sequential(nn.Linear(WIDTH + vectors * (vectors - 1) // 2, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, samples: Samples) -> torch.Tensor:
        dense = self.dense(samples["dense"])
        looked_up = [bag(samples[name].view(len(dense), -1)) for name, bag in self.bags.items()]
        vectors = torch.stack([dense, *looked_up], 1)
        products = (vectors @ vectors.transpose(1, 2))[:, *self.pairs]
        return self.top(torch.cat([dense, products], 1)).squeeze(1)


def area_under_curve(scores: torch.Tensor, click: torch.Tensor) -> float:
    """Probability that a random click has a higher score than a random one that was no click (ROC AUC)."""
    ranks = torch.empty(len(scores), dtype=torch.float64)
    ranks[scores.argsort()] = torch.arange(1, len(scores) + 1, dtype=torch.float64)
    positive = int(click.sum())
    return (float(ranks[click > 0].sum()) - positive * (positive + 1) / 2) / (positive * (len(scores) - positive))


arguments = parser("Train a recommender on made-up clicks.")
arguments.add_argument("--steps", type=int, default=600)
arguments.add_argument("--autocast", choices=["float16"], help="compute in this type where that is safe, and scale the loss")
options = arguments.parse_args()

torch.set_num_threads(1)  # the workers share this machine's cores
torch.manual_seed(options.seed)
dist.init_process_group(options.backend)
rank, world_size = dist.get_rank(), dist.get_world_size()

samples = clicks(TRAIN + TEST)
test = {name: values[TRAIN:] for name, values in samples.items()}

network = Recommender()
model = DistributedDataParallel(network)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
# It doubles far more often than after the usual 2,000 steps, so that overflows come within this short training.
scaler = torch.amp.GradScaler("cpu", growth_interval=20, enabled=options.autocast is not None)
journal = Journal(options.json, "validation AUC")
order = torch.Generator().manual_seed(1000 * options.seed + rank)
skipped = 0

for step in range(1, options.steps + 1):
    chosen = torch.randint(TRAIN, (max(1, BATCH // world_size),), generator=order)
    batch = {name: values[chosen] for name, values in samples.items()}
    optimizer.zero_grad()
    with torch.autocast("cpu", torch.float16, enabled=options.autocast is not None):
        logits = model(batch)
    loss = nn.functional.binary_cross_entropy_with_logits(logits.float(), batch["click"])
    scaler.scale(loss).backward()
    scale = scaler.get_scale()
    scaler.step(optimizer)
    scaler.update()
    skipped += scaler.get_scale() < scale  # an overflow halves the scale
    journal.add(loss)
    if step % max(1, options.steps // 15) == 0 or step == options.steps:
        with torch.no_grad():
            metric = area_under_curve(network(test), test["click"])
        scaling = {"skipped": skipped, "scale": scaler.get_scale()} if scaler.is_enabled() else {}
        journal.write(step, metric, **scaling)

journal.end(network)
dist.destroy_process_group()

"""A small GPT that learns Python's language reference letter by letter: plain PyTorch, nothing in it knows of SwitchSum.

    torchrun --nproc-per-node 4 examples/train_gpt.py --backend gloo
    torchrun --nproc-per-node 4 examples/train_gpt.py --backend switchsum
    torchrun --nproc-per-node 4 examples/train_gpt.py --backend switchsum --autocast bfloat16

The text is what `help("if")` and its like show, 465,000 letters that every Python brings along; versions differ a little.
"""

from pydoc_data.topics import topics

import torch
import torch.distributed as dist
from journal import Journal, parser
from torch import nn
from torch.nn.parallel import DistributedDataParallel

CONTEXT, WIDTH, HEADS, LAYERS = 64, 96, 4, 3
BATCH = 32  # pieces of CONTEXT letters of a step, over all workers


class Layer(nn.Module):
    """Attention to the letters before, then a small network for each place."""

    def __init__(self) -> None:
        super().__init__()
        self.before_attention, self.before_network = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.questions_keys_values, self.answer = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.network = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        heads = self.questions_keys_values(self.before_attention(x)).view(batch, length, 3, HEADS, -1).transpose(1, 3)
        attended = nn.functional.scaled_dot_product_attention(*heads.unbind(2), is_causal=True)
        x = x + self.answer(attended.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.network(self.before_network(x))


class GPT(nn.Module):
    """360,000 weights; from letters int64[batch, length] to logits [batch, length, letters]."""

    def __init__(self, letters: int) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(letters, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.layers = nn.Sequential(*(Layer() for _ in range(LAYERS)))
        self.last = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, letters))

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        places = torch.arange(text.shape[1])
        return self.last(self.layers(self.letters(text) + self.places(places)))


arguments = parser("Train a small GPT on the language reference that comes with Python.")
arguments.add_argument("--steps", type=int, default=300)
arguments.add_argument("--autocast", choices=["bfloat16"], help="compute in this type where that is safe")
options = arguments.parse_args()

torch.set_num_threads(1)  # the workers share this machine's cores
torch.manual_seed(options.seed)
dist.init_process_group(options.backend)
rank, world_size = dist.get_rank(), dist.get_world_size()

text = "\n\n".join(topics[name] for name in sorted(topics))
alphabet = {letter: number for number, letter in enumerate(sorted(set(text)))}
letters = torch.tensor([alphabet[letter] for letter in text])
train, test = letters.tensor_split([len(letters) * 9 // 10])
test = test[: len(test) // 64 // CONTEXT * 64 * CONTEXT].view(64, -1)[:, : CONTEXT + 1]  # 64 pieces from all over it


def loss_of(model: nn.Module, pieces: torch.Tensor) -> torch.Tensor:
    """Cross entropy of each next letter. `pieces`: int64[batch, CONTEXT + 1]."""
    with torch.autocast("cpu", torch.bfloat16, enabled=options.autocast is not None):
        logits = model(pieces[:, :-1])
    return nn.functional.cross_entropy(logits.float().flatten(0, 1), pieces[:, 1:].flatten())


network = GPT(len(alphabet))
model = DistributedDataParallel(network)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=3e-3, total_steps=options.steps)
journal = Journal(options.json, "validation loss")
order = torch.Generator().manual_seed(1000 * options.seed + rank)

for step in range(1, options.steps + 1):
    starts = torch.randint(len(train) - CONTEXT, (max(1, BATCH // world_size), 1), generator=order)
    loss = loss_of(model, train[starts + torch.arange(CONTEXT + 1)])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
    journal.add(loss)
    if step % max(1, options.steps // 15) == 0 or step == options.steps:
        with torch.no_grad():
            metric = loss_of(network, test).item()
        journal.write(step, metric)

journal.end(network)
dist.destroy_process_group()

"""Handwritten digits with Lightning, which takes the backend by name in its strategy (needs: pip install lightning).

    python examples/lightning_digits.py --workers 4 --backend gloo
    python examples/lightning_digits.py --workers 4 --backend switchsum

Lightning starts the workers itself: no torchrun.
"""

import argparse

import lightning
import torch
from lightning.pytorch.strategies import DDPStrategy
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split


class Digits(lightning.LightningModule):
    """A small convolutional network and how it is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(
            nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.ReLU(), nn.Flatten(), nn.Linear(512, 10)
        )

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], _: int) -> torch.Tensor:
        images, labels = batch
        return nn.functional.cross_entropy(self.network(images), labels)

    def validation_step(self, batch: tuple[torch.Tensor, torch.Tensor], _: int) -> None:
        images, labels = batch
        logits = self.network(images)
        right = (logits.argmax(1) == labels).float().mean()
        losses = {"loss": nn.functional.cross_entropy(logits, labels), "accuracy": right}
        self.log_dict(losses, sync_dist=True)  # the mean over all workers, by a sum over the backend

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small network on scikit-learn's digits with Lightning.")
    parser.add_argument("--backend", default="gloo", help="name of a torch.distributed backend")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=5)
    options = parser.parse_args()

    torch.set_num_threads(1)  # the workers share this machine's cores
    lightning.seed_everything(1)
    pixels, labels = load_digits(return_X_y=True)
    images = torch.tensor(pixels / 16, dtype=torch.float32).reshape(-1, 1, 8, 8)
    train, test = random_split(TensorDataset(images, torch.tensor(labels)), [0.8, 0.2])
    batch = max(1, 64 // options.workers)

    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=options.workers,
        strategy=DDPStrategy(process_group_backend=options.backend),
        max_epochs=options.epochs,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Digits(), DataLoader(train, batch, shuffle=True), DataLoader(test, batch))
    if trainer.is_global_zero:
        end = {name: value.item() for name, value in trainer.callback_metrics.items()}
        print(
            f"step {trainer.global_step}: test loss {end['loss']:.4f}, accuracy {end['accuracy']:.4f} "
            f"over {torch.distributed.get_backend()}",
            flush=True,
        )


if __name__ == "__main__":
    main()

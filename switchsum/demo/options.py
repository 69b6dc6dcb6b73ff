"""What a person may choose about the demo, and what makes no sense to choose."""

from __future__ import annotations

from dataclasses import dataclass

from switchsum.p4src.layout import ELEMENT_CHOICES, MAX_WORKERS


class BadOption(ValueError):
    """One option's value cannot work; the text names the option, the value and the reason."""


@dataclass(frozen=True)
class DemoOptions:
    """Checked at construction; raises BadOption."""

    workers: int = 4
    loss: float = 0.01  # probability that the switch drops a packet, on the way in and again on the way out
    epochs: int = 10
    elements: int = 256  # per packet
    seed: int = 1
    timeout_s: float = 30.0  # how long anything may be waited for before it counts as failed

    def __post_init__(self) -> None:
        if self.workers < 2:
            raise BadOption(f"--workers {self.workers}: a sum needs at least 2 workers")
        if self.workers > MAX_WORKERS:
            raise BadOption(
                f"--workers {self.workers}: {MAX_WORKERS} is the limit, because each slot of the switch "
                f"remembers who has contributed in a bitmap of {MAX_WORKERS} bits"
            )
        if not 0.0 <= self.loss < 1.0:
            raise BadOption(
                f"--loss {self.loss:g}: must be at least 0 and below 1; it is the share of packets dropped, "
                "and at 1 nothing would ever arrive"
            )
        if self.epochs < 1:
            raise BadOption(f"--epochs {self.epochs}: must be at least 1")
        if self.elements not in ELEMENT_CHOICES:
            choices = ", ".join(map(str, ELEMENT_CHOICES))
            raise BadOption(f"--elements {self.elements}: the switch program is compiled for {choices} elements per packet")
        if not 0 <= self.seed < 2**32:
            raise BadOption(f"--seed {self.seed}: must be between 0 and {2**32 - 1}")
        if not 1.0 <= self.timeout_s <= 3600.0:
            raise BadOption(f"--timeout {self.timeout_s:g}: must be between 1 and 3600 seconds")

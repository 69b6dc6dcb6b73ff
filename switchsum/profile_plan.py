"""Which steps of a training are profiled, and how; told to its processes through an environment variable."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

DEFAULT_STEPS, DEFAULT_WARMUP, DEFAULT_TRACED = 20, 5, 5
LEAST_STEPS = 2  # for an interval
MOST_STEPS = 100_000


@dataclass(frozen=True)
class ProfilePlan:
    """Files go to `folder`. `steps` are timed, after `warmup` that are not, and `traced` come last. link_bps: of the worker's
    link, None if not known. notes: folder in which ranks tell the command what they did; None: there is no command, and they
    print it. Raises ValueError."""

    folder: Path
    name: str
    steps: int = DEFAULT_STEPS
    warmup: int = DEFAULT_WARMUP
    traced: int = DEFAULT_TRACED
    link_bps: float | None = None
    command: tuple[str, ...] = ()
    notes: Path | None = None

    def __post_init__(self) -> None:
        for what, least in (("steps", LEAST_STEPS), ("warmup", 2), ("traced", 1)):  # DDP makes its buckets after the first step
            value = getattr(self, what)
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= MOST_STEPS:
                raise ValueError(f"{what} {value!r}: must be a whole number from {least} to {MOST_STEPS}")
        if not isinstance(self.name, str) or self.name != name_like(self.name):
            raise ValueError(
                f"name {self.name!a}: must be 1 to 64 letters, digits, dots, dashes, plus signs and underscores, a letter or "
                "digit first"
            )
        if self.link_bps is not None and not 0 < self.link_bps <= 1e15:  # NaN fails, too
            raise ValueError(f"link_bps {self.link_bps!r}: must be above 0 and at most 1e15 bits a second")

    @property
    def counted(self) -> int:
        """Number of the step that is counted; the next one is skipped, since memory has to settle."""
        return self.warmup

    @property
    def first_timed(self) -> int:
        return self.warmup + 2

    @property
    def first_traced(self) -> int:
        """torch.profiler warms up in it, so the trace begins with the next one."""
        return self.first_timed + self.steps

    @property
    def end(self) -> int:
        """Number of the step at whose begin all is done."""
        return self.first_traced + 1 + self.traced

    @property
    def needed(self) -> int:
        """So many steps a training must make: step 0 begins when the second one has shown where steps end."""
        return self.end + 2

    def as_text(self) -> str:
        """What from_text() takes."""
        notes = None if self.notes is None else str(self.notes)
        return json.dumps({**vars(self), "folder": str(self.folder), "notes": notes})

    @classmethod
    def from_text(cls, text: str) -> ProfilePlan:
        found = json.loads(text)
        found |= {"folder": Path(found["folder"]), "command": tuple(found["command"])}
        return cls(**found | {"notes": None if found["notes"] is None else Path(found["notes"])})


def name_like(text: str) -> str:
    """A name for features that is as much like `text` as a name can be."""
    return re.sub(r"[^A-Za-z0-9._+-]", "-", text).lstrip("._+-")[:64] or "training"

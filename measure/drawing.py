"""A picture of a report, and the canvas that it is drawn on. Drawing needs matplotlib."""

from __future__ import annotations

import io
import os
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

os.environ.setdefault("MPLBACKEND", "Agg")

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_DPI = 130


@dataclass(frozen=True)
class Picture:
    """`name`: of its file, without ".png". `says`: sentences below it. `width`: in CSS pixels."""

    name: str
    title: str
    alt: str
    says: list[str]
    png: bytes

    @property
    def width(self) -> int:
        pixels = int.from_bytes(self.png[16:20], "big")  # of the chunk IHDR, which comes first
        return round(96 / _DPI * pixels)


def canvas(
    widths: Sequence[float], height: float, rows: int = 1, share_x: bool = False, share_y: bool = False
) -> tuple[Any, list[Axes]]:
    from matplotlib.figure import Figure as Canvas

    drawn_on = Canvas(figsize=(sum(widths), height), dpi=_DPI, layout="constrained")
    panels = drawn_on.subplots(rows, len(widths), squeeze=False, width_ratios=list(widths), sharex=share_x, sharey=share_y)
    return drawn_on, list(panels.flat)


def picture(name: str, title: str, alt: str, says: list[str], canvas: Any) -> Picture:
    canvas.suptitle(textwrap.fill(title, int(11 * canvas.get_figwidth())), fontsize=10)
    drawn = io.BytesIO()
    canvas.savefig(drawn, format="png", metadata={"Software": None})
    return Picture(name, title, alt, says, drawn.getvalue())

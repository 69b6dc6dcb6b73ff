"""An analysis as text for a terminal."""

from __future__ import annotations

from dataclasses import dataclass

from switchsum.measure import numerals
from switchsum.measure.analysis import Analysis, CollectiveRow, RankTimes

LEGEND = (
    "step = compute + input + exposed + unclassified + other; each moment counts once, in this order. exposed: nothing but "
    "communication ran; other: idle, or Python between operators. comm: any collective under way = exposed + hidden = wait + "
    "transfer. wait: a rank's duration of a collective less the shortest of all ranks.",
    "Two shares, of different things. exposed: of the step, what only communication took, waiting included. PAI: T_w / (T_d + "
    "T_c + T_w), as if nothing overlapped and nobody waited (arXiv 1910.05930).",
    "Means over steps; +-95%: half-width of the interval over steps (Student's t). all: mean over ranks of each step.",
)


@dataclass(frozen=True)
class _Column:
    title: str
    unit: str
    width: int


_TIMES = (
    ("step", "step_s"), ("compute", "compute_s"), ("input", "input_s"), ("exposed", "exposed_s"),
    ("unclass.", "unclassified_s"), ("other", "other_s"), ("comm", "communication_s"), ("hidden", "overlapped_s"),
    ("wait", "wait_s"), ("transfer", "transfer_s"),
)  # fmt: skip
_SHARES = (("exposed", "exposed_share"), ("PAI", "pai_share"))


def lines(analysis: Analysis) -> list[str]:
    """The table of ranks, that of collectives, what is unclassified, clocks, notes, and how to read it."""
    return [
        f"# {title(analysis)}",
        "#",
        *_ranks(analysis),
        *_collectives(analysis.collectives),
        *(f"# unclassified: {name}: {_ms(seconds)} ms a step" for name, seconds in analysis.unclassified.items()),
        "#",
        *(f"# {sentence}" for sentence in (*clock_sentences(analysis), *analysis.notes, *LEGEND, computation(analysis))),
    ]


def title(analysis: Analysis) -> str:
    """One line: how many ranks and steps, which backend."""
    ranks, steps = len(analysis.ranks), analysis.whole.steps
    numbers = f"{steps[0].number}" if len(steps) == 1 else f"{steps[0].number} to {steps[-1].number}"
    backend = f", {analysis.backend}" if analysis.backend else ""
    of = f" of {analysis.world_size}" if analysis.world_size and analysis.world_size != ranks else ""
    return (
        f"{analysis.source}: {ranks}{of} rank{'s' if ranks > 1 else ''}{backend}, {len(steps)} step"
        f"{'s' if len(steps) > 1 else ''} ({numbers})"
    )


def computation(analysis: Analysis) -> str:
    """What counts as computation in these traces."""
    if analysis.device:
        return (
            "compute: kernels of the GPU other than communication, and copies inside it; input: DataLoader, copies to the GPU."
        )
    return (
        "compute: operators on the threads that train (that of the steps, and those of autograd), nested ones once, without "
        "what issues or awaits a collective; input: DataLoader on these threads."
    )


def clock_sentences(analysis: Analysis) -> list[str]:
    """How far the ranks' clocks are apart, and how well the ends of collectives agree once that is taken off."""
    clocks = analysis.clocks
    if clocks is None:
        return []
    apart = max(clocks.offset_us.values()) - min(clocks.offset_us.values())
    return [
        f"clocks: ranks end the same collectives {_us(apart)} apart (median of {clocks.collectives}); with that taken off, "
        f"within {_us(clocks.residual_median_us)} (median; at most {_us(clocks.residual_largest_us)}). Durations need no "
        "common clock."
    ]


def _ranks(analysis: Analysis) -> list[str]:
    times = [_Column(title, "(ms)", 9) for title, _ in _TIMES]
    columns = [_Column("rank", "", 5), _Column("steps", "", 5), times[0], _Column("+-95%", "(ms)", 7), *times[1:]]
    for title_, _ in _SHARES:
        columns += [_Column(title_, "(%)", 7), _Column("+-95%", "", 5)]
    rows = [*analysis.ranks, *([analysis.over_ranks] if analysis.over_ranks and len(analysis.ranks) > 1 else [])]
    return [*_titles(columns), *(_line(columns, _cells(each)) for each in rows)]


def _cells(times: RankTimes) -> list[str]:
    figures = {name: times.figure(name) for _, name in (*_TIMES, *_SHARES)}
    first, *rest = (name for _, name in _TIMES)
    cells = ["all" if times.rank is None else str(times.rank), str(len(times.steps))]
    cells += [_ms(figures[first].mean), _ms(figures[first].ci95), *(_ms(figures[name].mean) for name in rest)]
    for _, name in _SHARES:
        figure = figures[name]
        cells += [f"{100 * figure.mean:.1f}", "-" if len(figure.runs) < 2 else f"{100 * figure.ci95:.1f}"]
    return cells


_COLLECTIVE = [
    _Column("collective", "", 22),
    _Column("ranks", "", 5),
    _Column("size", "(B)", 12),
    _Column("type", "", 9),
    _Column("a step", "", 6),
    _Column("time", "(ms)", 9),
    _Column("wait", "(ms)", 9),
    _Column("transfer", "(ms)", 9),
    _Column("algbw", "(GB/s)", 8),
    _Column("busbw", "(GB/s)", 8),
]


def _collectives(rows: list[CollectiveRow]) -> list[str]:
    if not rows:
        return ["#", "# no collectives"]
    return ["#", *_titles(_COLLECTIVE), *(_line(_COLLECTIVE, collective_cells(row)) for row in rows)]


def collective_cells(row: CollectiveRow) -> list[str]:
    """In the order of the table: name, ranks, size, type, a step, time, wait, transfer, algbw, busbw; "-": not known."""
    return [
        row.name if len(row.name) <= 40 else f"{row.name[:37]}...",
        "-" if row.ranks is None else str(row.ranks),
        "-" if row.size_bytes is None else f"{row.size_bytes:,}",
        row.dtype or "-",
        f"{row.a_step:.3g}",
        _ms(row.time_s),
        *("-" if value is None else _ms(value) for value in (row.wait_s, row.transfer_s)),
        *("-" if value is None else numerals.significant(value, 3) for value in (row.algbw, row.busbw)),
    ]


def _titles(columns: list[_Column]) -> list[str]:
    texts = (" ".join(f"{getattr(column, which):>{column.width}}" for column in columns) for which in ("title", "unit"))
    return [f"#{text[1:]}".rstrip() for text in texts]


def _line(columns: list[_Column], cells: list[str]) -> str:
    return " ".join(f"{cell:>{column.width}}" for cell, column in zip(cells, columns, strict=True))


def _ms(seconds: float) -> str:
    return numerals.significant(1e3 * seconds, 4) if abs(seconds) >= 5e-8 or seconds != seconds else "0"


def _us(microseconds: float) -> str:
    size, unit = numerals.microseconds(microseconds)
    return f"{numerals.significant(microseconds / size, 3)} {unit}"

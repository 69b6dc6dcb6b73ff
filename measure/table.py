"""The table, in the layout of nccl-tests: eyes and parsers that know it find their columns."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from switchsum.measure.rows import Row


@dataclass(frozen=True)
class _Column:
    title: str
    unit: str
    width: int  # text is right-aligned, one space between columns
    cell: Callable[[Row], str]


def _headline(digits: int) -> tuple[Callable[[Row], str], Callable[[Row], str]]:
    return (lambda row: _significant(row.headline.mean, digits)), (lambda row: _significant(row.headline.ci95, 2))


_TIME, _TIME_CI = (lambda row: _microseconds(row.time.mean)), (lambda row: _microseconds(row.time.ci95))
_RATE, _RATE_CI = _headline(4)
_PAYLOAD = (
    _Column("payload", "", 16, lambda row: row.payload),
    _Column("size", "(B)", 10, lambda row: str(row.size_bytes)),
)
_SPREAD = (
    _Column("p50", "(us)", 9, lambda row: _microseconds(row.p50)),
    _Column("p99", "(us)", 9, lambda row: _microseconds(row.p99)),
)
_LINK = (
    _Column("linkbw", "(GB/s)", 9, lambda row: _significant(row.linkbw)),
    _Column("link", "(%)", 5, lambda row: "-" if row.link_share is None else f"{100 * row.link_share:.1f}"),
)
_WORKER = _Column("worker", "(s/GB)", 8, lambda row: _significant(row.worker_cpu, 3))
_BUSY = _Column("busy", "(%)", 4, lambda row: f"{100 * row.busy:.0f}")
_LIMIT = _Column("limit", "", 5, lambda row: row.limited_by)
_WRONG = (_Column("#wrong", "", 6, lambda row: _or_dash(row.wrong)),)
_ALLREDUCE = (
    _Column("size", "(B)", 10, lambda row: str(row.size_bytes)),
    _Column("buffers", "", 7, lambda row: str(row.buffers)),
    _Column("type", "", 8, lambda row: row.dtype),
    _Column("redop", "", 5, lambda row: row.redop),
    _Column("transport", "", 15, lambda row: row.label),
    _Column("time", "(us)", 9, _TIME),
    _Column("+-95%", "(us)", 7, _TIME_CI),
    *_SPREAD,
    _Column("algbw", "(GB/s)", 9, lambda row: _significant(row.algbw)),
    _Column("busbw", "(GB/s)", 9, lambda row: _significant(row.busbw or 0.0)),
    *_LINK,
    *_WRONG,
    _Column("error", "", 7, lambda row: "-" if row.largest_error is None else _error(row.largest_error)),
    _WORKER,
    _Column("switch", "(s/GB)", 8, lambda row: "-" if row.switch_cpu is None else _significant(row.switch_cpu, 3)),
    _BUSY,
    _LIMIT,
)


def _calls(unit: str) -> tuple[_Column, ...]:
    rate = () if unit == "us" else (_Column("rate", f"({unit})", 8, _RATE), _Column("+-95%", "", 7, _RATE_CI))
    return (
        *_PAYLOAD,
        _Column("buffers", "", 7, lambda row: str(row.buffers)),
        _Column("transport", "", 15, lambda row: row.label),
        *rate,
        _Column("time", "(us)", 9, _TIME),
        _Column("+-95%", "(us)", 7, _TIME_CI),
        *_SPREAD,
        _Column("message", "(us)", 8, lambda row: "-" if row.serialize is None else _microseconds(row.serialize)),
        *_LINK,
        *_WRONG,
        _WORKER,
        _BUSY,
        _Column("resent", "", 6, lambda row: _or_dash(row.resent)),
        _LIMIT,
    )


_COLUMNS = {
    "allreduce": _ALLREDUCE,
    "p2p-latency": _calls("us"),
    "p2p-bandwidth": _calls("MB/s"),
    "ps-throughput": _calls("RPC/s"),
}
_RESOURCES = (
    *_PAYLOAD,
    _Column("transport", "", 15, lambda row: row.label),
    _Column("user", "(s)", 8, lambda row: f"{row.user_s:.2f}"),
    _Column("system", "(s)", 8, lambda row: f"{row.system_s:.2f}"),
    _Column("voluntary", "switches", 9, lambda row: str(row.voluntary_switches)),
    _Column("forced", "switches", 9, lambda row: str(row.involuntary_switches)),
    _Column("sent", "(MB)", 9, lambda row: f"{row.sent_bytes / 1e6:.1f}"),
    _Column("received", "(MB)", 9, lambda row: f"{row.received_bytes / 1e6:.1f}"),
    _Column("dropped", "", 7, lambda row: str(row.dropped)),
    _Column("resent", "", 7, lambda row: _or_dash(row.resent)),
)
BUSBW_NOTE = (
    "busbw = algbw * 2(n-1)/n, as nccl-tests defines it for sums made of messages between ranks. A switch that adds needs "
    "fewer bytes, so its busbw may exceed the link's rate; linkbw is what the busiest direction of a link carried."
)
CHECK_NOTE = (
    "--check: a server's verifying of acknowledged calls is in their time, and so is a worker's marking of a payload while "
    "other calls are under way; CPU seconds are those of verifying, too. Compare with rows of --check only."
)
COLUMNS_NOTE = (
    "time: mean over runs, with the half-width of its 95 % interval; p50, p99: over all operations. "
    "worker: CPU seconds a worker spends on a GB of its payload; switch: the switch on a GB; busy: of all cores. "
    "error: the largest distance of a number from the exact sum, relative to the sum of magnitudes. "
    "limit: what held the row back: link (90 to 105 % of its rate), burst (more: credit from the pause before), cpu (75 % of "
    "all cores, or 95 % of one by one process); - if nothing was full."
)


def header(title: str, benchmark: str) -> list[str]:
    """Lines before the first row."""
    return [f"# {title}", "#", *_titles(_COLUMNS[benchmark])]


def line(row: Row) -> str:
    """One row."""
    return _line(_COLUMNS[row.benchmark], row)


def _titles(columns: Sequence[_Column]) -> list[str]:
    titles = (" ".join(f"{getattr(column, which):>{column.width}}" for column in columns) for which in ("title", "unit"))
    return [f"#{text[1:]}".rstrip() for text in titles]


def _line(columns: Sequence[_Column], row: Row) -> str:
    return " ".join(f"{column.cell(row):>{column.width}}" for column in columns)


def resource_lines(rows: Sequence[Row]) -> list[str]:
    """A second table: what all processes of a row used, and what its links carried, over all runs."""
    told = "# what all workers and servers used in all runs, and what the links carried and dropped"
    return ["#", told, *_titles(_RESOURCES), *(f"#{_line(_RESOURCES, row)[1:]}" for row in rows)]


def footer(rows: Sequence[Row], notes: Iterable[str] = ()) -> list[str]:
    """Lines after the last row: nccl-tests' verdict, how to read the table, and `notes` about this run."""
    wrong = wrong_elements(rows)
    lost = [
        f"{row.transport} lost {row.lost} datagrams of the {row.size_bytes} B row: its time is of fewer bytes"
        for row in rows
        if row.lost
    ]
    if any(row.check and row.busbw is None for row in rows):
        notes = [*notes, CHECK_NOTE]
    sums = any(row.busbw is not None for row in rows)
    told = [*([BUSBW_NOTE] if sums else []), COLUMNS_NOTE, *notes, *lost]
    return [f"# Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}", "#", *(f"# {note}" for note in told)]


def stage_lines(rows: Sequence[Row], elements: int) -> list[str]:
    """A second table, of the rows whose stages were counted: nanoseconds a packet. `elements`: words a packet.

    `limit` of the same size, if it was measured, is put beside them: what its plain datagrams cost a worker's processor.
    """
    counted = [row for row in rows if row.stages]
    if not counted:
        return []
    names = [name for name in counted[0].stages or {} if name != "wait"]
    widths = [max(len(name), 6) for name in names]
    title = f"{'size (B)':>12} {'transport':>11} " + " ".join(f"{n:>{w}}" for n, w in zip(names, widths, strict=True))
    lines = [
        "#",
        "# where a worker's time goes: ns for one packet sent and one received (send includes waiting for a full link, every "
        "stage what other processes took of the core; in narrow lanes a packet carries 2 or 4 times the numbers)",
        f"#{title[1:]}  together  wait",
    ]
    for row in counted:
        stages = row.stages or {}
        cells = " ".join(f"{1e9 * stages[n]:{w}.0f}" for n, w in zip(names, widths, strict=True))
        together = sum(stages[name] for name in names)
        line = f"{row.size_bytes:>12} {row.transport:>11} {cells} {1e9 * together:9.0f} {1e9 * stages['wait']:5.0f}"
        limits = [each for each in rows if each.transport == "limit" and each.size_bytes == row.size_bytes]
        if limits:
            plain = limits[0].worker_cpu * elements * 4  # a packet carries so many bytes; CPU s/GB are ns/B
            own = 1e9 * sum(stages[name] for name in ("quantize", "pack", "parse", "dequantize"))
            line += f"  quantize + pack + parse + dequantize = {own:.0f}, {own / plain:.2f} x limit's {plain:.0f} in all"
        lines.append(line)
    return lines


def wrong_elements(rows: Sequence[Row]) -> int:
    """Of all rows and ranks."""
    return sum(row.wrong or 0 for row in rows)


def _microseconds(seconds: float) -> str:
    if math.isnan(seconds):
        return "-"
    micros = seconds * 1e6
    return f"{micros:.1f}" if micros < 1e5 else f"{micros:.0f}"


def _significant(value: float, digits: int = 4) -> str:
    if value == 0 or math.isnan(value):
        return "-" if value else "0"
    text = f"{value:#.{digits}g}".rstrip(".")
    return f"{value:.0f}" if "e+" in text else text


def _error(relative: float) -> str:
    return f"{relative:.1e}" if relative else "0"


def _or_dash(value: int | None) -> str:
    return "-" if value is None else str(value)

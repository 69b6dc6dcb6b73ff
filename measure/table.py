"""The table, in the layout of nccl-tests: eyes and parsers that know it find their columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from switchsum.measure.rows import Row

# (title, unit, width); a column's text is right-aligned, two spaces between columns.
_COLUMNS = (
    ("size", "(B)", 10),
    ("count", "(elements)", 10),
    ("type", "", 8),
    ("redop", "", 5),
    ("transport", "", 11),
    ("time", "(us)", 9),
    ("min", "(us)", 9),
    ("max", "(us)", 9),
    ("p50", "(us)", 9),
    ("p99", "(us)", 9),
    ("algbw", "(GB/s)", 9),
    ("busbw", "(GB/s)", 9),
    ("#wrong", "", 6),
    ("link up", "(GB/s)", 9),
    ("down", "(GB/s)", 9),
    ("link", "(%)", 5),
    ("worker", "(s/GB)", 7),
    ("switch", "(s/GB)", 7),
    ("busy", "(%)", 4),
    ("resent", "", 7),
    ("limit", "", 5),
)
BUSBW_NOTE = (
    "busbw = algbw * 2(n-1)/n, as nccl-tests defines it for sums made of messages between ranks. A switch that adds needs "
    "fewer bytes, so its busbw may exceed the link's rate; link up and down are what a worker's link carried."
)
COLUMNS_NOTE = (
    "time, min, max: median and range of the runs' medians; p50, p99: over all iterations; an iteration's time is the slowest "
    "rank's. worker: CPU seconds a worker spends on a GB of its tensor; switch: the switch on a GB of tensor; busy: of all "
    "cores. "
    "limit: what held the row back: link (90 to 105 % of its rate), burst (more: credit from the pause before), cpu (75 % of "
    "all cores, or 95 % of one by one process); - if nothing was full."
)


def header(title: str) -> list[str]:
    """Lines before the first row."""
    titles, units = (" ".join(f"{column[which]:>{column[2] + 1}}" for column in _COLUMNS) for which in (0, 1))
    return [f"# {title}", "#", f"#{titles[1:]}", f"#{units[1:]}"]


def line(row: Row) -> str:
    """One row."""
    cells = (
        str(row.size_bytes),
        str(row.count),
        row.dtype,
        row.redop,
        row.transport,
        *(_microseconds(seconds) for seconds in (row.time, row.fastest, row.slowest, row.p50, row.p99)),
        _significant(row.algbw),
        _significant(row.busbw),
        _or_dash(row.wrong),
        _significant(row.link_up),
        _significant(row.link_down),
        "-" if row.link_share is None else f"{100 * row.link_share:.1f}",
        _significant(row.worker_cpu, 3),
        "-" if row.switch_cpu is None else _significant(row.switch_cpu, 3),
        f"{100 * row.busy:.0f}",
        _or_dash(row.resent),
        row.limited_by,
    )
    return " ".join(f"{cell:>{column[2] + 1}}" for cell, column in zip(cells, _COLUMNS, strict=True))


def footer(rows: Sequence[Row], notes: Iterable[str] = ()) -> list[str]:
    """Lines after the last row: nccl-tests' verdict, how to read the table, and `notes` about this run."""
    wrong = wrong_elements(rows)
    lost = [
        f"{row.transport} lost {row.lost} datagrams of the {row.size_bytes} B row: its time is of fewer bytes"
        for row in rows
        if row.lost
    ]
    told = [BUSBW_NOTE, COLUMNS_NOTE, *notes, *lost]
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
    micros = seconds * 1e6
    return f"{micros:.1f}" if micros < 1e5 else f"{micros:.0f}"


def _significant(value: float, digits: int = 4) -> str:
    if value == 0:
        return "0"
    text = f"{value:#.{digits}g}".rstrip(".")
    return f"{value:.0f}" if "e+" in text else text


def _or_dash(value: int | None) -> str:
    return "-" if value is None else str(value)

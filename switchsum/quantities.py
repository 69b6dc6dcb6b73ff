"""How durations, rates and shares are written for people, in few columns."""

from __future__ import annotations


def duration(seconds: float) -> str:
    """ "7 s", "12 min", "3 h", "5 d": rounded down to the largest unit that fits."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return f"{int(seconds)} s"


def bit_rate(bits_per_s: float | None) -> str:
    """ "1.24 Gbit/s", three digits; "-" for None."""
    if bits_per_s is None:
        return "-"
    for size, unit in ((1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s")):
        if bits_per_s >= 0.9995 * size:
            value = bits_per_s / size
            return f"{value:.{max(3 - len(str(int(value))), 0)}f} {unit}"
    return f"{bits_per_s:.0f} bit/s"


def share(part: float | None) -> str:
    """ "0.8 %" of a part of 1; "-" for None."""
    return "-" if part is None else f"{100 * part:.1f} %"

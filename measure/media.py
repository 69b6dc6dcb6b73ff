"""Media that a step's bytes and operations pass, with their nominal rates as people write them."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# Links between hosts and inside them, in bytes a second; what a GPU computes and reads a second.
LINKS = ("ethernet", "pcie", "nvlink")
MEDIA = (*LINKS, "gpu", "memory")

MOST_SETTINGS = 1_000
_RATE = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)\s*([kMGTP]?)(bps|bit/s|B/s|FLOPS|FLOP/s)", re.ASCII)
_PREFIXES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_EXAMPLES = {"ethernet": "25Gbps", "pcie": "10GB/s", "nvlink": "50GB/s", "gpu": "11TFLOPS", "memory": "1TB/s"}


class BadSetting(ValueError):
    """A medium or rate that makes no sense; the text says which and what to write."""


@dataclass(frozen=True)
class Medium:
    """What one link gives: `latency_s` once for each round of a sum, then `bytes_per_s` times `efficiency`.

    bytes_per_s: nominal. burst_bytes: pass without waiting after a pause, as a token bucket lets them (0: none). Raises
    BadSetting.
    """

    name: str
    latency_s: float
    bytes_per_s: float
    efficiency: float = 1.0
    burst_bytes: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.latency_s < math.inf:
            raise BadSetting(f"{self.name}: latency {self.latency_s:g} s must be at least 0")
        if not 0 < self.bytes_per_s < math.inf:
            raise BadSetting(f"{self.name}: rate {self.bytes_per_s:g} bytes/s must be above 0")
        if not 0 < self.efficiency < math.inf:
            raise BadSetting(f"{self.name}: efficiency {self.efficiency:g} must be above 0")
        if not 0 <= self.burst_bytes < math.inf:
            raise BadSetting(f"{self.name}: burst {self.burst_bytes:g} bytes must be at least 0")

    @property
    def s_per_byte(self) -> float:
        return 1 / (self.bytes_per_s * self.efficiency)


def parse_rate(medium: str, text: str) -> float:
    """Of "25Gbps", "100Mbit/s", "10GB/s": bytes a second; of the gpu's "11TFLOPS": operations a second. Raises BadSetting."""
    match = _RATE.fullmatch(text.strip())
    if match is None or match[3].startswith("FLOP") != (medium == "gpu") or not float(match[1]):
        raise BadSetting(
            f"{medium}={text}: is no rate above 0 with its unit; write for example {medium}={_EXAMPLES[medium]} (k, M, G, T; "
            f"{'FLOPS' if medium == 'gpu' else 'bps is bits, B/s is bytes'})"
        )
    return float(match[1]) * _PREFIXES[match[2]] / (8 if match[3].startswith("b") else 1)


def parse(texts: Sequence[str]) -> dict[str, list[float]]:
    """Rates by medium of "ethernet=25Gbps,100Gbps" and the like. Raises BadSetting."""
    found: dict[str, list[float]] = {}
    for text in texts:
        name, equals, rates = (part.strip() for part in text.partition("="))
        if not equals or name not in MEDIA:
            raise BadSetting(
                f"{text!r} is not MEDIUM=RATE,RATE,...: write for example ethernet=25Gbps,100Gbps; media are {', '.join(MEDIA)}"
            )
        if name in found:
            raise BadSetting(f"{name} is set twice; write all its rates in one list, as in {name}={rates},...")
        found[name] = list(dict.fromkeys(parse_rate(name, rate) for rate in rates.split(",")))
    return found


def settings(rates: Mapping[str, Sequence[float]]) -> list[dict[str, float]]:
    """Every combination of one rate of each medium. Raises BadSetting if there are more than MOST_SETTINGS."""
    if math.prod(map(len, rates.values())) > MOST_SETTINGS:
        raise BadSetting(f"the rates make more than {MOST_SETTINGS} combinations; give fewer")
    return [dict(zip(rates, each, strict=True)) for each in itertools.product(*rates.values())]


def told(medium: str, rate: float) -> str:
    """ "25 Gbit/s", "10 GB/s", "11 TFLOPS"."""
    unit, value = {"gpu": ("FLOPS", rate), "ethernet": ("bit/s", 8 * rate)}.get(medium, ("B/s", rate))
    for prefix in ("P", "T", "G", "M", "k"):
        if value >= _PREFIXES[prefix]:
            return f"{value / _PREFIXES[prefix]:.6g} {prefix}{unit}"
    return f"{value:.6g} {unit}"

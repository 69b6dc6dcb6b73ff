"""What measurements say: the paper's findings looked for in them, lines through them, and figures with their intervals.

Nothing is claimed to differ unless the interval of the ratio excludes 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from switchsum.measure import formulas
from switchsum.measure.intervals import Ratio, ratio
from switchsum.measure.result_files import Measured, Setting
from switchsum.measure.rows import Figure
from switchsum.measure.straight_line import Line

# The slope of latency over bytes beside 1/bandwidth.
SLOPE_TOLERANCE = 0.10
_FEWEST_COUNTS = 3  # of buffers, for a line whose straightness can be judged


@dataclass(frozen=True)
class CountLine:
    """Latency (us, one way) over megabytes (1e6) of payloads that differ only in how many buffers of one size they have.

    bandwidth: the row of p2p-bandwidth that the slope is compared with: same transport, mode and link; of its payloads the
    largest. agreement: slope * bandwidth, 1 where both say the same.
    """

    setting: Setting
    label: str
    buffer_bytes: int
    measured: list[Measured]
    line: Line
    bandwidth: Measured | None
    agreement: Ratio | None

    @property
    def agrees(self) -> bool:
        return self.agreement is not None and abs(self.agreement.value - 1) <= SLOPE_TOLERANCE

    @property
    def verdict(self) -> str:
        """On the slope; it says so where the interval leaves it open."""
        if self.agreement is None:
            return "nothing to compare with, since p2p-bandwidth was not measured over this transport and link"
        told = f"{'' if self.agrees else 'not '}within {100 * SLOPE_TOLERANCE:.0f} %"
        low, high = 1 - SLOPE_TOLERANCE, 1 + SLOPE_TOLERANCE
        if self.agrees:
            return told if low <= self.agreement.low and self.agreement.high <= high else f"{told}, but its interval is wider"
        return told if self.agreement.high < low or self.agreement.low > high else f"{told}, but its interval reaches there"


def count_lines(measured: Sequence[Measured]) -> list[CountLine]:
    """One for each transport, mode, setting and buffer size of which p2p-latency has at least three counts."""
    groups: dict[tuple[Setting, str, int], list[Measured]] = {}
    for each in measured:
        if each.row.benchmark == "p2p-latency" and each.buffer_bytes is not None:
            groups.setdefault((each.setting, each.label, each.buffer_bytes), []).append(each)
    lines = []
    for (setting, label, buffer_bytes), members in groups.items():
        members.sort(key=lambda each: each.row.buffers)
        if len({each.row.buffers for each in members}) < _FEWEST_COUNTS:
            continue
        line = Line.through(
            [each.row.size_bytes / formulas.MEGA for each in members], [each.row.headline.mean for each in members]
        )
        rates = [
            each
            for each in measured
            if (each.row.benchmark, each.label, each.row.check) == ("p2p-bandwidth", label, setting.check)
            and each.series.link_rate_bps == setting.link_rate_bps
        ]
        bandwidth = max(rates, key=lambda each: each.row.size_bytes, default=None)
        agreement = None if bandwidth is None else _product(line, bandwidth.row.headline)
        lines.append(CountLine(setting, label, buffer_bytes, members, line, bandwidth, agreement))
    return lines


def _product(line: Line, rate: Figure) -> Ratio:
    """Of a slope (us/MB) and a bandwidth (MB/s), without a unit; their relative half-widths add up as squares."""
    value = line.slope * rate.mean / 1e6
    half = abs(value) * math.hypot(line.slope_ci95 / line.slope if line.slope else math.nan, rate.ci95 / rate.mean)
    return Ratio(value, value - half, value + half)


@dataclass(frozen=True)
class Compared:
    """`test` over `base`, the ratio of their headline figures. `above`: whether the finding is that it is more than 1."""

    test: Measured
    base: Measured
    ratio: Ratio
    above: bool

    @property
    def verdict(self) -> str:
        if not self.ratio.differs:
            return "no difference shown"
        return "reproduced" if (self.ratio.value > 1) == self.above else "the opposite"


def skew_against_uniform(measured: Sequence[Measured]) -> list[Compared]:
    """The paper: latency rises, and calls a second fall, from the uniform to the skewed payload."""
    found = []
    for benchmark, above in (("p2p-latency", True), ("ps-throughput", False)):
        for skew in measured:
            for uniform in measured:
                if (
                    skew.row.benchmark == uniform.row.benchmark == benchmark
                    and (skew.drawn.get("scheme"), uniform.drawn.get("scheme")) == ("skew", "uniform")
                    and (skew.setting, skew.label) == (uniform.setting, uniform.label)
                    and all(skew.drawn.get(name) == uniform.drawn.get(name) for name in ("iovec_count", "sizes"))
                ):
                    both = ratio(skew.row.headline.runs, uniform.row.headline.runs)
                    found.append(Compared(skew, uniform, both, above))
    return found


def message_time(each: Measured) -> Figure | None:
    """Microseconds of an operation that go into making messages, and buffers of messages; one way in p2p-latency."""
    halves = 2 if each.row.benchmark == "p2p-latency" else 1
    by_run = [1e6 * run.serialize_s / run.operations / halves for run in each.series.runs if run.serialize_s and run.operations]
    return Figure.of(by_run) if len(by_run) == len(each.series.runs) else None


@dataclass(frozen=True)
class Rates:
    """The time for making messages at two link rates, `test` over `base`."""

    test: Measured
    base: Measured
    ratio: Ratio


def message_time_over_rates(measured: Sequence[Measured]) -> list[Rates]:
    """The paper: serialization costs the same on every network. Each serialized p2p-latency at its lowest link rate beside the
    other rates."""
    groups: dict[object, list[Measured]] = {}
    for each in measured:
        if each.row.benchmark == "p2p-latency" and each.row.mode == "serialized" and message_time(each):
            groups.setdefault(each.row.key, []).append(each)
    found = []
    for members in groups.values():
        base, *others = sorted(members, key=lambda each: each.series.link_rate_bps or math.inf)
        for test in others:
            times = [message_time(each) for each in (test, base)]
            found.append(Rates(test, base, ratio(*(time.runs for time in times if time is not None))))
    return found


def algbw(each: Measured) -> Figure:
    """GB/s, by run."""
    return Figure.of([formulas.algbw(each.row.size_bytes, seconds) for seconds in each.row.time.runs])


def busbw(each: Measured) -> Figure:
    """GB/s, by run."""
    factor = formulas.bus_factor(each.row.workers)
    return Figure.of([factor * value for value in algbw(each).runs])


def linkbw(each: Measured) -> Figure:
    """GB/s that the busiest direction of a link carried, by run."""
    return Figure.of(
        [
            max(max(link.sent_bytes, link.received_bytes) for link in run.carried) / run.elapsed_s / formulas.GIGA
            for run in each.series.runs
        ]
    )


def cpu_cost(each: Measured) -> dict[str, Figure]:
    """CPU seconds on a GB of payload, by run: of one worker ("a worker"), of all servers, of the switch, where there are some.

    The GB is a worker's own; the servers' and the switch's is of all payload (of allreduce, of one worker's)."""
    series = each.series
    shares: dict[str, list[float]] = {}
    for run in series.runs:
        together = series.benchmark == "allreduce"
        moved_gb = series.size_bytes * (len(run.seconds[0]) if together else run.operations) / formulas.GIGA
        cpu = [used.user_s + used.system_s for used in run.usage]
        own_gb = moved_gb if together else moved_gb / series.workers
        shares.setdefault("a worker", []).append(sum(cpu[: series.workers]) / series.workers / own_gb)
        if series.servers:
            shares.setdefault("servers", []).append(sum(cpu[series.workers :]) / moved_gb)
        if run.switch_cpu_s is not None:
            shares.setdefault("switch", []).append(run.switch_cpu_s / moved_gb)
    return {who: Figure.of(values) for who, values in shares.items()}


def by_setting(measured: Iterable[Measured], benchmark: str) -> dict[Setting, list[Measured]]:
    """The rows of one benchmark that may stand in one picture."""
    groups: dict[Setting, list[Measured]] = {}
    for each in measured:
        if each.row.benchmark == benchmark:
            groups.setdefault(each.setting, []).append(each)
    return groups

"""A row of the table: the figures that follow from its samples."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from switchsum.measure import formulas
from switchsum.measure.samples import Series, total


@dataclass(frozen=True)
class Row:
    """Times in seconds, bandwidths in GB/s (1e9 bytes).

    time: median over the runs' medians, and their range. p50, p99: over all iterations. link_up, link_down: bytes that a
    worker's link carried for an iteration, mean over workers and iterations, / time. worker_cpu: CPU seconds that one worker
    spends on one GB of its tensor; switch_cpu: that the switch spends on one GB of tensor (of which every worker has one).
    busy: share of the machine's cores.
    """

    transport: str
    size_bytes: int
    count: int
    dtype: str
    redop: str
    time: float
    fastest: float
    slowest: float
    p50: float
    p99: float
    iterations: int
    runs: int
    algbw: float
    busbw: float
    wrong: int | None
    link_up: float
    link_down: float
    link_share: float | None
    worker_cpu: float
    switch_cpu: float | None
    busy: float
    resent: int | None
    lost: int
    limited_by: str
    stages: dict[str, float] | None  # seconds a packet, by stage, over all ranks; None where it was not asked for

    @classmethod
    def of(cls, series: Series) -> Row:
        medians = [statistics.median(turn.slowest_s) for turn in series.turns]
        times = series.times()
        elapsed = sum(times)
        moved_gb = series.size_bytes * len(times) / formulas.GIGA
        time = statistics.median(medians)
        up, down = (
            sum(pair[direction] for turn in series.turns for pair in turn.link_bytes) / series.ranks / len(times) / time
            for direction in (0, 1)
        )
        share = 8 * max(up, down) / series.link_rate_bps if series.link_rate_bps else None
        cpu = [sum(iteration[rank] for turn in series.turns for iteration in turn.cpu_s) for rank in range(series.ranks)]
        switch_cpu = total([turn.switch_cpu_s for turn in series.turns])
        busy = sum(turn.machine_busy_ticks for turn in series.turns) / max(1, sum(turn.machine_ticks for turn in series.turns))
        resent = total([turn.resent for turn in series.turns])
        algbw = formulas.algbw(series.size_bytes, time)
        return cls(
            transport=series.transport,
            size_bytes=series.size_bytes,
            count=series.count,
            dtype=series.dtype,
            redop=series.redop,
            time=time,
            fastest=min(medians),
            slowest=max(medians),
            p50=formulas.percentile(times, 0.5),
            p99=formulas.percentile(times, 0.99),
            iterations=len(times),
            runs=len(medians),
            algbw=algbw,
            busbw=algbw * formulas.bus_factor(series.ranks),
            wrong=series.wrong,
            link_up=up / formulas.GIGA,
            link_down=down / formulas.GIGA,
            link_share=share,
            worker_cpu=sum(cpu) / series.ranks / moved_gb,
            switch_cpu=None if switch_cpu is None else switch_cpu / moved_gb,
            busy=busy,
            resent=None if resent is None else int(resent),
            lost=sum(turn.lost for turn in series.turns),
            limited_by=formulas.limited_by(share, busy, max([*cpu, switch_cpu or 0.0]) / elapsed),
            stages=_stages(series),
        )


def _stages(series: Series) -> dict[str, float] | None:
    packets = sum(packets for _, packets in series.stages)
    if not packets:
        return None
    names = series.stages[0][0]
    return {name: sum(seconds[name] for seconds, _ in series.stages) / packets for name in names}

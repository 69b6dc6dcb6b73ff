"""A row of the table: the figures that follow from its samples."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from switchsum.measure import formulas, intervals
from switchsum.measure.samples import Run, Series, total


@dataclass(frozen=True)
class Figure:
    """A mean over runs with the half-width of its 95 % interval, and the runs' own values."""

    mean: float
    ci95: float
    runs: tuple[float, ...]

    @classmethod
    def of(cls, runs: Sequence[float]) -> Figure:
        return cls(statistics.fmean(runs), intervals.half_width(runs), tuple(runs))


@dataclass(frozen=True)
class Row:
    """Times in seconds, bandwidths in GB/s (1e9 bytes) and of p2p-bandwidth in MB/s (1e6 bytes).

    headline: what the benchmark is about, in `unit`: p2p-latency "us" (one way: half a round trip), p2p-bandwidth "MB/s",
    ps-throughput "RPC/s" of all workers together, allreduce "us" (the slowest worker's). time: an operation's mean (one way
    in p2p-latency); p50, p99, fastest, slowest: over all operations of all runs, where a sample stands for as many as it was
    chosen from. algbw, busbw: of sums; algbw of calls: all workers' payloads, one way, / elapsed time. linkbw: what the
    fullest link carried in its busier direction, / elapsed time; link_share: the largest share of its own rate that a link
    carried in a direction. An echo (p2p-latency) uses one direction after the other, so for it half of the elapsed time counts.
    worker_cpu: CPU seconds that one worker spends on one GB of its payload; switch_cpu: that the switch spends. busy: share of
    the machine's cores. user_s to system_s, sent, received, dropped, resent: of all processes (links) and all runs. colocated:
    where there are several hosts. check: whether every operation was verified.
    """

    benchmark: str
    transport: str
    mode: str
    payload: str
    size_bytes: int
    buffers: int
    dtype: str
    redop: str
    workers: int
    servers: int
    colocated: bool
    check: bool
    unit: str
    headline: Figure
    time: Figure
    fastest: float
    slowest: float
    p50: float
    p99: float
    operations: int
    algbw: float
    busbw: float | None
    linkbw: float
    link_share: float | None
    link_source: str
    serialize: float | None  # of an operation, on both sides together; part of its time
    wrong: int | None
    largest_error: float | None
    worker_cpu: float
    switch_cpu: float | None
    busy: float
    user_s: float
    system_s: float
    voluntary_switches: int
    involuntary_switches: int
    sent_bytes: int
    received_bytes: int
    dropped: int
    resent: int | None
    lost: int
    limited_by: str
    stages: dict[str, float] | None  # seconds a packet, by stage, over all ranks; None where it was not asked for

    @property
    def key(self) -> tuple[object, ...]:
        """What two rows of different files must share to be the same measurement."""
        who = (self.workers, self.servers, self.colocated)
        what = (self.payload, self.size_bytes, self.buffers, self.dtype, self.redop)
        return (self.benchmark, self.transport, self.mode, *what, *who, self.check)

    @property
    def label(self) -> str:
        """The transport as tables and pictures call it."""
        return f"{self.transport} {self.mode}" if self.mode == "serialized" else self.transport

    @classmethod
    def of(cls, series: Series) -> Row:
        together = series.benchmark in ("allreduce", "training")  # all workers take part in one operation
        halves = 2 if series.benchmark == "p2p-latency" else 1
        by_run = [_times(run, together, halves) for run in series.runs]
        by_run_weights = [_weights(run, together) for run in series.runs]
        times, weights = ([value for each in both for value in each] for both in (by_run, by_run_weights))
        time = Figure.of([statistics.fmean(each, of) for each, of in zip(by_run, by_run_weights, strict=True)])
        elapsed = sum(run.elapsed_s for run in series.runs)
        operations = sum(run.operations for run in series.runs)
        moved_gb = series.size_bytes * operations / formulas.GIGA
        # A worker's own share of what all of them moved one beside the other.
        by_worker_gb = moved_gb if together else moved_gb / series.workers
        # An echo fills one direction of a link after the other, each for half of the time.
        filling = elapsed / halves
        # With parameter servers not all links have the same to carry.
        by_link = [
            max(
                sum(getattr(run.carried[link], direction) for run in series.runs)
                for direction in ("sent_bytes", "received_bytes")
            )
            / filling
            for link in range(len(series.runs[0].carried))
        ]
        share = max((8 * each / rate for each, rate in zip(by_link, _rates(series), strict=True) if rate), default=None)
        cpu = [sum(run.usage[rank].user_s + run.usage[rank].system_s for run in series.runs) for rank in _ranks(series)]
        switch_cpu = total([run.switch_cpu_s for run in series.runs])
        busy = sum(run.machine_busy_ticks for run in series.runs) / max(1, sum(run.machine_ticks for run in series.runs))
        serialize = total([run.serialize_s for run in series.runs])
        resent = total([run.resent for run in series.runs])
        # Calls may be under way side by side.
        algbw = formulas.algbw(series.size_bytes, time.mean) if together else moved_gb / filling
        carried = [each for run in series.runs for each in run.carried]
        usage = [each for run in series.runs for each in run.usage]
        unit, headline = _headline(series, time)
        return cls(
            benchmark=series.benchmark,
            transport=series.transport,
            mode=series.mode,
            payload=series.payload,
            size_bytes=series.size_bytes,
            buffers=series.buffers,
            dtype=series.dtype,
            redop=series.redop,
            workers=series.workers,
            servers=series.servers,
            colocated=_colocated(series),
            check=series.check,
            unit=unit,
            headline=headline,
            time=time,
            fastest=min(times),
            slowest=max(times),
            p50=formulas.percentile(times, 0.5, weights),
            p99=formulas.percentile(times, 0.99, weights),
            operations=operations,
            algbw=algbw,
            busbw=algbw * formulas.bus_factor(series.workers) if together else None,
            linkbw=max(by_link) / formulas.GIGA,
            link_share=share,
            link_source=series.link_source,
            serialize=None if serialize is None else serialize / operations / halves,
            wrong=series.wrong,
            largest_error=series.largest_error,
            worker_cpu=sum(cpu[: series.workers]) / series.workers / by_worker_gb,
            switch_cpu=None if switch_cpu is None else switch_cpu / moved_gb,
            busy=busy,
            user_s=sum(each.user_s for each in usage),
            system_s=sum(each.system_s for each in usage),
            voluntary_switches=sum(each.voluntary_switches for each in usage),
            involuntary_switches=sum(each.involuntary_switches for each in usage),
            sent_bytes=sum(each.sent_bytes for each in carried),
            received_bytes=sum(each.received_bytes for each in carried),
            dropped=sum(each.dropped for each in carried),
            resent=None if resent is None else int(resent),
            lost=sum(run.lost for run in series.runs),
            limited_by=formulas.limited_by(share, busy, max([*cpu, switch_cpu or 0.0]) / elapsed),
            stages=_stages(series),
        )


def _ranks(series: Series) -> range:
    return range(series.workers + series.servers)


def _colocated(series: Series) -> bool:
    """Whether servers share hosts with workers; where all are on one host, as on loopback, no place was chosen."""
    shared = set(series.hosts[: series.workers]) & set(series.hosts[series.workers :])
    return bool(shared) and len(set(series.hosts)) > 1


def _times(run: Run, together: bool, halves: int) -> list[float]:
    if together:
        return run.slowest_s
    return [seconds / halves for worker in run.seconds for seconds in worker]


def _weights(run: Run, together: bool) -> list[float]:
    """Of each of _times(): how many operations it stands for. Each worker, and each run, chooses its samples by itself."""
    if together:
        return [1.0] * len(run.seconds[0])
    made = run.made or [len(worker) for worker in run.seconds]
    return [number / len(worker) for number, worker in zip(made, run.seconds, strict=True) for _ in worker]


def _rates(series: Series) -> list[int | None]:
    """Of each link of run.carried."""
    links = len(series.runs[0].carried)
    if not series.link_rates_bps:
        return [series.link_rate_bps] * links
    if series.link_source != "payload":
        return series.link_rates_bps[:links]
    numbers = sorted(set(series.hosts))
    return [series.link_rates_bps[numbers.index(host)] for host in series.hosts]


def _headline(series: Series, time: Figure) -> tuple[str, Figure]:
    if series.benchmark == "p2p-bandwidth":
        return "MB/s", Figure.of([series.size_bytes * run.operations / run.elapsed_s / formulas.MEGA for run in series.runs])
    if series.benchmark == "ps-throughput":
        return "RPC/s", Figure.of([run.operations / run.elapsed_s for run in series.runs])
    return "us", Figure.of([1e6 * seconds for seconds in time.runs])


def _stages(series: Series) -> dict[str, float] | None:
    packets = sum(packets for _, packets in series.stages)
    if not packets:
        return None
    names = series.stages[0][0]
    return {name: sum(seconds[name] for seconds, _ in series.stages) / packets for name in names}

"""The controller's Prometheus metrics (docs/metrics.md): what job service and switch tell when they are asked for."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from switchsum.controller.jobs import Cause, State
from switchsum.controller.service import Reading
from switchsum.controller.switch_keeper import Role
from switchsum.p4src.layout import RejectReason
from switchsum.protos import job_pb2 as pb

_READ_EVERY_S = 1.0  # however often, and by however many, the metrics are asked for


class ControllerCollector(Collector):
    """What one controller has to tell. Jobs that have ended are not told of, so there are never more than the switch holds."""

    def __init__(self, read: Callable[[], Reading]) -> None:
        """`read`: the running controller's reading()."""
        self._read = read
        self._lock = threading.Lock()
        self._latest: Reading | None = None
        self._read_at = 0.0

    def collect(self) -> Iterator[Metric]:
        """The present values; as quick as the switch, and never longer than Inspect may take."""
        with self._lock:
            if self._latest is None or time.monotonic() - self._read_at >= _READ_EVERY_S:
                self._latest = self._read()
                self._read_at = time.monotonic()
            reading = self._latest
        yield from _controller(reading)
        yield from _switch(reading)
        yield from _jobs([job for job in reading.report.jobs if job.state != State.ENDED.value])


def _controller(reading: Reading) -> Iterator[Metric]:
    report = reading.report
    yield InfoMetricFamily(
        "switchsum_controller",
        "The program that this controller keeps on its switch, and where that is.",
        {"pipeline": report.pipeline, "switch": report.switch_address},
    )
    states = Counter(job.state for job in report.jobs)
    yield _gauge(
        "jobs",
        "Jobs by state.",
        ["state"],
        {(state.value,): states[state.value] for state in State if state is not State.ENDED},
    )
    yield _gauge("slots", "Slots that the switch has.", [], {(): report.slots_total})
    yield _gauge("slots_free", "Slots that no job holds.", [], {(): report.slots_free})
    yield _counter(
        "epochs_ended",
        "Epochs of jobs that ended, by cause.",
        ["cause"],
        {(cause.name.lower(),): reading.epochs_ended.get(cause.name, 0) for cause in Cause},
    )
    yield _counter(
        "joins_refused",
        "Joins that were refused, or waited in vain.",
        ["reason"],
        {(label,): number for label, number in reading.joins_refused.items()},
    )


def _switch(reading: Reading) -> Iterator[Metric]:
    report = reading.report
    yield _gauge(
        "election_role",
        "1 for what this controller is to its switch, 0 for what it is not.",
        ["role"],
        {(role.value,): role is reading.role for role in Role},
    )
    up = not report.switch_problem
    yield _gauge("switch_up", "Whether the switch serves jobs and tells its counters.", [], {(): up})
    yield _counter("reconcile_updates", "Updates that made the switch hold what it should.", [], {(): reading.updates_written})
    # A switch that does not tell them has not lost them: 0 would be read as a new beginning.
    rejected: dict[tuple[str, ...], float]
    rejected = {(reason.name.lower(),): report.rejected.get(reason.name, 0) for reason in RejectReason} if up else {}
    yield _counter("rejected_packets", "Packets that the switch refused for every job.", ["reason"], rejected)
    simulated: dict[tuple[str, ...], float] = {}
    for direction, by_port in (("in", report.dropped_in), ("out", report.dropped_out)):
        simulated |= {(str(port), direction): dropped for port, dropped in sorted(by_port.items())}
    yield _counter("simulated_drops", "Packets that the switch dropped on purpose.", ["port", "direction"], simulated)


def _jobs(jobs: list[pb.JobReport]) -> Iterator[Metric]:
    """One of a name, the later one: another that is being taken off may still have it."""
    told = {(job.job_name, job.tenant): job for job in jobs}
    labels = ["job", "tenant"]

    def of_jobs(name: str, help_text: str, value: Callable[[pb.JobReport], float]) -> Metric:
        return _gauge(f"job_{name}", help_text, labels, {key: value(job) for key, job in told.items()})

    yield of_jobs("slots", "Slots that the job holds.", lambda job: job.slots)
    yield of_jobs("workers", "Ranks that have joined.", lambda job: len(job.workers))
    yield of_jobs("epoch", "The job's epoch; 0 while it forms.", lambda job: job.epoch)
    yield of_jobs("age_seconds", "Since the first rank joined.", lambda job: job.age_s)
    yield of_jobs("idle_seconds", "Since a rank told of a finished sum.", lambda job: job.idle_s)
    workers = [((*key, str(worker.rank)), worker) for key, job in told.items() for worker in job.workers]
    running = [(key, worker) for key, worker in workers if told[key[:2]].running]
    yield _gauge(
        "lease_left_seconds",
        "Until the rank counts as lost, if it does not report before.",
        [*labels, "rank"],
        {key: worker.lease_left_s for key, worker in running},
    )
    yield _counter(
        "packets",
        "A rank's packets, by the switch's verdict.",
        [*labels, "rank", "verdict"],
        {(*key, verdict.lower()): packets for key, worker in running for verdict, packets in worker.verdicts.items()},
    )


def _gauge(name: str, help_text: str, labels: list[str], values: Mapping[tuple[str, ...], float]) -> Metric:
    family = GaugeMetricFamily(f"switchsum_controller_{name}", help_text, labels=labels)
    for key, value in values.items():
        family.add_metric(key, value)
    return family


def _counter(name: str, help_text: str, labels: list[str], values: Mapping[tuple[str, ...], float]) -> Metric:
    family = CounterMetricFamily(f"switchsum_controller_{name}", help_text, labels=labels)
    for key, value in values.items():
        family.add_metric(key, value)
    return family

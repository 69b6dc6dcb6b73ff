"""Stages of `switchsum validate`: calibrate, profile, predict, and only then run what was predicted."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from switchsum import bench_grounds
from switchsum.bench_run import Screen
from switchsum.failures import CommandFailed
from switchsum.measure import environment, media, result_files
from switchsum.measure.allreduce import AllReduce
from switchsum.measure.calibration import BadCalibration, Calibration
from switchsum.measure.costs import Cluster
from switchsum.measure.crew import BenchmarkFailed
from switchsum.measure.experiment import Case, Plan, Way
from switchsum.measure.features import BadFeatures, Features, of_job
from switchsum.measure.manifest import Buffer
from switchsum.measure.prediction import CannotPredict, Ground
from switchsum.measure.results import Results
from switchsum.measure.rows import Row
from switchsum.measure.samples import Series
from switchsum.measure.training import Profiles, Training
from switchsum.measure.transports import DESCRIPTIONS
from switchsum.measure.validation import PROFILED, TRANSPORTS, Forecast, Measured, Point, Validation

if TYPE_CHECKING:
    from switchsum.bmv2_topologies.rack_file import RackFile
    from switchsum.measure.experiment import Experiment

WORKER_MODULE = "switchsum.training_worker"
CALIBRATION, FEATURES, FORECASTS = "calibration.json", "features", "forecasts.json"
# Up to a model's gradients; small ones for the latency alone, and enough to tell how far the fit is from them.
_CALIBRATED_BYTES = (4 << 10, 256 << 10, 1 << 20, 2 << 20, 4 << 20)
_WARMUP_S = 2.0


@dataclass(frozen=True)
class Terms:
    """What a person chose. `rack`: with links of the rate at which everything is calibrated and profiled; `rates`: by name as
    given, with each rack that is predicted; `duration_s`: of a run."""

    rack: RackFile
    rates: dict[str, RackFile]
    workloads: Sequence[str]
    architectures: Sequence[str]
    servers: int
    colocated: bool
    repeat: int
    duration_s: float
    steps: int
    seed: int
    timeout_s: float
    bmv2: str

    @property
    def rack_rate(self) -> str:
        return media.told("ethernet", rate_of(self.rack) / 8)

    @property
    def cluster(self) -> Cluster:
        return Cluster(len(self.rack.workers), self.servers, dedicated=not self.colocated)

    def plan(self, architectures: Sequence[str], cases: Sequence[Case]) -> Plan:
        chosen = [DESCRIPTIONS[TRANSPORTS[name]] for name in architectures]
        return Plan(
            ways=[Way(each.name, "", each.needs_switch, each.compiled) for each in chosen],
            cases=cases,
            workers=len(self.rack.workers),
            servers=self.servers if "ps" in architectures else 0,
            elements=self.rack.elements,
            repeat=self.repeat,
            duration_s=self.duration_s,
            warmup_s=min(_WARMUP_S, self.duration_s),
            seed=self.seed,
            timeout_s=self.timeout_s,
        )


def rate_of(rack: RackFile) -> float:
    """Of every link, bits a second. Raises CommandFailed where they differ or have none."""
    rates = {worker.link.rate_bps for worker in rack.workers}
    if len(rates) != 1 or None in rates:
        raise CommandFailed(
            "the model knows one rate for all links, but this rack's differ or have none; say --calibrate and --rate",
            bench_grounds.EXIT_MISUSED,
        )
    (rate_bps,) = rates
    assert rate_bps is not None
    return float(rate_bps)


def calibrate(terms: Terms, output: Path, screen: Screen) -> Calibration:
    """What `switchsum bench allreduce` measures in that rack; it is left in `output`. Raises CommandFailed."""
    cases = [Case(str(size), [Buffer(size, "float32")]) for size in _CALIBRATED_BYTES]
    plan = terms.plan(terms.architectures, cases)
    machine = environment.describe()
    with _stage(terms, plan, terms.rack, screen, None) as (ground, _):
        experiment = AllReduce(plan, ground.crews, screen.told, lambda _: None)
        series = _run(experiment)
    results = Results(
        benchmark="allreduce",
        title=f"calibration of switchsum validate: {ground.title}",
        arguments={"repeat": plan.repeat, "duration": plan.duration_s},
        environment=machine,
        rows=[Row.of(each) for each in series],
        series=series,
        links=ground.links,
    )
    results.save(output / CALIBRATION)
    try:
        return Calibration.of(result_files.find(output / CALIBRATION))
    except BadCalibration as error:
        raise CommandFailed(str(error)) from error


def profile(terms: Terms, output: Path, screen: Screen) -> list[Features]:
    """Each workload over a ring, by `switchsum profile`; features of all ranks are left in `output`. Raises CommandFailed."""
    plan = terms.plan([PROFILED], [Case(name, []) for name in terms.workloads])
    found = []
    with _stage(terms, plan, terms.rack, screen, WORKER_MODULE) as (ground, folder):
        experiment = Profiles(plan, ground.crews, screen.told, lambda _: None, folder=folder, steps=terms.steps)
        _run(experiment)
        (output / FEATURES).mkdir()
        for name in terms.workloads:
            try:
                found.append(of_job(folder / name))
            except BadFeatures as error:
                raise CommandFailed(f"{name} left no features that can be used: {error}") from error
            found[-1].save(output / FEATURES / f"{name}.json")
    return found


def forecast(terms: Terms, features: Sequence[Features], calibration: Calibration) -> list[Forecast]:
    """Of every workload, architecture and rate, in the order in which they are run. Raises CommandFailed."""
    found = []
    for rack in terms.rates.values():
        burst_bytes = float(rack.burst_of(rack.workers[0].link))
        ground = Ground(calibration, burst_bytes=burst_bytes, one_machine=True)
        for job in features:
            for architecture in terms.architectures:
                try:
                    found.append(Forecast.of(job, architecture, rate_of(rack), terms.cluster, ground))
                except (CannotPredict, BadCalibration) as error:
                    raise CommandFailed(f"{job.name} over {architecture}: {error}") from error
    return found


def measure(terms: Terms, validation: Validation, screen: Screen, measured: Callable[[Point], None]) -> None:
    """Run what was predicted, rate by rate. `measured` hears of each point. Raises CommandFailed."""
    for rack in terms.rates.values():
        cases = [Case(job.name, [Buffer(each.size_bytes, each.dtype) for each in job.buckets]) for job in validation.features]
        plan = terms.plan(terms.architectures, cases)
        waiting = {
            (each.workload, TRANSPORTS[each.architecture]): each
            for each in validation.forecasts
            if each.rate_bps == rate_of(rack)
        }

        def heard(series: Series, waiting: dict[tuple[str, str], Forecast] = waiting) -> None:
            row = Row.of(series)
            validation.points.append(Point(waiting[row.payload, row.transport], Measured.of(row)))
            measured(validation.points[-1])

        with _stage(terms, plan, rack, screen, WORKER_MODULE) as (ground, _):
            validation.notes += [note for note in ground.notes if note not in validation.notes]
            _run(Training(plan, ground.crews, screen.told, heard))


@contextmanager
def _stage(
    terms: Terms, plan: Plan, rack: RackFile, screen: Screen, module: str | None
) -> Iterator[tuple[bench_grounds.Ground, Path]]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="switchsum-validate-")))
        ground = bench_grounds.in_racks(plan, rack, terms.colocated, terms.bmv2, folder, stack, screen.told, module)
        yield ground, folder


def _run(experiment: Experiment) -> list[Series]:
    try:
        return experiment.run()
    except BenchmarkFailed as error:
        raise CommandFailed(str(error)) from error


def as_arguments(terms: Terms) -> dict[str, Any]:
    """For JSON."""
    rest = {name: value for name, value in vars(terms).items() if name not in ("rack", "rates")}
    return {**rest, "rates_bps": [rate_of(rack) for rack in terms.rates.values()], "calibrated_bps": rate_of(terms.rack)}

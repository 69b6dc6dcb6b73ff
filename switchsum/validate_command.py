"""`switchsum validate`: predict small trainings on other links and architectures, run them, and tell how wrong it was."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from switchsum import bench_grounds
from switchsum.bench_command import BENCH_MODULES, DEDICATED, PLACEMENTS
from switchsum.bench_grounds import EXIT_MISUSED, SWITCH_MODULES
from switchsum.bench_run import Screen
from switchsum.failures import CommandFailed, require, terminated_like_interrupted

if TYPE_CHECKING:
    from switchsum.bmv2_topologies.rack_file import RackFile
    from switchsum.measure.validation import Point, Validation
    from switchsum.validate_run import Terms

PAGE, JSON_FILE, CSV_FILE = "index.html", "validation.json", "points.csv"
_RATES = ("50M", "100M", "200M", "400M")
_CALIBRATED = "100M"
# Deeper than the benchmarks': several workers that push to one server at once fill a shallow queue, and TCP's time-outs after
# that depend on chance, which no model predicts.
_QUEUE_BYTES = 4 << 20
_LEAST_RUNS, _MOST_RUNS = 2, 100


def validate(
    rack: Annotated[Path, typer.Option(help="The rack's YAML file, 2 workers at least; needs root.")],
    output: Annotated[Path, typer.Option(help="A new folder for the page, pictures, points and everything behind them.")],
    calibrate: Annotated[
        str, typer.Option(help="Rate of every link at which sums are measured and trainings are profiled.")
    ] = _CALIBRATED,
    rate: Annotated[
        list[str] | None,
        typer.Option(help="Rates to predict, and then to run; may be repeated.  [default: 50M, 100M, 200M, 400M]"),
    ] = None,
    workload: Annotated[
        list[str] | None,
        typer.Option(
            help="Of convolution, translation, language, speech, recommendation, graph; may be repeated.  [default: all]",
            metavar="NAME",
        ),
    ] = None,
    arch: Annotated[str, typer.Option(help="Architectures, with commas between, ring among them.")] = "ps,ring,switch",
    servers: Annotated[
        int | None, typer.Option(help="Parameter servers.  [default: half as many as workers; if colocated, as many]")
    ] = None,
    placement: Annotated[
        str, typer.Option(help="Parameter servers on the workers' hosts (colocated), or dedicated.")
    ] = DEDICATED,
    repeat: Annotated[int, typer.Option(help="Runs of each point.")] = 5,
    duration: Annotated[float, typer.Option(help="Seconds of a run; at least 4 steps are taken.")] = 2.0,
    steps: Annotated[int, typer.Option(help="Steps of a profile.")] = 20,
    seed: Annotated[int, typer.Option(help="Start of models and data.")] = 0,
    timeout: Annotated[float, typer.Option(help="Seconds that anything may be waited for.")] = 120.0,
    bmv2: Annotated[str, typer.Option(envvar="SWITCHSUM_BMV2", help="simple_switch_grpc, for racks that want it.")] = "",
) -> None:
    """Hold the model of `switchsum whatif` against six small trainings in an emulated rack.

    Sums alone are measured at one link rate, trainings are profiled there over a ring, steps are predicted for all rates and
    architectures, and only then run. Files are left in the output folder, what was measured until then even if it is
    interrupted. All of it takes half an hour, in which the machine should do nothing else. The exit status is 1 if ranks ended
    with different weights.
    """
    require("validate", {**BENCH_MODULES, **SWITCH_MODULES, "matplotlib": "demo"})
    terms = _terms(
        _rack(rack, calibrate, "--calibrate"),
        {each: _rack(rack, each, "--rate") for each in dict.fromkeys(rate or _RATES)},
        workload,
        arch,
        servers,
        placement,
        repeat,
        duration,
        steps,
        seed,
        timeout,
        bmv2,
    )
    try:
        output.mkdir()
    except FileExistsError:
        raise CommandFailed(f"--output {output} exists already: name a new folder", EXIT_MISUSED) from None
    except OSError as error:
        raise CommandFailed(f"--output {output} cannot be made: {error.strerror}", EXIT_MISUSED) from error
    with terminated_like_interrupted(), Screen() as screen:
        wrong = _validate(terms, output, screen)
    raise typer.Exit(1 if wrong else 0)


def _validate(terms: Terms, output: Path, screen: Screen) -> int:
    """Returns how many weights differed between ranks."""
    from switchsum import validate_run
    from switchsum.measure import environment, validation_table
    from switchsum.measure.validation import Validation

    machine = environment.describe()
    screen.show(
        f"# switchsum validate: {len(terms.rack.workers)} workers, {terms.servers} parameter servers, {terms.repeat} runs"
    )
    calibration = validate_run.calibrate(terms, output, screen)
    screen.show(f"# calibrated at {terms.rack_rate} ({output / validate_run.CALIBRATION})")
    features = validate_run.profile(terms, output, screen)
    screen.show(f"# profiled {', '.join(terms.workloads)} ({output / validate_run.FEATURES})")
    forecasts = validate_run.forecast(terms, features, calibration)
    forecasts_file = output / validate_run.FORECASTS
    forecasts_file.write_text(json.dumps([asdict(each) for each in forecasts], indent=1, allow_nan=False) + "\n")
    screen.show(f"# {len(forecasts)} forecasts, written before anything of them is run ({forecasts_file})")
    screen.show(f"#\n{validation_table.head()}")
    found = Validation(validate_run.as_arguments(terms), machine, calibration.as_json(), features, forecasts)

    def measured(point: Point) -> None:
        screen.show(validation_table.line(point))

    try:
        validate_run.measure(terms, found, screen, measured)
    finally:
        if found.points:
            _write(found, output)
            screen.show("#")
            for sentence in validation_table.summary(found):
                screen.show(f"# {sentence}")
            screen.show(f"# {output / PAGE}")
    return sum(point.measured.wrong for point in found.points)


def _write(found: Validation, output: Path) -> None:
    from switchsum.measure import validation_page, validation_pictures
    from switchsum.measure.validation import write_csv

    try:
        found.save(output / JSON_FILE)
        with (output / CSV_FILE).open("w", newline="") as opened:
            write_csv(opened, found.points)
        pictures = [validation_pictures.scatter(found)]
        if found.predicted:
            pictures.append(validation_pictures.errors(found))
        for picture in pictures:
            (output / f"{picture.name}.png").write_bytes(picture.png)
        (output / PAGE).write_text(validation_page.render(found, pictures), encoding="utf-8")
    except OSError as error:
        raise CommandFailed(f"{error.filename or output} cannot be written: {error.strerror}") from error


def _rack(file: Path, rate: str, option: str) -> RackFile:
    return bench_grounds.described_rack(file, None, rate, None, None, None, _QUEUE_BYTES, option)


def _terms(
    rack: RackFile,
    rates: dict[str, RackFile],
    workloads: list[str] | None,
    arch: str,
    servers: int | None,
    placement: str,
    repeat: int,
    duration: float,
    steps: int,
    seed: int,
    timeout: float,
    bmv2: str,
) -> Terms:
    """Raises CommandFailed."""
    from switchsum.measure.validation import KINDS, PROFILED, TRANSPORTS
    from switchsum.profile_plan import LEAST_STEPS
    from switchsum.validate_run import Terms, rate_of

    architectures = list(dict.fromkeys(name.strip() for name in arch.split(",")))
    for option, names, known in (("--arch", architectures, TRANSPORTS), ("--workload", workloads or [], KINDS)):
        for name in names:
            if name not in known:
                raise CommandFailed(f"{option} {name}: there are {', '.join(known)}", EXIT_MISUSED)
    if PROFILED not in architectures:
        raise CommandFailed(f"--arch {arch}: trainings are profiled over a {PROFILED}; add it", EXIT_MISUSED)
    if placement not in PLACEMENTS:
        raise CommandFailed(f"--placement {placement}: must be {' or '.join(PLACEMENTS)}", EXIT_MISUSED)
    number, colocated = len(rack.workers), placement != DEDICATED
    if number < 2:
        raise CommandFailed("one worker has nothing to sum with: the rack needs 2 at least", EXIT_MISUSED)
    chosen = (number if colocated else max(1, number // 2)) if servers is None else servers
    if not 1 <= chosen <= number:
        raise CommandFailed(f"--servers {chosen}: must be from 1 to the number of workers, {number}", EXIT_MISUSED)
    if not _LEAST_RUNS <= repeat <= _MOST_RUNS:
        raise CommandFailed(
            f"--repeat {repeat}: must be from {_LEAST_RUNS} to {_MOST_RUNS}; an interval needs two", EXIT_MISUSED
        )
    if not 0 < duration <= 600:
        raise CommandFailed(f"--duration {duration:g}: must be above 0 and at most 600 seconds", EXIT_MISUSED)
    if not LEAST_STEPS <= steps <= 1000:
        raise CommandFailed(f"--steps {steps}: must be from {LEAST_STEPS} to 1000", EXIT_MISUSED)
    if not 1 <= timeout <= 3600:
        raise CommandFailed(f"--timeout {timeout:g}: must be from 1 to 3600 seconds", EXIT_MISUSED)
    seen: dict[float, str] = {}
    for name, each in rates.items():
        other = seen.setdefault(rate_of(each), name)
        if other != name:
            raise CommandFailed(f"--rate {name} and --rate {other} are the same", EXIT_MISUSED)
    return Terms(
        rack,
        rates,
        workloads or list(KINDS),
        architectures,
        chosen,
        colocated,
        repeat,
        duration,
        steps,
        seed,
        timeout,
        bmv2,
    )

"""`switchsum whatif`: what other links, architectures and workers would make of a job, and what to do about it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from switchsum.bench_grounds import EXIT_MISUSED
from switchsum.failures import CommandFailed, require
from switchsum.printable import printable
from switchsum.written_files import require_folders

if TYPE_CHECKING:
    from switchsum.measure.costs import Cluster
    from switchsum.measure.features import Features
    from switchsum.measure.prediction import Ground

PLACEMENTS = ("colocated", "dedicated")
_USUAL = ("ps", "ring", "switch")
_INSIDE = "10GB/s"  # taken of pcie where nothing is said; every use says so
_MOST_SLOTS = 1_000_000
_LONGEST_RTT_US = 1e6


def whatif(
    job: Annotated[
        Path,
        typer.Argument(
            metavar="FEATURES", help="A job's features: a file, or the folder of all ranks that `switchsum profile` wrote."
        ),
    ],
    arch: Annotated[
        str | None,
        typer.Option(
            help="Of ps, ring, hierarchical, switch, switch16, switch8 (narrow lanes), with commas between.  [default: "
            "ps,ring,switch, or those of them that are calibrated]"
        ),
    ] = None,
    set_rates: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="MEDIUM=RATE,...",
            help="Rates to predict for: ethernet (a host's link), pcie, nvlink, gpu, memory; such as ethernet=25Gbps,100Gbps. "
            "May be given for several media: all combinations count.  [default: ethernet as measured]",
        ),
    ] = None,
    workers: Annotated[
        str | None, typer.Option(help="Numbers of workers, with commas between; 4,...,4096 doubles.  [default: the job's]")
    ] = None,
    servers: Annotated[
        int | None, typer.Option(help="Parameter servers of ps.  [default: as many as hosts; if dedicated, 1]")
    ] = None,
    placement: Annotated[
        str, typer.Option(help="Parameter servers on the workers' hosts (colocated), or dedicated.")
    ] = "colocated",
    per_host: Annotated[
        int | None,
        typer.Option(
            help="Workers that share a host and its link; more than 1 sum over nvlink or pcie.  [default: all, of a job that "
            "is on one host now; else 1]"
        ),
    ] = None,
    racks: Annotated[int, typer.Option(help="Racks, each with a switch; hosts fill them evenly.")] = 1,
    oversubscription: Annotated[
        float, typer.Option(help="How many times less a rack's link upwards carries than its hosts could send.")
    ] = 1.0,
    calibration: Annotated[
        Path | None, typer.Option(help="Results of `switchsum bench allreduce --json`: a file, or a folder of them.")
    ] = None,
    efficiency: Annotated[
        float | None,
        typer.Option(help="Share of every nominal rate that is reached, such as 0.7; instead of a calibration, or of its own."),
    ] = None,
    slots: Annotated[int, typer.Option(help="Slots of the switch that the job has.")] = 512,
    rtt: Annotated[
        float | None,
        typer.Option(help="Microseconds of a packet to the switch and back.  [default: the calibrated latency, which is more]"),
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write predictions, verdicts and assumptions here.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the speed-up over link rate and workers here, as a PNG.")] = None,
    page: Annotated[Path | None, typer.Option(help="Write all of it here, as one self-contained page of HTML.")] = None,
) -> None:
    """Predict a job's step under other architectures, links and numbers of workers, and say whether a switch would help.

    Prints a table with bounds and intervals, a verdict on each architecture (a gain, or none, and why), advice in the order
    measure, change the software, try small, buy, and all assumptions. Nothing is measured: it takes seconds.
    """
    for option, path in (("--plot", plot), ("--page", page)):
        if path is not None:
            require(f"whatif {option}", {"matplotlib": "demo"})
    require_folders(json_file, plot, page)
    if plot is not None and plot.suffix != ".png":
        raise CommandFailed(f"--plot {plot}: the picture is a PNG; let its name end in .png", EXIT_MISUSED)
    from switchsum.measure import advice, media, whatif_table
    from switchsum.measure import whatif as studies
    from switchsum.measure.calibration import BadCalibration
    from switchsum.measure.costs import BadCluster
    from switchsum.measure.features import BadFeatures, of_job
    from switchsum.measure.media import BadSetting
    from switchsum.measure.prediction import CannotPredict
    from switchsum.measure.results import BadResults

    try:
        features = of_job(job)
        rates = media.parse(_one_medium_each(set_rates or []))
        if "ethernet" not in rates:
            if features.link_bps is None:
                raise BadSetting(
                    f"{job} does not say over which link it was measured: give one with --set, such as --set ethernet=25Gbps"
                )
            rates = {"ethernet": [features.link_bps / 8], **rates}
        ground = _ground(calibration, efficiency, slots, rtt)
        clusters = _clusters(features, workers, servers, placement, per_host, racks, oversubscription)
        notes = []
        if per_host is None and any(each.per_host > 1 for each in clusters) and not rates.keys() & {"pcie", "nvlink"}:
            rates["pcie"] = [media.parse_rate("pcie", _INSIDE)]
            notes.append(f"How workers of a host sum was not said: over pcie at {_INSIDE} (--set pcie or nvlink).")
        study = studies.study(features, _architectures(arch, ground), clusters, media.settings(rates), ground, notes)
        advised = advice.advise(study)
        for line in whatif_table.lines(study, advised):
            typer.echo(printable(line))
    except (BadFeatures, BadSetting, BadCluster, BadCalibration, BadResults, CannotPredict) as error:
        raise CommandFailed(printable(str(error)), EXIT_MISUSED) from error
    try:
        if json_file is not None:
            told = {**study.as_json(), "advice": {each.heading: each.sentences for each in advised}}
            json_file.write_text(json.dumps(told, indent=1, allow_nan=False))
        if plot is not None or page is not None:
            from switchsum.measure import whatif_page, whatif_pictures

            picture = whatif_pictures.sensitivity(study)
            if plot is not None:
                plot.write_bytes(picture.png)
            if page is not None:
                page.write_text(whatif_page.render(study, advised, picture), encoding="utf-8")
    except OSError as error:
        raise CommandFailed(f"{error.filename} cannot be written: {error.strerror}") from error
    written = [printable(str(path)) for path in (json_file, plot, page) if path is not None]
    if written:
        typer.echo(f"\nwritten: {', '.join(written)}")


def _one_medium_each(texts: list[str]) -> list[str]:
    """Raises CommandFailed."""
    for text in texts:
        if text.count("=") > 1:
            raise CommandFailed(
                printable(f"--set {text}: write one --set for each medium, such as --set ethernet=10Gbps --set nvlink=50GB/s"),
                EXIT_MISUSED,
            )
    return texts


def _architectures(text: str | None, ground: Ground) -> list[str]:
    from switchsum.measure.costs import ARCHITECTURES

    if text is None:
        learnt = ground.calibration
        return [name for name in _USUAL if learnt is None or learnt.knows(name)] or list(_USUAL)
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in ARCHITECTURES:
            raise CommandFailed(f"--arch {text}: {name!r} is unknown; there are {', '.join(ARCHITECTURES)}", EXIT_MISUSED)
    return list(dict.fromkeys(names))


def _clusters(
    features: Features,
    workers: str | None,
    servers: int | None,
    placement: str,
    per_host: int | None,
    racks: int,
    oversubscription: float,
) -> list[Cluster]:
    from switchsum.measure import placement as hosts
    from switchsum.measure.costs import Cluster

    if placement not in PLACEMENTS:
        raise CommandFailed(f"--placement {placement}: must be {' or '.join(PLACEMENTS)}", EXIT_MISUSED)
    if servers is not None and servers < 1:
        raise CommandFailed(f"--servers {servers}: must be at least 1", EXIT_MISUSED)
    if oversubscription != 1 and racks == 1:
        raise CommandFailed(f"--oversubscription {oversubscription:g} is about links between racks: add --racks", EXIT_MISUSED)
    dedicated = placement == "dedicated"
    count = servers or (1 if dedicated else 0)
    numbers = [features.workers] if workers is None else counts(workers)
    return [
        Cluster(number, count, dedicated, per, racks, oversubscription)
        for number in numbers
        for per in [hosts.per_host(features, number) if per_host is None else per_host]
    ]


def counts(text: str) -> list[int]:
    """Of "4,8,16" or "4,...,4096", which doubles in between. Raises CommandFailed."""
    from switchsum.measure.costs import MOST_WORKERS

    found: list[int] = []
    parts = [part.strip() for part in text.split(",")]
    for place, part in enumerate(parts):
        if part == "..." and found and place + 1 < len(parts) and parts[place + 1].isdecimal():
            end = int(parts[place + 1][:9])
            while 2 * found[-1] < end:
                found.append(2 * found[-1])
        elif part.isdecimal() and part.isascii() and 1 <= int(part[:9]) <= MOST_WORKERS:
            found.append(int(part))
        else:
            raise CommandFailed(
                f"--workers {text}: {part!r} is no number from 1 to {MOST_WORKERS}; write for example 4,8,16 or 4,...,4096",
                EXIT_MISUSED,
            )
    return list(dict.fromkeys(found))


def require_share(efficiency: float | None) -> None:
    """Raises CommandFailed."""
    if efficiency is not None and not 0 < efficiency <= 1:
        raise CommandFailed(f"--efficiency {efficiency:g}: must be above 0 and at most 1", EXIT_MISUSED)


def _ground(calibration: Path | None, efficiency: float | None, slots: int, rtt: float | None) -> Ground:
    from switchsum.measure.calibration import Calibration
    from switchsum.measure.prediction import Ground

    if calibration is None and efficiency is None:
        raise CommandFailed(
            "how much of a link's nominal rate is reached must be known: measure it (`switchsum bench allreduce --rack RACK "
            "--json FILE`, then --calibration FILE), or guess it, such as --efficiency 0.7",
            EXIT_MISUSED,
        )
    require_share(efficiency)
    if not 1 <= slots <= _MOST_SLOTS:
        raise CommandFailed(f"--slots {slots}: must be from 1 to {_MOST_SLOTS}", EXIT_MISUSED)
    if rtt is not None and not 0 < rtt <= _LONGEST_RTT_US:
        raise CommandFailed(f"--rtt {rtt:g}: must be above 0 and at most {_LONGEST_RTT_US:g} microseconds", EXIT_MISUSED)
    found = None if calibration is None else Calibration.load(calibration)
    return Ground(found, efficiency, slots, None if rtt is None else rtt / 1e6)

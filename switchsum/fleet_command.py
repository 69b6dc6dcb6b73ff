"""`switchsum fleet`: many jobs together, as a page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from switchsum.bench_grounds import EXIT_MISUSED
from switchsum.failures import CommandFailed, require
from switchsum.printable import printable
from switchsum.whatif_command import require_share
from switchsum.written_files import require_folders

PAGE = "index.html"
_MOST_SYNTHETIC = 10_000
_DEFAULT_RATES = ("ethernet=25Gbps,100Gbps", "pcie=10GB/s", "nvlink=50GB/s")


def fleet(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder of features, one file a job.")],
    output: Annotated[
        Path | None, typer.Option(help="Folder for page and pictures; made if it is not there.  [default: DIR/report]")
    ] = None,
    set_rates: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="MEDIUM=RATE,...",
            help=f"Rates of ethernet (all of them are tried), pcie, nvlink.  [default: {' '.join(_DEFAULT_RATES)}]",
        ),
    ] = None,
    calibration: Annotated[
        Path | None, typer.Option(help="Results of `switchsum bench allreduce --json`: a file, or a folder of them.")
    ] = None,
    efficiency: Annotated[
        float | None, typer.Option(help="Share of every nominal rate that is reached.  [default: 0.7 without a calibration]")
    ] = None,
    synthetic: Annotated[
        int | None,
        typer.Option(
            metavar="JOBS", help="First make up so many jobs in DIR, which must be new or empty; each says so of itself."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Start of what is made up.")] = 0,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write shares and gains here.")] = None,
) -> None:
    """Look at many jobs together: what steps are made of by class, how much is communication, who would gain by what.

    One self-contained page and its pictures as PNGs, after Alibaba-PAI's study. Made-up jobs are marked in red.
    """
    require("fleet", {"matplotlib": "demo"})
    require_folders(json_file)
    require_share(efficiency)
    if synthetic is not None:
        _make_up(folder, synthetic, seed)
    from switchsum.measure import fleet as fleets
    from switchsum.measure import fleet_page, fleet_pictures, media
    from switchsum.measure.calibration import BadCalibration, Calibration
    from switchsum.measure.features import BadFeatures
    from switchsum.measure.prediction import CannotPredict, Ground
    from switchsum.measure.results import BadResults

    try:
        rates = media.parse(_DEFAULT_RATES) | media.parse(set_rates or [])
        for name, values in rates.items():
            if name not in media.LINKS or (name != "ethernet" and len(values) > 1):
                raise media.BadSetting(f"--set {name}: a fleet has rates of ethernet, and one each of pcie and nvlink")
        learnt = None if calibration is None else Calibration.load(calibration)
        ground = Ground(learnt, 0.7 if efficiency is None and learnt is None else efficiency)
        jobs, notes = fleets.load(folder)
        found = fleets.study(jobs, rates, ground, notes)
    except (BadFeatures, BadCalibration, BadResults, CannotPredict, fleets.BadFleet, media.BadSetting) as error:
        raise CommandFailed(printable(str(error)), EXIT_MISUSED) from error
    pictures = fleet_pictures.all_pictures(found)
    page = (output or folder / "report") / PAGE
    try:
        page.parent.mkdir(exist_ok=True)
        for picture in pictures:
            (page.parent / f"{picture.name}.png").write_bytes(picture.png)
        page.write_text(fleet_page.render(found, pictures, ground), encoding="utf-8")
        if json_file is not None:
            json_file.write_text(json.dumps(found.as_json(), indent=1, allow_nan=False))
    except OSError as error:
        raise CommandFailed(f"{error.filename} cannot be written: {error.strerror}") from error
    for note in notes:
        typer.echo(f"note: {printable(note)}", err=True)
    if found.synthetic:
        typer.secho(f"SYNTHETIC: {found.synthetic} of {len(jobs)} jobs are made up and say nothing of real ones", fg="red")
    typer.echo(printable(f"{page}: {len(jobs)} jobs, {len(pictures)} pictures beside it"))


def _make_up(folder: Path, jobs: int, seed: int) -> None:
    """Raises CommandFailed."""
    from switchsum.measure import synthetic_fleet

    if not 1 <= jobs <= _MOST_SYNTHETIC:
        raise CommandFailed(f"--synthetic {jobs}: must be from 1 to {_MOST_SYNTHETIC} jobs", EXIT_MISUSED)
    try:
        folder.mkdir(exist_ok=True)
        if any(folder.iterdir()):
            raise CommandFailed(
                f"{folder} is not empty: jobs are only made up in a new or empty folder, so that no real one is among them",
                EXIT_MISUSED,
            )
        for features in synthetic_fleet.jobs(jobs, seed):
            features.save(folder / f"{features.name}.json")
    except OSError as error:
        raise CommandFailed(f"{error.filename or folder} cannot be written: {error.strerror}") from error

"""`switchsum bench payloads`: what there is to move in a benchmark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from switchsum.bench_grounds import EXIT_MISUSED
from switchsum.failures import CommandFailed

if TYPE_CHECKING:
    from switchsum.measure.manifest import Manifest

_COLUMNS = ("steps", "buckets", "tensors", "MB", "small", "medium", "large", "above")


def payloads(
    payload: Annotated[
        list[str] | None,
        typer.Argument(help="Files and names of captures.  [default: the schemes, and all captures there are]"),
    ] = None,
) -> None:
    """Show payloads: how many buckets and tensors their usual step has, and of which size.

    Sizes are the paper's: small below 1 KB, medium below 1 MB, large up to 10 MB (decimal).
    """
    from switchsum.measure import manifest

    try:
        if payload:
            listed = [manifest.find(name) for name in payload]
        else:
            listed = [manifest.from_scheme(scheme) for scheme in manifest.SCHEMES]
            listed += [manifest.find(name) for name in manifest.shipped()]
    except manifest.BadPayload as error:
        raise CommandFailed(str(error), EXIT_MISUSED) from error
    width = max(len("payload"), *(len(each.name) for each in listed))
    typer.echo(f"{'payload':<{width}}{''.join(f'{title:>9}' for title in _COLUMNS)}")
    for each in listed:
        typer.echo(f"{each.name:<{width}}{''.join(f'{cell:>9}' for cell in _cells(each))}")


def _cells(payload: Manifest) -> list[str]:
    from switchsum.measure.manifest import histogram

    usual = payload.usual
    counts = [sum(step.times for step in payload.steps), len(usual.buffers), len(usual.iovecs)]
    return [*map(str, counts), f"{usual.size_bytes / 1e6:.2f}", *map(str, histogram(usual.iovecs).values())]

"""What a benchmark's options say about payloads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from switchsum.bench_grounds import EXIT_MISUSED
from switchsum.failures import CommandFailed

if TYPE_CHECKING:
    from switchsum.measure.manifest import Manifest
DEFAULT_SCHEME, DEFAULT_BIAS = "uniform", "large"


def manifests(
    *,
    scheme: Sequence[str],
    iovec_count: Sequence[int],
    sizes: str | None,
    bias: str | None,
    seed: int,
    size: Sequence[str],
    payload: Sequence[str],
) -> list[Manifest]:
    """Payloads in the order of the options: files and captures, single sizes, else schemes; each by a name of its own.

    Only what is exactly the paper's is called like the paper's. Raises CommandFailed.
    """
    from switchsum.measure import manifest

    if (payload or size) and (scheme or iovec_count or sizes is not None or bias is not None):
        raise CommandFailed(
            f"--scheme, --iovec-count, --sizes and --bias make a payload, {'--payload' if payload else '--size'} names one: "
            "choose one of them",
            EXIT_MISUSED,
        )
    schemes = list(dict.fromkeys(scheme or ([] if payload or size else [DEFAULT_SCHEME])))
    if bias is not None and "skew" not in schemes:
        raise CommandFailed(f"--bias {bias}: only a skewed payload has one; add --scheme skew", EXIT_MISUSED)
    try:
        found = [manifest.find(name) for name in payload]
        found += [replace(manifest.single(manifest.parse_size(text)), name=text.replace(" ", "")) for text in size]
        categories = manifest.DEFAULT_SIZES if sizes is None else manifest.parse_sizes(sizes)
        found += [
            _scheme(name, count, categories, bias or DEFAULT_BIAS, seed)
            for name in schemes
            for count in iovec_count or (manifest.DEFAULT_IOVEC_COUNT,)
        ]
    except manifest.BadPayload as error:
        raise CommandFailed(str(error), EXIT_MISUSED) from error
    by_name: dict[str, Manifest] = {}
    for each in found:
        if by_name.setdefault(each.name, each).steps != each.steps:
            raise CommandFailed(f"two different payloads are called {each.name}; rename one in its file", EXIT_MISUSED)
    return list(by_name.values())


def _scheme(name: str, count: int, categories: Mapping[str, int], bias: str, seed: int) -> Manifest:
    """Raises BadPayload."""
    from switchsum.measure import manifest

    made = manifest.from_scheme(name, count, categories, bias, seed)
    defaults = manifest.DEFAULT_SIZES
    parts = [name if len(categories) > 1 else "-".join(categories)]
    if name == "skew" and bias != DEFAULT_BIAS:
        parts.append(bias)
    if 1 < len(categories) < len(defaults):
        parts += categories
    if any(size != defaults[category] for category, size in categories.items()):
        parts += [f"{size}B" for size in categories.values()]
    if len(categories) == 1 or count != manifest.DEFAULT_IOVEC_COUNT:
        parts.append(f"x{count}")
    return replace(made, name="-".join(parts))

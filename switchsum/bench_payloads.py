"""What a benchmark's options say about payloads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from switchsum.bench_grounds import EXIT_MISUSED
from switchsum.failures import CommandFailed

if TYPE_CHECKING:
    from switchsum.measure.manifest import Manifest


def manifests(
    *,
    scheme: Sequence[str],
    iovec_count: Sequence[int],
    sizes: str,
    bias: str,
    seed: int,
    size: Sequence[str],
    payload: Sequence[str],
) -> list[Manifest]:
    """Payloads in the order of the options: files and captures, single sizes, schemes; each by a name of its own.

    Schemes only where neither `size` nor `payload` is given. Raises CommandFailed.
    """
    from switchsum.measure import manifest

    try:
        found = [manifest.find(name) for name in payload]
        found += [replace(manifest.single(manifest.parse_size(text)), name=text.replace(" ", "")) for text in size]
        if not found:
            categories = manifest.parse_sizes(sizes)
            for name in scheme:
                for count in iovec_count:
                    made = manifest.from_scheme(name, count, categories, bias, seed)
                    kind = "-".join(categories) if len(categories) == 1 else name
                    plain = (len(categories), count) == (len(manifest.DEFAULT_SIZES), manifest.DEFAULT_IOVEC_COUNT)
                    found.append(made if plain else replace(made, name=f"{kind}-x{count}"))
    except manifest.BadPayload as error:
        raise CommandFailed(str(error), EXIT_MISUSED) from error
    by_name: dict[str, Manifest] = {}
    for each in found:
        if by_name.setdefault(each.name, each).steps != each.steps:
            raise CommandFailed(f"two different payloads are called {each.name}; rename one in its file", EXIT_MISUSED)
    return list(by_name.values())


def write_manifests(folder: Path, found: Sequence[Manifest]) -> None:
    """One file for each, so that others can replay them. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    for each in found:
        each.save(folder / f"{each.name}.json")

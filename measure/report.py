"""The JSON file of an experiment: raw samples, figures, arguments, environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from switchsum.measure.rows import Row
from switchsum.measure.samples import Series
from switchsum.measure.table import wrong_elements

SCHEMA = "switchsum-bench-allreduce/1"


def as_json(
    series: Sequence[Series],
    rows: Sequence[Row],
    *,
    title: str,
    arguments: Mapping[str, Any],
    environment: Mapping[str, Any],
    ranks: Mapping[str, Sequence[Mapping[str, Any]]],
    links: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """`ranks`: by site, what each rank said of itself. `links`: what is known of the workers' links."""
    return {
        "schema": SCHEMA,
        "title": title,
        "arguments": dict(arguments),
        "environment": dict(environment),
        "links": list(links),
        "ranks": {site: list(hellos) for site, hellos in ranks.items()},
        "results": [{**asdict(row), "samples": asdict(samples)} for row, samples in zip(rows, series, strict=True)],
        "out_of_bounds": wrong_elements(rows),
    }

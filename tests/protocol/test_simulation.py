"""A few thousand seeds of the simulation; `make soak` runs a hundred thousand or for a given time.

That it can fail: test_mutations.py.
"""

from __future__ import annotations

import itertools
import os

from tests.protocol.simulation import run_seed, soak

SEEDS = 2000


def test_every_invariant_holds_for_two_thousand_seeds() -> None:
    counts, errors = soak(iter(range(SEEDS)), SEEDS, None, os.cpu_count() or 1)
    assert errors == []
    assert counts["seeds"] == SEEDS
    # The network was as bad as intended: every verdict that it can provoke occurred, and often.
    floors = {"CONTRIBUTION": 10_000, "COMPLETION": 10_000, "DUPLICATE": 10_000, "REPAIR": 5_000, "STALE": 200}
    assert {name: counts[name] for name, floor in floors.items() if counts[name] < floor} == {}
    assert counts["epochs"] > 1.5 * SEEDS


def test_a_seed_replays_identically() -> None:
    lines: tuple[list[str], list[str]] = ([], [])
    for trace in lines:
        run_seed(17, trace=trace.append)
    assert lines[0] == lines[1]
    assert len(lines[0]) > 10
    assert any("finished collective" in line for line in itertools.chain(*lines))

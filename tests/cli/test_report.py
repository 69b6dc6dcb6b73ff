"""The demo's verdict can say no, and its table says what was measured."""

from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from switchsum.demo.report import SwitchCounts, Training, failures, show, weight_differences

SWITCH = Training(
    workers=4,
    accuracy=0.975,
    test_loss=0.0817,
    weights=np.array([1.0, -2.0, 0.5], np.float32),
    weights_sha256=frozenset({"a"}),
    steps=20,
    steps_per_second=10.0,
    bytes_sent=13.0,
    bytes_received=14.0,
    checked_elements=240,
    retransmissions=7,
)
GLOO = replace(
    SWITCH,
    accuracy=0.9722,
    weights=np.array([1.0, -2.0, 0.75], np.float32),
    steps_per_second=20.0,
    bytes_sent=18.0,
    bytes_received=18.0,
    checked_elements=0,
    retransmissions=0,
)
COUNTS = SwitchCounts(dropped_in=3, dropped_out=5, repaired=4, stale=1)


def test_all_well() -> None:
    assert failures(SWITCH, GLOO) == []


@pytest.mark.parametrize(
    ("switch", "gloo", "sentence"),
    [
        (replace(SWITCH, wrong_elements=1), GLOO, "1 of 240 checked sums were wrong"),
        (replace(SWITCH, checked_elements=0), GLOO, "no sum was checked"),
        (
            replace(SWITCH, weights_sha256=frozenset("ab")),
            GLOO,
            "the ranks ended with 2 different sets of weights over switchsum",
        ),
        (SWITCH, replace(GLOO, weights_sha256=frozenset("abc")), "the ranks ended with 3 different sets of weights over Gloo"),
        (SWITCH, replace(GLOO, accuracy=0.9861), "the accuracies are 1.1 percentage points apart, more than 1"),
        (replace(SWITCH, accuracy=0.9), GLOO, "the accuracies are 7.2 percentage points apart, more than 1"),
    ],
)
def test_each_failure_is_one_sentence(switch: Training, gloo: Training, sentence: str) -> None:
    assert failures(switch, gloo) == [sentence]


def test_one_percentage_point_apart_is_still_well() -> None:
    assert failures(replace(SWITCH, accuracy=0.97), replace(GLOO, accuracy=0.96)) == []


def test_weight_differences() -> None:
    largest, relative = weight_differences(SWITCH, GLOO)
    assert largest == 0.25
    assert relative == pytest.approx(0.25 / np.sqrt(1 + 4 + 0.5625))


def test_the_table_fits_80_columns_and_is_whole() -> None:
    console = Console(width=80, record=True, force_terminal=False)
    with console.capture() as captured:
        show(console, SWITCH, GLOO, COUNTS, 0.01)
    text = captured.get()
    table, explanation = text.split("How to read it: ")
    assert max(map(len, table.splitlines())) <= 80
    assert "…" not in table
    rows = [" ".join(line.split()) for line in table.splitlines() if line.strip()]
    assert rows == [
        "4 workers, 20 steps, 3 weights (|U| = 12 bytes), 1 % loss",
        "switchsum Gloo",
        "─" * 64,
        "test accuracy 97.5 % 97.2 %",
        "test loss 0.0817 0.0817",
        "ranks end with identical weights yes yes",
        "steps per second 10.0 20.0",
        "bytes sent per worker and step 13 18",
        "bytes received per worker and step 14 18",
        "both, beside 2|U| = 24 1.12 x 1.50 x",
        "both, beside the ring's 4(n-1)/n |U| = 36 0.75 x 1.00 x",
        "final weights, largest difference 2.5e-01",
        "final weights, relative L2 difference 1.1e-01",
        "packets dropped by the switch 8",
        "on the way in / on the way out 3 / 5",
        "packets sent again by workers 7",
        "results repaired 4",
        "stale packets refused 1",
        "sums checked 240",
        "wrong sums 0",
    ]
    assert "A ring moves 1.50 times as much with 4 workers. Here a worker moved 0.75 times" in explanation
    assert "Steps per second measure this machine, not the idea" in explanation

"""From the numbers of two trainings to a table, a sentence that explains it and a verdict."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from rich import box
from rich.console import Console
from rich.table import Table

ACCURACY_TOLERANCE = 0.01  # more than one percentage point apart is a failure
_FLOAT32_BYTES = 4


@dataclass(frozen=True)
class Training:
    """One finished training, summed or averaged over its workers."""

    workers: int
    accuracy: float  # on the test images, 0..1
    test_loss: float  # mean cross entropy on the test images
    weights: npt.NDArray[np.float32]  # [parameters], rank 0's
    weights_sha256: frozenset[str]  # over all ranks: one member if they agree
    steps: int
    steps_per_second: float  # of the slowest rank, without the first step and without the checks
    bytes_sent: float  # per worker and step
    bytes_received: float
    checked_elements: int = 0  # over all ranks
    wrong_elements: int = 0
    retransmissions: int = 0  # over all ranks


@dataclass(frozen=True)
class SwitchCounts:
    """What the switch did with the packets of the job, as its own counters tell."""

    dropped_in: int
    dropped_out: int
    repaired: int  # results sent again to one worker that had lost them
    stale: int  # late packets of a phase that was over


def failures(switch: Training, gloo: Training) -> list[str]:
    """What makes the demo fail, one sentence each; empty if all is well."""
    found = []
    if switch.wrong_elements:
        found.append(f"{switch.wrong_elements:,} of {switch.checked_elements:,} checked sums were wrong")
    if not switch.checked_elements:
        found.append("no sum was checked")
    for name, training in (("switchsum", switch), ("Gloo", gloo)):
        if len(training.weights_sha256) != 1:
            found.append(f"the ranks ended with {len(training.weights_sha256)} different sets of weights over {name}")
    apart = abs(switch.accuracy - gloo.accuracy)
    if apart > ACCURACY_TOLERANCE + 1e-6:  # far below one test image: only rounding
        found.append(f"the accuracies are {100 * apart:.1f} percentage points apart, more than {100 * ACCURACY_TOLERANCE:g}")
    return found


def weight_differences(switch: Training, gloo: Training) -> tuple[float, float]:
    """Of the final weights: largest absolute difference, and L2 norm of the difference over Gloo's norm."""
    difference = switch.weights.astype(np.float64) - gloo.weights.astype(np.float64)
    norm = float(np.linalg.norm(gloo.weights.astype(np.float64)))
    return float(np.abs(difference).max()), float(np.linalg.norm(difference)) / norm


def show(console: Console, switch: Training, gloo: Training, counts: SwitchCounts, loss: float) -> None:
    """Print the table and how to read it."""
    n = switch.workers
    update_bytes = _FLOAT32_BYTES * switch.weights.size
    ring_bytes = 4 * (n - 1) / n * update_bytes
    largest, relative = weight_differences(switch, gloo)
    both = (switch, gloo)

    table = Table(
        title=f"{n} workers, {switch.steps} steps, {switch.weights.size:,} weights (|U| = {update_bytes:,} bytes), "
        f"{100 * loss:g} % loss",
        box=box.SIMPLE_HEAD,
    )
    table.add_column("")
    table.add_column("switchsum", justify="right")
    table.add_column("Gloo", justify="right")

    table.add_row("test accuracy", *(f"{100 * t.accuracy:.1f} %" for t in both))
    table.add_row("test loss", *(f"{t.test_loss:.4f}" for t in both))
    table.add_row("ranks end with identical weights", *("yes" if len(t.weights_sha256) == 1 else "NO" for t in both))
    table.add_row("steps per second", *(f"{t.steps_per_second:.1f}" for t in both), end_section=True)

    table.add_row("bytes sent per worker and step", *(f"{t.bytes_sent:,.0f}" for t in both))
    table.add_row("bytes received per worker and step", *(f"{t.bytes_received:,.0f}" for t in both))
    moved = [t.bytes_sent + t.bytes_received for t in both]
    table.add_row(f"both, beside 2|U| = {2 * update_bytes:,}", *(f"{m / (2 * update_bytes):.2f} x" for m in moved))
    table.add_row(
        f"both, beside the ring's 4(n-1)/n |U| = {ring_bytes:,.0f}",
        *(f"{m / ring_bytes:.2f} x" for m in moved),
        end_section=True,
    )

    table.add_row("final weights, largest difference", f"{largest:.1e}", "")
    table.add_row("final weights, relative L2 difference", f"{relative:.1e}", "", end_section=True)

    dropped = counts.dropped_in + counts.dropped_out
    table.add_row("packets dropped by the switch", f"{dropped:,}", "")
    table.add_row("  on the way in / on the way out", f"{counts.dropped_in:,} / {counts.dropped_out:,}", "")
    table.add_row("packets sent again by workers", f"{switch.retransmissions:,}", "")
    table.add_row("results repaired", f"{counts.repaired:,}", "")
    table.add_row("stale packets refused", f"{counts.stale:,}", "")
    table.add_row("sums checked", f"{switch.checked_elements:,}", "")
    table.add_row("wrong sums", f"{switch.wrong_elements:,}", "")
    console.print(table)
    console.print(_explanation(n, moved[0] / moved[1]), soft_wrap=not console.is_terminal)


def _explanation(n: int, share: float) -> str:
    ring = 2 * (n - 1) / n
    versus_ring = (
        "With two workers the ring moves no more than that; its cost grows from three on."
        if n == 2
        else f"A ring moves {ring:.2f} times as much with {n} workers."
    )
    return (
        "How to read it: with the switch every worker sends its update once and receives the sum once, 2|U| in all, "
        f"however many workers there are. {versus_ring} Here a worker moved {share:.2f} times what it moved with Gloo "
        "(headers and packets sent again included). Dropped packets were sent again, lost results were repaired, and "
        "every sum was recomputed and compared bit for bit. The weights differ from Gloo's as far as the two round "
        "differently: Gloo adds floating-point numbers, the switch fixed-point ones. Steps per second measure this "
        "machine, not the idea: the switch is a program that shares the processor cores with the workers."
    )

"""What does `switchsum profile` cost, and does a delay of a known length show? `python -m tests.measure.profile_check`.

By turns, five times: a training of two ranks over Gloo on loopback (known_delay.py) alone, the same profiled, and profiled with
sums that take so much longer in every step. Told are ratios and differences of turns, with 95 % intervals. Exit status 0: the
delay shows in the exposed time with at most 5 % error.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from switchsum.measure import intervals
from switchsum.measure.features import Features
from switchsum.measure.rows import Figure
from tests.measure.exposed_check import LARGEST_ERROR

SCRIPT = Path(__file__).with_name("known_delay.py")


def trained(delay_ms: float, profile: Path | None) -> tuple[float, float]:
    """Median step in the stretch that a profile times, in milliseconds, and seconds of the whole run."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", str(SCRIPT), f"{delay_ms:g}"]
    if profile is not None:
        command = [sys.executable, "-m", "switchsum.cli", "profile", "--output", str(profile), "--", *command]
    started = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - started
    steps = [line for line in done.stdout.splitlines() if line.endswith("ms a step")]
    if done.returncode or not steps:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr}")
    return float(steps[0].split()[0]), seconds


def main(delay_ms: float, turns: int) -> int:
    timed, whole, traced, counted, added, shares = [], [], [], [], [], []
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(turns):
            alone_ms, alone_s = trained(0, None)
            profiled_ms, profiled_s = trained(0, Path(folder) / f"{turn}-0")
            trained(delay_ms, Path(folder) / f"{turn}-1")
            before, after = (Features.load(Path(folder) / f"{turn}-{number}" / "features.rank0.json") for number in (0, 1))
            cost = before.source["profiling"]
            timed.append(profiled_ms / alone_ms)
            whole.append(profiled_s - alone_s)
            traced.append(cost["traced_to_plain"])
            counted.append(cost["counted_step_s"] / cost["plain_step_s"])
            added.append(1e3 * (statistics.fmean(after.exposed_s) - statistics.fmean(before.exposed_s)))
            shares.append((before.exposed_share, after.exposed_share))
            print(
                f"turn {turn + 1}: step alone {alone_ms:.1f} ms, profiled {profiled_ms:.1f} ms; added {added[-1]:.1f} ms",
                flush=True,
            )
    ones = [1.0] * turns
    for name, ratios in (("a timed step", timed), ("a traced step", traced), ("the step that is counted", counted)):
        found = intervals.ratio(ratios, ones)
        print(f"{name} takes {found.value:.3f} ({found.low:.3f} to {found.high:.3f}) times as long as without")
    seconds, delay = Figure.of(whole), Figure.of(added)
    print(f"the whole run takes {seconds.mean:.1f} +- {seconds.ci95:.1f} s longer")
    print(f"exposed shares {', '.join(f'{100 * a:.1f} -> {100 * b:.1f} %' for a, b in shares)}")
    error = delay.mean / delay_ms - 1
    print(f"{delay_ms:g} ms were added, {delay.mean:.1f} +- {delay.ci95:.1f} ms show: {100 * error:+.1f} %")
    return 0 if abs(error) <= LARGEST_ERROR else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--delay-ms", type=float, default=200)
    parser.add_argument("--turns", type=int, default=5)
    chosen = parser.parse_args()
    sys.exit(main(chosen.delay_ms, chosen.turns))

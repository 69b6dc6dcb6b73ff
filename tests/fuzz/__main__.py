"""`python -m tests.fuzz --minutes 10 [--seed N]`: the three fuzzers one after the other, for a third of the time each."""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from pathlib import Path

from tests.fuzz.test_fuzz import FUZZERS, fuzz


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(32), help="of every random choice")
    options = parser.parse_args()
    for name in FUZZERS:
        print(f"{name}, seed {options.seed}: ", end="", flush=True)
        end = time.monotonic() + options.minutes * 60 / len(FUZZERS)
        with tempfile.TemporaryDirectory() as folder:
            print(fuzz(name, options.seed, Path(folder), lambda _, end=end: time.monotonic() < end), flush=True)


if __name__ == "__main__":
    main()

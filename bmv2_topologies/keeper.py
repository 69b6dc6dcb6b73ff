"""`python -m switchsum.bmv2_topologies.keeper FD OPTIONS`: the process behind `switchsum rack up`, which keeps a rack until
SIGTERM. It says on the inherited descriptor FD how the start went: "ready", or "error" and a sentence."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from switchsum.bmv2_topologies import rack_file
from switchsum.bmv2_topologies.namespaces import NetworkError
from switchsum.bmv2_topologies.rack import Rack
from switchsum.bmv2_topologies.rack_file import RackError
from switchsum.bmv2_topologies.switch_process import SwitchFailed


def start(file: Path, changes: Mapping[str, object], *, bmv2: str, offload: bool, seed: int) -> None:
    """Bring a rack up in a process of its own, which outlives us. `changes`: as for RackFile.changed().

    Raises SwitchFailed with the keeper's sentence.
    """
    reader, writer = os.pipe()
    options = {"file": str(file.resolve()), "changes": dict(changes), "bmv2": bmv2, "offload": offload, "seed": seed}
    try:
        keeper = subprocess.Popen(
            [sys.executable, "-m", "switchsum.bmv2_topologies.keeper", str(writer), json.dumps(options)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[writer],
            start_new_session=True,
            cwd=Path("/"),
        )
    finally:
        os.close(writer)
    try:
        with os.fdopen(reader) as answers:
            status, _, sentence = answers.read().partition(" ")
    except BaseException:  # Ctrl-C does not reach the keeper, which is no child of the terminal
        keeper.terminate()
        keeper.wait()
        raise
    if status != "ready":
        raise SwitchFailed(sentence or "the process that keeps the rack ended at its start")


def main(descriptor: int, options: dict[str, object]) -> int:
    for number in (signal.SIGTERM, signal.SIGINT):  # not blocked: children would inherit that
        signal.signal(number, lambda *_: sys.exit(0))
    with os.fdopen(descriptor, "w") as answers:
        try:
            file = Path(str(options["file"]))
            described = rack_file.load(file).changed(**options["changes"])  # type: ignore[arg-type]
            rack = Rack(
                described,
                source=str(file),
                bmv2=str(options["bmv2"]),
                offload=bool(options["offload"]),
                seed=int(str(options["seed"])),
            )
        except (RackError, NetworkError, SwitchFailed, OSError) as error:
            answers.write(f"error {error}")
            return 1
        answers.write("ready")
    with rack:
        while True:
            signal.pause()


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), json.loads(sys.argv[2])))

"""One pcap file for each link of a rack, by tcpdump at the switch's end of it."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from switchsum.bmv2_topologies import namespaces
from switchsum.bmv2_topologies.rack import namespace_of
from switchsum.bmv2_topologies.switch_process import end, how_it_ended, start_logged

_PATIENCE_S = 10.0
_BUFFER_KIB = 16384  # holds a second of 100 Mbit/s while the disk is busy
_QUIET_S = 0.3  # how long no file may grow before the captures count as complete


class Captures:
    """tcpdump on every port of the switch, while the context lasts. Afterwards `packets` has their number by file, and
    `failures` what is missing, as sentences."""

    def __init__(self, rack: Mapping[str, Any], folder: Path) -> None:
        """`rack`: RackFile.as_json(). Files are folder/HOST.pcap. Raises NetworkError when tcpdump is missing or refuses."""
        self._tcpdump = shutil.which("tcpdump") or ""
        if not self._tcpdump:
            raise namespaces.NetworkError("captures need tcpdump, which is not installed (Debian's package tcpdump)")
        folder.mkdir(parents=True, exist_ok=True)
        self._namespace = namespace_of(rack["name"], rack["switch"]["name"])
        hosts = [host for host in (*rack["workers"], rack["controller"], rack["standby"]) if host is not None]
        self.files = {host["port"]: (folder / f"{host['name']}.pcap").resolve() for host in hosts}
        self.failures: list[str] = []
        self.packets: dict[Path, int] = {}
        self._processes: dict[Path, subprocess.Popen[bytes]] = {}
        self._logs = {path: path.with_suffix(".tcpdump.log") for path in self.files.values()}

    def __enter__(self) -> Captures:
        try:
            for port, path in self.files.items():
                self._start(f"port{port}", path)
            for path in self.files.values():
                self._await(path)
        except BaseException:
            self._stop()
            raise
        return self

    def _start(self, interface: str, path: Path) -> None:
        options = ["-n", "-s", "0", "-B", str(_BUFFER_KIB), "-U", "--immediate-mode", "-Z", "root"]
        command = [self._tcpdump, *options, "-i", interface, "-w", str(path)]
        self._processes[path] = start_logged(self._namespace, command, self._logs[path])

    def _await(self, path: Path) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while "listening on" not in (said := self._logs[path].read_text(errors="replace")):
            if self._processes[path].poll() is not None or time.monotonic() > deadline:
                raise namespaces.NetworkError(f"tcpdump did not start for {path}: {said.strip() or 'it printed nothing'}")
            time.sleep(0.02)

    def _stop(self) -> None:
        early = {path: status for path, process in self._processes.items() if (status := process.poll()) is not None}
        end(list(self._processes.values()))
        for path in self._processes:
            said = self._logs[path].read_text(errors="replace")
            match = re.search(r"(\d+) packets? dropped by kernel", said)
            if captured := re.search(r"(\d+) packets? captured", said):
                self.packets[path] = int(captured[1])
            if path in early:
                told = said.strip().splitlines()[-1:] or ["it printed nothing"]
                self.failures.append(f"{path} is incomplete: tcpdump {how_it_ended(early[path])} too early: {told[0]}")
            elif match is None:
                self.failures.append(
                    f"{path} may be incomplete: tcpdump did not say how many packets it missed: {said.strip()}"
                )
            elif int(match[1]):
                self.failures.append(f"{path} lacks {match[1]} packets, for which tcpdump was too slow")
            self._logs[path].unlink()

    def __exit__(self, *_: object) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        sizes: list[int] = []
        while sizes != (now := [path.stat().st_size for path in self.files.values()]) and time.monotonic() < deadline:
            sizes = now
            time.sleep(_QUIET_S)  # what was sent last is still on its way into the files
        self._stop()

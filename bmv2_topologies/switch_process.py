"""Starts a switch, BMv2 or the softswitch, in a network namespace, and waits until it answers P4Runtime.

P4Runtime runs through a Unix socket, which does not care for network namespaces: the controller may sit anywhere.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import grpc

from switchsum.bmv2_topologies import namespaces

KINDS = ("softswitch", "bmv2")
BRIDGE = "bridge"  # the kernel's own, in a switch's place: it forwards, and runs no program
# The build of the switch program that each runs fastest (docs/measurements.md)
LAYOUT = {"softswitch": "lanes", "bmv2": "wide"}
BMV2 = "simple_switch_grpc"
DEVICE_ID = 1

# BMv2 knows P4Runtime 1.x with --no-p4 and unix: addresses from here on; older ones were not tried.
_BMV2_MINIMUM = (1, 15)
_BMV2_FLAGS = ("--no-p4", "--device-id", "--grpc-server-addr")
# BMv2 reads with libpcap, which gives each frame room for the largest segment while an interface has segmentation or receive
# offload, and then its 2 MB hold 32 frames: the 33rd of a burst is lost. Hosts must not leave it work either: it would forward
# unfinished checksums, and frames of 64 KB.
_BMV2_OFFLOADS_OFF = ("tx-checksum", "tso", "gso", "gro")
# The softswitch finishes checksums and cuts runs of datagrams apart, but not runs of TCP segments.
_SOFTSWITCH_OFFLOADS_OFF = ("tso",)
START_PATIENCE_S = 90.0  # the softswitch's very first start compiles, on a machine that may be busy


class SwitchFailed(RuntimeError):
    """The switch cannot be started, or did not come up; the text says why and where its log lies."""


def dying_with_starter(command: Sequence[str]) -> list[str]:
    """The command line that runs `command`, and ends it when the thread that started it ends, however that happens.

    By setpriv(1), which becomes the command, and not by Popen's preexec_fn: that forks in earnest, and gRPC's fork handlers,
    which run then, now and then abort the child or leave the parent's channels dead.
    """
    return ["setpriv", "--pdeathsig", "KILL", *command]


def find_bmv2(binary: str = "") -> str:
    """The path of a simple_switch_grpc that can do what is needed; `binary`: "" for the one on PATH.

    Raises SwitchFailed naming what is missing: the program, its version, or a flag.
    """
    found = shutil.which(binary or BMV2)
    if found is None:
        where = f"{binary} is no program" if binary else f"{BMV2} is not on PATH"
        raise SwitchFailed(
            f"BMv2 was not found: {where}; install p4lang's behavioral-model with its P4Runtime server, give the path with "
            "--bmv2, or use the switch kind softswitch, which comes with switchsum"
        )
    printed = _output([found, "--version"])
    version = re.search(r"\b(\d+)\.(\d+)(\.\d+)?", printed)
    if version is None:
        raise SwitchFailed(f"{found} does not look like simple_switch_grpc: `{found} --version` printed {printed.strip()!r}")
    if (int(version[1]), int(version[2])) < _BMV2_MINIMUM:
        least = ".".join(map(str, _BMV2_MINIMUM))
        raise SwitchFailed(f"{found} is BMv2 {version[0]}; {least} or later is needed")
    usage = _output([found, "--help"])
    missing = [flag for flag in _BMV2_FLAGS if flag not in usage]
    if missing:
        raise SwitchFailed(f"{found} has no {', '.join(missing)}: it was built without the P4Runtime server or another program")
    return found


def _output(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SwitchFailed(f"`{' '.join(command)}` failed: {error}") from None
    return done.stdout + done.stderr


def offloads_off(kind: str) -> tuple[str, ...]:
    """What must be off at both ends of every link of such a switch."""
    return {"bmv2": _BMV2_OFFLOADS_OFF, "softswitch": _SOFTSWITCH_OFFLOADS_OFF, BRIDGE: ()}[kind]


def check_offloads(kind: str, interfaces: list[tuple[str, str]]) -> None:
    """Raise SwitchFailed naming (namespace, interface) pairs whose offloads would cost this switch frames, and the remedy."""
    for namespace, interface in interfaces:
        harmful = namespaces.offloads(namespace, interface) & set(offloads_off(kind))
        if harmful:
            listed = ", ".join(sorted(harmful))
            words = " ".join(f"{'tx' if name == 'tx-checksum' else name} off" for name in sorted(harmful))
            raise SwitchFailed(
                f"interface {interface} in namespace {namespace} has {listed} offload on, with which {kind} loses frames; run "
                f"`ip netns exec {namespace} ethtool -K {interface} {words}`"
            )


class SwitchProcess:
    """A running switch without a program. `address`: of its P4Runtime server."""

    def __init__(
        self,
        kind: str,
        namespace: str,
        interfaces: Mapping[int, str],
        folder: Path,
        *,
        bmv2: str = "",
        offload: bool = True,
        seed: int = 0,
    ) -> None:
        """Start it; `ready()` waits. `interfaces`: port -> interface of the namespace. `folder`: for socket and log.

        `bmv2`: path of simple_switch_grpc, "" for PATH. `offload`, `seed`: of the softswitch. The process dies with the calling
        thread. Raises SwitchFailed when BMv2 is not there.
        """
        socket_path = folder / "p4runtime"
        self.address = f"unix:{socket_path}"
        self.log_path = folder / "switch.log"
        self.kind = kind
        ports = sorted(interfaces.items())
        if kind == "bmv2":
            binary = find_bmv2(bmv2)
            links = [word for number, name in ports for word in ("-i", f"{number}@{name}")]
            command = [binary, "--no-p4", "--device-id", str(DEVICE_ID), *links, "--", "--grpc-server-addr", self.address]
        else:
            links = [word for number, name in ports for word in ("--interface", f"{number}@{name}")]
            command = [sys.executable, "-m", "switchsum.cli", "switch", "--p4runtime", self.address, *links]
            command += ["--device-id", str(DEVICE_ID), "--seed", str(seed), *([] if offload else ["--no-offload"])]
        self.process = start_logged(namespace, command, self.log_path, cwd=folder)  # BMv2 writes files beside itself

    def ready(self, patience_s: float = START_PATIENCE_S) -> None:
        """Wait until it answers. Raises SwitchFailed with the end of its log if it does not, or ends before."""
        # Not above: whoever only asks what a switch needs (`switchsum doctor`) may be without the extra that brings it.
        from p4.v1 import p4runtime_pb2, p4runtime_pb2_grpc

        deadline = time.monotonic() + patience_s
        with grpc.insecure_channel(self.address) as channel:
            stub = p4runtime_pb2_grpc.P4RuntimeStub(channel)
            while True:
                try:
                    stub.Capabilities(p4runtime_pb2.CapabilitiesRequest(), timeout=1.0)
                    return
                except grpc.RpcError as error:
                    if error.code() == grpc.StatusCode.UNIMPLEMENTED:  # it answers
                        return
                status = self.process.poll()
                if status is not None:
                    raise SwitchFailed(f"the switch ({self.kind}) {how_it_ended(status)} at its start{self._last_words()}")
                if time.monotonic() > deadline:
                    raise SwitchFailed(f"the switch ({self.kind}) did not answer within {patience_s:g} s{self._last_words()}")
                time.sleep(0.05)

    def _last_words(self) -> str:
        lines = self.log_path.read_text(errors="replace").strip().splitlines()[-5:]
        return f"; its log {self.log_path} ends: {' / '.join(lines)}" if lines else "; it printed nothing"

    def close(self) -> None:
        """End it and wait for that."""
        end([self.process])


def start_logged(namespace: str, command: Sequence[str], log_path: Path, *, cwd: Path | None = None) -> subprocess.Popen[bytes]:
    """Run a command in a namespace; what it prints goes into a file. It dies with the calling thread."""
    with log_path.open("wb") as log:
        return subprocess.Popen(
            dying_with_starter(namespaces.command_inside(namespace, command)),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=cwd,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            process_group=0,  # a terminal's Ctrl-C is ours to handle
        )


def how_it_ended(status: int) -> str:
    """A process's exit status in words."""
    return f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with exit status {status}"


def end(processes: list[subprocess.Popen[bytes]], grace_s: float = 5.0) -> None:
    """End processes: SIGTERM to each, SIGKILL for those that take too long."""
    for process in processes:
        if process.poll() is None:
            process.terminate()
    deadline = time.monotonic() + grace_s
    for process in processes:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

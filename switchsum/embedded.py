"""The embedded switch: controller and softswitch in a process of their own, for jobs whose ranks are all on one machine.

`EmbeddedSwitch` starts it from rank 0. The process ends by itself: when its owner is gone (its standard input closes) and the
jobs on it have ended, so that a rank that finishes first does not take the switch away from the others.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
import time

from switchsum.host_agent.errors import SwitchSumError
from switchsum.log_format import log_as_environment_says

START_TIMEOUT_S = 120.0  # seconds when compiled code is cached; the very first start compiles, on a machine that may be busy
LINGER_S = 15.0  # how long running jobs may keep the switch after its owner is gone: more than two leases


class EmbeddedSwitch:
    """A running controller with a softswitch of `ports` loopback ports. `controller` is its address, "127.0.0.1:PORT".

    Raises SwitchSumError with the process's own words when it does not come up.
    """

    def __init__(self, ports: int) -> None:
        command = [sys.executable, "-m", "switchsum.embedded", str(ports)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        lines: list[str] = []
        reader = threading.Thread(target=lambda: lines.append(self._process.stdout.readline()), daemon=True)  # type: ignore[union-attr]
        reader.start()
        reader.join(START_TIMEOUT_S)
        status, _, text = (lines[0] if lines else "").strip().partition(" ")
        if status != "ready":
            self._process.kill()
            self._process.wait()
            raise SwitchSumError(
                f"the embedded switch did not start: {text or f'no answer within {START_TIMEOUT_S:g} s'}; "
                'it needs the extra "switch" (pip install "switchsum[switch]"), or set SWITCHSUM_CONTROLLER'
            )
        self.controller = text

    @property
    def pid(self) -> int:
        """Process id of the embedded switch."""
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def close(self) -> None:
        """Let go: the process ends once the jobs on it have ended, within LINGER_S at the latest."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()


def main(ports: int) -> int:
    """Body of the process: serve until standard input closes and no job is left."""
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is the ranks' affair; we end when they have
        log_as_environment_says()
        from switchsum.controller.daemon import ControllerDaemon
        from switchsum.controller.fabric import Fabric
        from switchsum.controller.options import ControllerOptions
        from switchsum.softswitch.daemon import SoftSwitch

        with SoftSwitch(ports=ports) as switch:
            fabric = Fabric.loopback(switch.port_addresses)
            options = ControllerOptions(switch=switch.grpc_address, listen=("127.0.0.1:0",))
            with ControllerDaemon(fabric, options) as controller:
                print(f"ready {controller.address}", flush=True)
                sys.stdin.read()
                deadline = time.monotonic() + LINGER_S
                while controller.running_jobs() and time.monotonic() < deadline:
                    time.sleep(0.1)
    except Exception as error:
        print(f"error {type(error).__name__}: {error}", flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))

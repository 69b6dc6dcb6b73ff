"""Where runs take place: a rack that is kept from run to run, and the blows that it can be dealt."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from switchsum.bmv2_topologies import namespaces, rack_file, runner, state
from switchsum.bmv2_topologies.rack import INTERFACE, MANAGEMENT_INTERFACE, Rack, namespace_of
from switchsum.bmv2_topologies.rack_file import CONTROLLER, MANAGEMENT, STANDBY
from switchsum.bmv2_topologies.switch_process import dying_with_starter
from switchsum.host_agent.errors import ControllerUnreachable
from switchsum.host_agent.job_client import JobClient
from switchsum.protos import job_pb2 as pb
from tests.faults.ranks import RankProcess, Starter
from tests.faults.training import LONG_STEPS, Task

WORKERS = 4
LEASE_S = 3.0  # shorter ones run out by themselves where six processes start on two busy cores
SILENCE_S = 5.0  # SWITCHSUM_TIMEOUT: how long the switch may be silent
_HEAL_PATIENCE_S = 30.0
_REFERENCE_PORT = 29500
# A token bucket that nothing fits into: the link is up, and silent.
_SILENT = "tbf rate 8bit burst 10b limit 10b"


@dataclass(frozen=True)
class Variant:
    """A kind of rack. `management`: whether TCP has a way around the switch."""

    kind: str = "softswitch"
    management: bool = True
    standby: bool = False
    loss: float = 0.0
    lease_s: float = LEASE_S

    @property
    def name(self) -> str:
        traits = {"managed": self.management, "standby": self.standby, "loss": self.loss, "patient": self.lease_s > LEASE_S}
        return "-".join((self.kind, *(trait for trait, there in traits.items() if there)))

    def described(self, name: str) -> rack_file.RackFile:
        workers = "".join(f"  w{rank}: {{address: 10.83.0.{11 + rank}}}\n" for rank in range(WORKERS))
        text = f"controller: {{lease: {self.lease_s}, standby: {'yes' if self.standby else 'no'}}}\nworkers:\n{workers}"
        if self.management:
            text = f"management: 10.84.0.0/24\n{text}"
        return rack_file.parse(text, f"{name}.yaml").changed(kind=self.kind, loss=self.loss)


@dataclass
class Blow:
    """One thing done to one part.

    `target`: "switch", "controller", "standby" or a worker's name. `action`: kill, term, stop, cut (all its links) or cut-data
    (the link to the switch alone). `how`, of a cut: down-host, down-switch or silent.
    """

    target: str
    action: str
    how: str = ""
    at: float = 0.0
    evidence: list[str] = field(default_factory=list)
    confirmed: bool = False


class Ground:
    """A rack of a variant. Use it from the main thread, as a context manager."""

    def __init__(self, variant: Variant, starter: Starter, *, name: str, bmv2: str) -> None:
        """`starter`: of the ranks; it serves one ground at a time."""
        self.variant = variant
        self.starter = starter
        self.rack = Rack(variant.described(name), bmv2=bmv2)
        self._cuts: list[Blow] = []
        self._stopped: set[int] = set()

    @property
    def parts(self) -> dict[str, int]:
        """Process ids of switch and controllers."""
        return {part: process.pid for part, process in self.rack.processes.items()}

    def host_command(self, rank: int, command: list[str]) -> list[str]:
        """The command line that runs `command` on a worker's host."""
        name = self.rack.file.workers[rank].name
        return dying_with_starter(runner.named_host(name, namespaces.command_inside(self.namespace(name), command)))

    def start(self, rank: int, workers: int, policy: str, port: int, task: Task, folder: Path) -> RankProcess:
        """A rank of a run of so many workers; its log goes into `folder`."""
        host = self.rack.file.workers[rank].name
        environment = self.environment(rank, workers, policy, port)
        return self.starter.start(rank, self.namespace(host), host, environment, task, folder / f"rank-{rank}.log")

    def environment(self, rank: int, workers: int, policy: str, port: int) -> dict[str, str]:
        """Torchrun's variables and ours, for one of the first `workers` hosts."""
        return {
            **runner.environment(self.rack.record.rack, rank),
            "WORLD_SIZE": str(workers),
            "MASTER_PORT": str(port),
            "SWITCHSUM_TIMEOUT": f"{SILENCE_S:g}",
            "SWITCHSUM_ON_LOSS": policy,
        }

    def reference(self, workers: int, folder: Path) -> None:
        """Have plain Gloo train the same, and leave its weights in `folder`."""
        task = Task("gloo", LONG_STEPS, str(folder))
        for rank in [self.start(rank, workers, "fail", _REFERENCE_PORT, task, folder) for rank in range(workers)]:
            while rank.finished is None:
                assert rank.status is None, f"the reference run failed: {folder}"
                self.starter.read()
        # Not left to end by themselves: plain Gloo's destructor may wait for ever, with the GIL, for a thread that needs it.
        self.starter.end_ranks()

    def namespace(self, host: str) -> str:
        return namespace_of(self.rack.file.name, host)

    # --- blows -----------------------------------------------------------------------------------------------------

    def strike(self, blow: Blow, ranks: list[RankProcess]) -> None:
        """Deal it, and note when, and what shows that it hit. Raises AssertionError if it did not."""
        if blow.action.startswith("cut"):
            self._cut(blow)
            return
        pid = self._pid(blow.target, ranks)
        assert _state(pid) not in ("", "Z", "T"), f"{blow.target} was not running before the blow"
        number = {"kill": signal.SIGKILL, "term": signal.SIGTERM, "stop": signal.SIGSTOP}[blow.action]
        blow.at = time.monotonic()
        os.kill(pid, number)
        if blow.action == "stop":
            self._stopped.add(pid)
            _until(lambda: _state(pid) == "T", f"{blow.target} is stopped")
            blow.evidence.append(f"process {pid} is in state T")
        elif blow.action == "kill":
            _until(lambda: _state(pid) in ("", "Z"), f"{blow.target} is dead")
            blow.evidence.append(f"process {pid} is dead")

    def confirm(self, blow: Blow, ranks: list[RankProcess]) -> None:
        """That a signal which ends a process was what ended it, before another takes its place. Raises AssertionError."""
        if blow.action not in ("kill", "term") or blow.confirmed:
            return
        process = self.rack.processes.get(blow.target)
        if process is not None:
            status = process.poll()
        else:
            status = next(each.status for each in ranks if self.rack.file.workers[each.rank].name == blow.target)
        expected = (-signal.SIGKILL,) if blow.action == "kill" else (0, -signal.SIGTERM)
        assert status in expected, f"{blow.target} should have been ended by our signal, but its status is {status}"
        blow.evidence.append(f"exit status {status}")
        blow.confirmed = True

    def undo(self, blow: Blow, ranks: list[RankProcess]) -> None:
        """Let a stopped process go on, mend a cut, start a part that was killed again."""
        if blow.action == "stop":
            pid = self._pid(blow.target, ranks)
            self._stopped.discard(pid)
            os.kill(pid, signal.SIGCONT)
            _until(lambda: _state(pid) != "T", f"{blow.target} goes on")
            blow.evidence.append("went on")
        elif blow.action in ("kill", "term"):
            self.confirm(blow, ranks)
            self.rack.start(blow.target)
            blow.evidence.append(f"was started again as process {self.rack.processes[blow.target].pid}")
        else:
            self._mend(blow)
            blow.evidence.append("was mended")

    def _pid(self, target: str, ranks: list[RankProcess]) -> int:
        if target in self.rack.processes:
            return self.rack.processes[target].pid
        return next(each.pid for each in ranks if self.rack.file.workers[each.rank].name == target)

    def _ends(self, blow: Blow) -> Iterator[tuple[str, str, str]]:
        """(host's namespace, host's interface, port's namespace and interface) of the links that a cut concerns."""
        file = self.rack.file
        hosts = (*file.workers, *file.controllers)
        hit = file.workers if blow.target == "switch" else [host for host in hosts if host.name == blow.target]
        for host in hit:
            yield self.namespace(host.name), INTERFACE, f"{self.namespace(file.switch_name)} port{host.port}"
            if blow.action == "cut" and blow.target != "switch" and file.management:
                yield self.namespace(host.name), MANAGEMENT_INTERFACE, f"{self.namespace(MANAGEMENT)} port{host.port}"

    def _cut(self, blow: Blow) -> None:
        blow.at = time.monotonic()
        self._cuts.append(blow)
        for host, interface, port in self._ends(blow):
            where, name = (host, interface) if blow.how == "down-host" else tuple(port.split())
            if blow.how == "silent":
                namespaces.tc(host, [f"qdisc replace dev {interface} root {_SILENT}"])
                namespaces.tc(where, [f"qdisc replace dev {name} root {_SILENT}"])
                shown = namespaces.run("tc", "-n", where, "qdisc", "show", "dev", name)
                assert "tbf" in shown, shown
            else:
                namespaces.ip(where, [f"link set {name} down"])
                shown = namespaces.run("ip", "-n", where, "-br", "link", "show", name)
                assert "DOWN" in shown, shown
            blow.evidence.append(" ".join(shown.split()))

    def _mend(self, blow: Blow) -> None:
        self._cuts.remove(blow)
        for host, interface, port in self._ends(blow):
            where, name = port.split()
            if blow.how == "silent":
                namespaces.tc(host, [f"qdisc del dev {interface} root"])
                namespaces.tc(where, [f"qdisc del dev {name} root"])
            elif blow.how == "down-host":
                namespaces.ip(host, [f"link set {interface} up"])
            else:
                namespaces.ip(where, [f"link set {name} up"])

    # --- between runs ----------------------------------------------------------------------------------------------

    def inspect(self, part: str = CONTROLLER) -> pb.InspectReply:
        """What a controller knows. Raises ControllerUnreachable."""
        address = self.rack.controller_socket
        client = JobClient(address if part == CONTROLLER else f"{address}-{part}")
        try:
            return client.inspect(5.0)
        finally:
            client.close()

    def heal(self) -> None:
        """End what is left of the ranks, take back all blows, and wait until the switch serves and is free of jobs.

        Raises AssertionError with what is left over, which is a failure of the run before.
        """
        for blow in list(self._cuts):
            self._mend(blow)
        for pid in self._stopped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        self._stopped.clear()
        self.starter.end_ranks()
        for part, process in list(self.rack.processes.items()):
            if process.poll() is not None:
                self.rack.start(part)
        controllers = [CONTROLLER, *([STANDBY] if self.variant.standby else [])]
        left = ["nothing was asked yet"]
        deadline = time.monotonic() + _HEAL_PATIENCE_S
        while left and time.monotonic() < deadline:
            left = [problem for part in controllers for problem in self._left(part)]
            if self.variant.standby and not left and sum(not self.inspect(part).standby for part in controllers) != 1:
                left = ["not exactly one controller is in charge"]
            if left:
                time.sleep(0.1)
        left += self._strangers()
        assert not left, f"the rack did not come back to rest within {_HEAL_PATIENCE_S:g} s: {'; '.join(left)}"

    def _left(self, part: str) -> list[str]:
        try:
            reply = self.inspect(part)
        except ControllerUnreachable as error:
            return [f"{part}: {error}"]
        if reply.standby:
            return []
        left = [f"{part}: job {job.job_name} is {job.state or 'running'}" for job in reply.jobs if job.running]
        if reply.slots_free != reply.slots_total:
            left.append(f"{part}: {reply.slots_free} of {reply.slots_total} slots are free")
        if reply.switch_problem:
            left.append(f"{part}: {reply.switch_problem}")
        return left

    def _strangers(self) -> list[str]:
        """Processes on the workers' hosts."""
        found = []
        for worker in self.rack.file.workers:
            pids = namespaces.processes(self.namespace(worker.name))
            found += [f"process {pid} is left on {worker.name}" for pid in pids if _state(pid) not in ("", "Z")]
        return found

    def close(self) -> None:
        """Take everything down. Raises AssertionError if something stays."""
        for process in self.rack.processes.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGCONT)
        self.rack.close()
        name = self.rack.file.name
        left = [each for each in namespaces.names() if each.startswith(f"switchsum.{name}.")]
        left += [str(path) for path in Path("/etc/netns").glob(f"switchsum.{name}.*")]
        left += [str(state.FOLDER / name)] if (state.FOLDER / name).exists() else []
        assert not left, f"left of rack {name}: {', '.join(left)}"

    def __enter__(self) -> Ground:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _state(pid: int) -> str:
    """The kernel's letter for a process's state; "" if it is gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return ""


def _until(condition: Any, what: str) -> None:
    deadline = time.monotonic() + 10.0
    while not condition():
        assert time.monotonic() < deadline, f"waited 10 s until {what}"
        time.sleep(0.001)

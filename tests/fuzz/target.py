"""What is fuzzed: softswitch and controller in a process of their own, with a job of two real workers, and all that shows
whether anything happened to them."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from p4.v1 import p4runtime_pb2

from switchsum.controller import pipeline, programming
from switchsum.controller.p4names import Item
from switchsum.controller.switch_session import SwitchSession
from switchsum.controller.tenants import hash_of
from switchsum.host_agent.agent import Agent, Terms
from switchsum.host_agent.credentials import Credentials
from switchsum.host_agent.job_client import JobClient

OWNER, FUZZER = "owner-token", "fuzzer-token"  # of the job that must not notice, and of who fuzzes
JOB = "standing"
ELECTION_ID = 1 << 32
ELEMENTS = 64
LEASE_S = 6.0
# Of the two servers together, after the first third of a run: gRPC, Python and malloc keep what they once needed.
MEMORY_BOUND = 32 << 20
PATIENCE_S = 60.0

Snapshot = dict[str, Any]


def serve(folder: Path) -> None:
    """The process: prints where it listens, then answers each line on its input with what it has counted."""
    from switchsum.controller.daemon import ControllerDaemon
    from switchsum.controller.fabric import Fabric
    from switchsum.controller.options import ControllerOptions
    from switchsum.softswitch.daemon import SoftSwitch

    errors: list[str] = []

    class Errors(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            errors.append(self.format(record))

    logging.getLogger("switchsum").addHandler(Errors(logging.ERROR))
    logging.getLogger("switchsum").propagate = False
    logging.getLogger("grpc").addHandler(Errors(logging.ERROR))
    logging.getLogger("grpc").propagate = False
    with SoftSwitch(ports=4) as switch:
        options = ControllerOptions(
            switch=switch.grpc_address,
            listen=("127.0.0.1:0",),
            elements=ELEMENTS,
            election_id=ELECTION_ID,
            lease_s=LEASE_S,
            tokens=folder / "tokens",
        )
        with ControllerDaemon(Fabric.loopback(switch.port_addresses), options) as controller:
            places = {"controller": controller.address, "p4runtime": switch.grpc_address, "ports": switch.port_addresses}
            print(json.dumps(places), flush=True)
            for _ in sys.stdin:
                print(json.dumps({"errors": errors, "switch": switch.statistics}), flush=True)


class Target:
    """Context manager: the process, and the job of two workers in it."""

    def __init__(self, folder: Path) -> None:
        tokens = folder / "tokens"
        tokens.touch(mode=0o600)
        tokens.write_text("".join(f"{name}: {{sha256: {hash_of(name + '-token')}}}\n" for name in ("owner", "fuzzer")))
        self._stack = ExitStack()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.fuzz.target", str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._stack.callback(self._process.wait)
        self._stack.callback(self._process.kill)
        places = json.loads(self._line())
        self.controller: str = places["controller"]
        self.p4runtime: str = places["p4runtime"]
        self.ports: dict[int, tuple[str, int]] = {int(port): tuple(where) for port, where in places["ports"].items()}
        self._agents: dict[int, Agent] = {}
        self._numbers = np.random.default_rng(0)
        self._both(self._join)
        self.check_sums()
        self.standing = self.snapshot()

    def __enter__(self) -> Target:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        self._both(lambda rank: self._agents[rank].close())

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the servers died, status {self._process.wait()}"
        return line

    def _join(self, rank: int) -> None:
        credentials = Credentials(token=OWNER)
        terms = Terms(controller=self.controller, job_name=JOB, rank=rank, world_size=2, slots=64, credentials=credentials)
        self._agents[rank] = Agent.join(terms)

    @staticmethod
    def _both(work: Callable[[int], None]) -> None:
        threads = [threading.Thread(target=work, args=(rank,)) for rank in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    # --- what must not change ------------------------------------------------------------------------------------------

    def check_sums(self) -> None:
        """The job of the two workers sums, and rightly."""
        sources = [self._numbers.integers(-(2**30), 2**30, 20_000, dtype=np.int32) for _ in range(2)]
        targets = [np.zeros_like(source) for source in sources]
        failures: list[object] = []

        def work(rank: int) -> None:
            done = threading.Event()

            def finished(error: Exception | None) -> None:
                failures.extend([error] if error else [])
                done.set()

            self._agents[rank].all_reduce(sources[rank], targets[rank], "sum", finished)
            if not done.wait(PATIENCE_S):
                failures.append("no end")

        self._both(work)
        assert failures == [], failures
        for target in targets:
            np.testing.assert_array_equal(target, sources[0] + sources[1])

    def snapshot(self) -> Snapshot:
        """Jobs, free slots and every entry and group on the switch; no counters."""
        client = JobClient(self.controller, Credentials(token=OWNER))
        try:
            reply = client.inspect(PATIENCE_S)
        finally:
            client.close()
        assert reply.switch_problem == ""
        jobs = [(job.job_name, job.job, job.epoch, job.slot_base, job.slots) for job in reply.jobs if job.running]
        return {"jobs": jobs, "slots_free": reply.slots_free, "held": self._held()}

    def _held(self) -> set[Item]:
        names = pipeline.load("lanes", ELEMENTS).names
        session = SwitchSession(
            self.p4runtime, 1, 0, timeout_s=PATIENCE_S, on_lost=lambda sentence: None, on_role=lambda primary: None
        )
        wanted = []
        for table in programming.TABLES:
            entity = p4runtime_pb2.Entity()
            entity.table_entry.table_id = names.table_id(table)
            wanted.append(entity)
        groups = p4runtime_pb2.Entity()
        groups.packet_replication_engine_entry.multicast_group_entry.SetInParent()
        try:
            return {names.item(entity) for entity in session.read([*wanted, groups])}
        finally:
            session.close()

    def check_unharmed(self) -> None:
        """All is as it was before the fuzzing, once what the fuzzer began has run out."""
        deadline = time.monotonic() + PATIENCE_S
        while (now := self.snapshot()) != self.standing:
            assert time.monotonic() < deadline, differences(self.standing, now)
            time.sleep(0.2)
        self.check_sums()
        counted = self.counted()
        assert counted["errors"] == []
        assert counted["switch"]["internal_errors"] == 0

    # --- what must not grow --------------------------------------------------------------------------------------------

    def counted(self) -> dict[str, Any]:
        """Errors in the servers' logs, and the switch's statistics."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return dict(json.loads(self._line()))

    def resident_bytes(self) -> int:
        return int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def run(self, step: Callable[[], None], more: Callable[[int], bool], end: Callable[[], None]) -> str:
        """Steps while `more(number of steps)`, then `end`, then the checks. Returns a line about it."""
        steps = 0
        memory = [self.resident_bytes()]
        while more(steps):
            step()
            steps += 1
            memory.append(self.resident_bytes())
        end()
        self.check_unharmed()
        memory.append(self.resident_bytes())
        first, last = memory[len(memory) // 3], memory[-1]
        assert last - first < MEMORY_BOUND, f"memory grew: {[each >> 20 for each in memory[:: len(memory) // 20 or 1]]} MiB"
        return f"{steps} steps, memory {first >> 20} MiB after a third of them, {last >> 20} MiB at the end"


def differences(before: Snapshot, after: Snapshot) -> str:
    return "; ".join(f"{name}: {before[name]} -> {after[name]}" for name in before if before[name] != after[name])[:4000]


if __name__ == "__main__":
    serve(Path(sys.argv[1]))

"""TF-gRPC-Bench's three benchmarks (Biswas, Lu, Panda: arXiv 1804.01138): calls of parameter servers, one after the other.

A run lasts a time, not a number of calls: every worker calls every server until it is over.
"""

from __future__ import annotations

from itertools import product

from switchsum.measure.crew import BenchmarkFailed
from switchsum.measure.experiment import Case, Experiment, Plan, Way
from switchsum.measure.rpc import Method
from switchsum.measure.rpc_grpc import largest_payload
from switchsum.measure.samples import Run, Series, Usage

RPC_TRANSPORTS = ("grpc", "tcp", "gloo")
_SLACK = 1.2


def too_large(plan: Plan) -> str | None:
    """A sentence on a payload that a way cannot carry."""
    for way, case in product(plan.ways, plan.cases):
        if way.transport == "grpc":
            most = largest_payload(way.mode, len(case.buffers))
            if case.size_bytes > most:
                return f"{way.label}: payload {case.payload} has {case.size_bytes} bytes, and a message carries {most} at most"
    return None


class Calls(Experiment):
    """Ranks are plan.workers workers, then plan.servers parameter servers."""

    method: Method
    window = 1  # calls of one server under way at once

    def run(self) -> list[Series]:
        if (told := too_large(self._plan)) is not None:
            raise BenchmarkFailed(told)
        return super().run()

    def _needs_torch(self, way: Way) -> bool:
        return way.transport == "gloo"

    @property
    def _worker_ranks(self) -> range:
        return range(self._plan.workers)

    @property
    def _server_ranks(self) -> range:
        return range(self._plan.workers, self._plan.workers + self._plan.servers)

    def _open(self, way: Way) -> None:
        """Servers listen at plan.port and the ports behind it: one for each server of a host and each way."""
        crew, plan = self._crews[way.name], self._plan
        threads = plan.workers * self.window + 1
        addresses = {rank: plan.ip or crew.hellos[rank]["address"] for rank in self._server_ranks}
        asked = {}
        for rank in self._server_ranks:
            beside = [other for other in self._server_ranks if crew.site.hosts[other] == crew.site.hosts[rank]]
            port = plan.port + plan.ways.index(way) * len(beside) + beside.index(rank) if plan.port else 0
            asked[rank] = {
                "way": way.name,
                "address": addresses[rank],
                "port": port,
                "workers": plan.workers,
                "threads": threads,
            }
        answers = crew.ask_each("serve", plan.timeout_s, asked)
        servers = [[rank, addresses[rank], answer["port"]] for rank, answer in zip(asked, answers, strict=True)]
        # A worker names the server that it does not reach before we would name the worker.
        dialled = {"way": way.name, "servers": servers, "timeout_s": plan.timeout_s}
        crew.ask_each("dial", _SLACK * plan.timeout_s, dict.fromkeys(self._worker_ranks, dialled))

    def _load(self, case: Case) -> None:
        for crew in self._distinct_crews:
            crew.ask(
                "load_buffers", self._plan.timeout_s, sizes=[each.size_bytes for each in case.buffers], seed=self._plan.seed
            )

    def _series(self, case: Case, way: Way) -> Series:
        crew = self._crews[way.name]
        return Series(
            benchmark=self.benchmark,
            transport=way.transport,
            mode=way.mode,
            payload=case.payload,
            size_bytes=case.size_bytes,
            buffers=len(case.buffers),
            dtype="uint8",
            redop="",
            workers=self._plan.workers,
            servers=self._plan.servers,
            hosts=list(crew.site.hosts),
            link_rate_bps=crew.link_rate_bps,
            link_rates_bps=crew.link_rates_bps,
            check=self._plan.check,
        )

    def _warm_up(self, row: Series, way: Way) -> None:
        run = Run(0)
        self._call(row, way, run, self._plan.warmup_s)
        row.warmup_s = [seconds for worker in run.seconds for seconds in worker]

    def _operate(self, row: Series, way: Way, run: Run) -> None:
        crew = self._crews[way.name]
        before = crew.ask("usage", self._plan.timeout_s, way=way.name)
        self._call(row, way, run, self._plan.duration_s)
        after = crew.ask("usage", self._plan.timeout_s, way=way.name)
        run.usage = [Usage(**end["usage"]).since(Usage(**start["usage"])) for end, start in zip(after, before, strict=True)]
        spent = [
            end["messages_s"] - start["messages_s"]
            for end, start in zip(after, before, strict=True)
            if end["messages_s"] is not None
        ]
        run.serialize_s = sum(spent) if spent else None

    def _call(self, row: Series, way: Way, run: Run, seconds: float) -> None:
        crew, plan = self._crews[way.name], self._plan
        asked = {
            "way": way.name,
            "method": int(self.method),
            "seconds": seconds,
            "window": self.window,
            "check": plan.check,
            "at_ns": self._start_ns(crew),
        }
        answers = crew.ask_each("call_for", _SLACK * plan.timeout_s + seconds, dict.fromkeys(self._worker_ranks, asked))
        run.seconds = [[ns / 1e9 for ns in answer["ns"]] for answer in answers]
        run.made = [answer["made"] for answer in answers]
        run.elapsed_s = max(answer["elapsed_ns"] for answer in answers) / 1e9
        self._judge(row, answers)

    def _check(self, row: Series, way: Way) -> None:
        crew = self._crews[way.name]
        asked = {"way": way.name, "method": int(self.method)}
        self._judge(row, crew.ask_each("check_calls", _SLACK * self._plan.timeout_s, dict.fromkeys(self._worker_ranks, asked)))

    @staticmethod
    def _judge(row: Series, answers: list[dict[str, int]]) -> None:
        row.wrong = (row.wrong or 0) + sum(answer["wrong"] for answer in answers)
        row.checked += sum(answer["checked"] for answer in answers)


class Latency(Calls):
    """One server, one worker; the payload goes there and back. Half of that is the latency."""

    benchmark = "p2p-latency"
    method = Method.ECHO


class Bandwidth(Calls):
    """One server, one worker; the payload goes there, and is acknowledged.

    Several payloads are under way at once, as the paper's streams of calls have them: else each waits for the last one's
    acknowledgement, and latency is measured once more.
    """

    benchmark = "p2p-bandwidth"
    method = Method.ACKNOWLEDGE
    window = 4


class Throughput(Calls):
    """Every worker calls every server at once; the payload goes there and back, as gradients and weights do."""

    benchmark = "ps-throughput"
    method = Method.ECHO

"""What the three kinds of processes serve to Prometheus: real switch, controller and agents, asked over HTTP."""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from switchsum import metrics_endpoint
from switchsum.controller.daemon import ControllerDaemon
from switchsum.controller.metrics import ControllerCollector
from switchsum.failures import CommandFailed
from switchsum.host_agent.agent import Agent, Terms
from switchsum.host_agent.errors import JoinRefused, SwitchSumError
from switchsum.host_agent.metrics import HostCollector, Membership
from switchsum.metrics_endpoint import MetricsEndpoint, parse_address, serving
from switchsum.rank_metrics import RankMetrics
from switchsum.softswitch.daemon import SoftSwitch
from tests.controller.conftest import all_join, make_controller
from tests.controller.test_service import eventually, send, sums
from tests.controller.worker import Worker
from tests.observe.turns import send_in_turn
from tests.torch.launch import free_ports

ROOT = Path(__file__).resolve().parents[2]
ROW = re.compile(r"^\| `(switchsum_\w+)` \| (\w+) \|([^|]*)\|", re.MULTILINE)
Workers = Callable[[ControllerDaemon | str, int], list[Worker]]
Sample = tuple[str, frozenset[tuple[str, str]]]


def ask(url: str) -> str:
    host, port = url.removeprefix("http://").removesuffix("/metrics").rsplit(":", 1)
    connection = http.client.HTTPConnection(host, int(port), timeout=20.0)
    with contextlib.closing(connection):
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        assert answer.status == 200
        return answer.read().decode()


@dataclass
class Served:
    """Values by sample; and name, type and label names of each."""

    values: dict[Sample, float]
    described: set[tuple[str, str, frozenset[str]]]

    def __getitem__(self, name: str) -> dict[Mapping[str, str] | str, float]:
        """Of one metric: by the value of its only label, or by all as (name, value) pairs."""
        found = {labels: value for (sample, labels), value in self.values.items() if sample == name}
        return {next(iter(labels))[1] if len(labels) == 1 else labels: value for labels, value in found.items()}  # type: ignore[misc]

    def value(self, name: str, **labels: str) -> float:
        return self.values[name, frozenset(labels.items())]


def served(collector: Collector) -> Served:
    with serving(("127.0.0.1", 0), collector) as url:
        text = ask(url)
    values: dict[Sample, float] = {}
    described = set()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in values, f"{key} is there twice"
            values[key] = sample.value
            if not sample.name.startswith("process_"):
                described.add((sample.name, family.type, frozenset(sample.labels)))
    return Served(values, described)


@contextlib.contextmanager
def agents(controller: ControllerDaemon, count: int, name: str = "train") -> Iterator[list[Agent]]:
    """Ranks with engines, in threads of this process."""
    joined: dict[int, Agent] = {}

    def join(rank: int) -> None:
        joined[rank] = Agent.join(Terms(controller.address, name, rank, count))

    threads = [threading.Thread(target=join, args=(rank,)) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    try:
        yield [joined[rank] for rank in range(count)]
    finally:
        for agent in joined.values():
            agent.close()


def sum_over(world: list[Agent], numel: int) -> None:
    done = [threading.Event() for _ in world]
    arrays = [np.full(numel, 1.0, np.float32) for _ in world]
    for agent, array, event in zip(world, arrays, done, strict=True):
        agent.all_reduce(array, array, f"sum of {numel}", lambda error, event=event: event.set())  # type: ignore[misc]
    assert all(event.wait(60.0) for event in done)
    assert all((array == len(world)).all() for array in arrays)


def test_the_page_tells_of_all_that_is_served_and_of_nothing_else(switch: SoftSwitch) -> None:
    page = {
        (name, kind, frozenset(re.findall(r"`(\w+)`", labels)))
        for name, kind, labels in ROW.findall((ROOT / "docs" / "metrics.md").read_text())
    }
    with make_controller(switch, loss_in=0.2, loss_out=0.2) as controller, agents(controller, 2) as world:
        with pytest.raises(JoinRefused):
            Agent.join(Terms(controller.address, "huge", 0, 33))
        sum_over(world, 20_000)
        members = [Membership("train", rank, agent) for rank, agent in enumerate(world)]
        found = [
            served(collector) for collector in (controller.collector(), switch.collector(), HostCollector(lambda: members))
        ]
    described = set().union(*(each.described for each in found))
    assert described - page == set()
    assert page - described == set()


def test_a_controller_tells_of_its_jobs_and_forgets_them(
    switch: SoftSwitch, controller: ControllerDaemon, workers: Workers
) -> None:
    world = workers(controller, 3)
    all_join(world, "train")
    send_in_turn(switch, [world[0], world[2], world[1], world[0]])  # the row is full when the last one comes: a repair
    assert [sums(worker)[0] for worker in world] == [3, 3, 3]
    job = {"job": "train", "tenant": ""}

    def packets(verdict: str) -> list[float]:
        told = served(ControllerCollector(controller.reading))
        return [
            told.values.get(
                ("switchsum_controller_packets_total", frozenset({**job, "rank": str(rank), "verdict": verdict}.items())), 0.0
            )
            for rank in range(3)
        ]

    eventually(lambda: packets("repair") == [1.0, 0.0, 0.0])
    assert packets("completion") == [0.0, 1.0, 0.0]
    told = served(ControllerCollector(controller.reading))
    assert told["switchsum_controller_jobs"]["running"] == 1
    assert told.value("switchsum_controller_slots") == 2048
    assert told.value("switchsum_controller_slots_free") == 2048 - told.value("switchsum_controller_job_slots", **job)
    assert told.value("switchsum_controller_job_workers", **job) == 3
    assert told.value("switchsum_controller_job_epoch", **job) == world[0].joined.epoch  # type: ignore[union-attr]
    assert told["switchsum_controller_election_role"] == {"primary": 1, "standby": 0, "no session": 0}
    assert told.value("switchsum_controller_switch_up") == 1

    before = told["switchsum_controller_epochs_ended_total"]["finished"]
    for worker in world:
        worker.client.leave()
    eventually(lambda: world[0].client.inspect().slots_free == 2048)
    told = served(ControllerCollector(controller.reading))
    assert told["switchsum_controller_epochs_ended_total"]["finished"] == before + 1
    assert told["switchsum_controller_jobs"]["running"] == 0
    assert [name for name, labels in told.values if ("job", "train") in labels] == []


def test_refused_joins_are_counted_by_reason(controller: ControllerDaemon, workers: Workers) -> None:
    (worker,) = workers(controller, 1)
    with pytest.raises(JoinRefused):
        worker.join("train", 0, 33)
    with pytest.raises(SwitchSumError):
        worker.join("train", 0, 1, slots=4000)
    with pytest.raises(SwitchSumError):
        worker.join("train", 0, 2, timeout_s=1.0)  # the other one never comes
    told = served(controller.collector())
    assert told["switchsum_controller_joins_refused_total"] == {"invalid": 1, "full": 1, "dismissed": 1}


@pytest.mark.parametrize("name", ['with "quotes", \\ and {braces}', "two\nlines", "schön 火", "a=b,c"])
def test_a_job_may_be_called_anything(controller: ControllerDaemon, workers: Workers, name: str) -> None:
    world = workers(controller, 1)
    all_join(world, name)
    told = served(controller.collector())
    assert told.value("switchsum_controller_job_workers", job=name, tenant="") == 1


def test_a_switch_that_is_gone_is_told_and_its_counters_are_missing(workers: Workers) -> None:
    with SoftSwitch(ports=2) as switch, make_controller(switch) as controller:
        assert served(controller.collector()).value("switchsum_controller_switch_up") == 1
        switch.close()
        eventually(lambda: bool(controller.reading().report.switch_problem))
        told = served(controller.collector())
        assert told.value("switchsum_controller_switch_up") == 0
        assert told["switchsum_controller_rejected_packets_total"] == {}


def test_the_switch_is_asked_once_a_second_at_most(controller: ControllerDaemon) -> None:
    asked = []
    collector = ControllerCollector(lambda: (asked.append(1), controller.reading())[1])
    for _ in range(3):
        list(collector.collect())
    assert len(asked) == 1


def test_a_switch_tells_of_its_ports(controller: ControllerDaemon, switch: SoftSwitch, workers: Workers) -> None:
    world = workers(controller, 2)
    all_join(world, "train")
    before = served(switch.collector())
    for worker in world:
        send(worker, 1)
    assert [sums(worker)[0] for worker in world] == [2, 2]
    size = 24 + 4 * world[0].joined.elements  # type: ignore[union-attr]

    def grown(name: str) -> dict[str, float]:
        now, then = served(switch.collector())[name], before[name]
        return {str(port): value - then[port] for port, value in now.items() if value != then[port]}

    eventually(lambda: len(grown("switchsum_switch_sent_packets_total")) == 2)
    assert grown("switchsum_switch_received_packets_total") == {"1": 1, "2": 1}
    assert grown("switchsum_switch_received_bytes_total") == {"1": size, "2": size}
    assert grown("switchsum_switch_sent_bytes_total") == {"1": size, "2": size}
    told = served(switch.collector())
    assert told["switchsum_switch_program_info"] == {"switchsum 1": 1}
    assert told.value("switchsum_switch_p4runtime_sessions") == 1
    assert told.value("switchsum_switch_p4runtime_primary") == 1


def test_a_switch_without_a_program_says_so() -> None:
    with SoftSwitch(ports=1) as switch:
        told = served(switch.collector())
        assert told.value("switchsum_switch_program_loaded") == 0
        assert told.value("switchsum_switch_p4runtime_sessions") == 0


def test_a_rank_tells_what_its_agent_counts(controller: ControllerDaemon) -> None:
    with agents(controller, 2) as world:
        sum_over(world, 5000)
        told = served(HostCollector(lambda: [Membership("train", rank, agent) for rank, agent in enumerate(world)]))
        for rank, agent in enumerate(world):
            counters = agent.counters()
            labels = {"job": "train", "rank": str(rank)}
            assert told.value("switchsum_host_sent_packets_total", **labels) == counters["packets_sent"]
            assert told.value("switchsum_host_received_bytes_total", **labels) == counters["bytes_received"]
            assert told.value("switchsum_host_retransmissions_total", kind="timeout", **labels) == counters["timeouts"]
            assert told.value("switchsum_host_collectives_total", **labels) == 1
            assert told.value("switchsum_host_collectives_pending", **labels) == 0
            assert told.value("switchsum_host_path", path="switch", **labels) == 1
            assert told.value("switchsum_host_path", path="none", **labels) == 0
            assert 0 < told.value("switchsum_host_round_trip_seconds", **labels) < 60


# --- the endpoint ---------------------------------------------------------------------------------------------------


class Nothing(Collector):
    def collect(self) -> Iterator[object]:  # type: ignore[override]
        return iter(())


def test_a_port_that_is_taken_is_named() -> None:
    with serving(("127.0.0.1", 0), Nothing()) as url:
        port = int(url.removesuffix("/metrics").rsplit(":", 1)[1])
        with pytest.raises(OSError, match="cannot serve metrics") as caught:
            MetricsEndpoint("127.0.0.1", port, Nothing())
    assert caught.value.strerror == f"cannot serve metrics at 127.0.0.1:{port}: Address already in use; choose another port"
    with serving(("127.0.0.1", port), Nothing()):  # closed, it leaves the port
        pass


def test_no_thread_is_left() -> None:
    before = set(threading.enumerate())
    with serving(("127.0.0.1", 0), Nothing()) as url:
        ask(url)
        assert "switchsum-metrics" in {thread.name for thread in threading.enumerate() if thread not in before}
    eventually(lambda: set(threading.enumerate()) <= before)  # the one that answered ends by itself


def test_clients_that_say_nothing_take_no_more_than_their_places() -> None:
    with serving(("127.0.0.1", 0), Nothing()) as url, contextlib.ExitStack() as stack:
        port = int(url.removesuffix("/metrics").rsplit(":", 1)[1])
        silent = [stack.enter_context(socket.create_connection(("127.0.0.1", port), 20.0)) for _ in range(9)]
        assert silent[-1].recv(1) == b""  # one too many
        for each in silent[:-1]:
            each.close()

        def answered() -> bool:
            try:
                return "process_open_fds" in ask(url)
            except (ConnectionError, http.client.HTTPException):
                return False

        eventually(answered)


def test_rubbish_is_answered_or_dropped_and_the_endpoint_lives_on() -> None:
    with serving(("127.0.0.1", 0), Nothing()) as url:
        port = int(url.removesuffix("/metrics").rsplit(":", 1)[1])
        for rubbish in (
            b"\0" * 3000,
            b"GET / HTTP/9.9\r\n\r\n",
            b"GET " + b"x" * 100_000 + b"\r\n\r\n",
            b"\r\n",
            b"POST / HTTP/1.0\r\n",
        ):
            with (
                socket.create_connection(("127.0.0.1", port), 20.0) as client,
                contextlib.suppress(OSError),  # it may have hung up already
            ):
                client.sendall(rubbish)
                client.shutdown(socket.SHUT_WR)
                while client.recv(65536):
                    pass
        assert "process_open_fds" in ask(url)


@pytest.mark.parametrize(
    ("text", "address"),
    [("9464", ("127.0.0.1", 9464)), ("0", ("127.0.0.1", 0)), ("10.0.0.1:80", ("10.0.0.1", 80)), ("[::1]:80", ("::1", 80))],
)
def test_addresses(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text, "--metrics") == address


@pytest.mark.parametrize("text", ["", "host", "host:", ":80", "70000", "10.0.0.1:-1", "٣"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not an address") as caught:
        parse_address(text, "--metrics")
    assert str(caught.value) == (
        f"--metrics {text!r} is not an address: write PORT, for loopback, or HOST:PORT, such as 10.0.0.1:9464"
    )


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_endpoint, "METRICS_MODULES", {"no_such_library": "metrics"})
    with pytest.raises(CommandFailed) as caught:
        metrics_endpoint.beside("controller", "9464")
    assert str(caught.value) == (
        "`switchsum controller --metrics` needs no_such_library, which is not installed: pip install 'switchsum[metrics]'"
    )


def test_a_forked_child_does_not_hold_the_port() -> None:
    """A data loader's worker may live longer than its trainer's metrics."""
    program = (
        "import os, sys, time\n"
        "from tests.observe.test_metrics import Nothing\n"
        "from switchsum.metrics_endpoint import MetricsEndpoint\n"
        "one = MetricsEndpoint('127.0.0.1', 0, Nothing())\n"
        "port = int(one.url.rsplit(':', 1)[1].partition('/')[0])\n"
        "reader, writer = os.pipe()\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    os.close(writer); os.read(reader, 1); os._exit(0)\n"
        "one.close()\n"
        "MetricsEndpoint('127.0.0.1', port, Nothing()).close()\n"
        "os.close(writer); os.waitpid(child, 0); print('free')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.stdout == "free\n", done.stderr


# --- a rank's endpoint ----------------------------------------------------------------------------------------------


class Resting:
    """An agent that has nothing to do."""

    path = "switch"

    def counters(self) -> dict[str, int]:
        return {"collectives": 3}

    def gauges(self) -> dict[str, float]:
        return {}


def test_ranks_of_a_machine_serve_side_by_side_until_their_last_group_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    first = free_ports(2)
    ranks = [RankMetrics(), RankMetrics()]
    groups = [Resting(), Resting()]
    for local, rank in enumerate(ranks):
        monkeypatch.setenv("LOCAL_RANK", str(local))
        rank.open(str(first), rank=10 + local)
        rank.open(str(first), rank=10 + local)  # of a second group
        for number, group in enumerate(groups):
            rank.add(f"job {number}", 10 + local, group)
    for local in (0, 1):
        text = ask(f"http://127.0.0.1:{first + local}/metrics")
        assert f'switchsum_host_collectives_total{{job="job 1",rank="{10 + local}"}} 3.0' in text
    for rank in ranks:
        rank.remove(groups[0])
    assert 'job="job 0"' not in ask(f"http://127.0.0.1:{first}/metrics")
    for rank in ranks:
        rank.remove(groups[1])
    with pytest.raises(ConnectionRefusedError):
        ask(f"http://127.0.0.1:{first}/metrics")


def test_without_an_address_nothing_is_served() -> None:
    before = threading.active_count()
    metrics = RankMetrics()
    metrics.open("", 0)
    metrics.add("train", 0, Resting())
    metrics.remove(None)
    assert threading.active_count() == before


def test_what_a_rank_cannot_serve_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    with pytest.raises(ValueError, match=r"^SWITCHSUM_METRICS 'here' is not an address: write PORT"):
        RankMetrics().open("here", 0)
    with pytest.raises(ValueError, match=r"^SWITCHSUM_METRICS='65535': rank 1 of this machine would need port 65536; choose"):
        RankMetrics().open("65535", 1)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SwitchSumError) as caught:
            RankMetrics().open(f"{port}", 0)
    assert str(caught.value) == (
        f"SWITCHSUM_METRICS={port}: cannot serve metrics at 127.0.0.1:{port}: Address already in use; choose another port"
    )
    monkeypatch.setattr("switchsum.rank_metrics.METRICS_MODULES", {"no_such_library": "metrics"})
    with pytest.raises(SwitchSumError) as caught:
        RankMetrics().open("0", 0)
    assert str(caught.value) == (
        "SWITCHSUM_METRICS is set, but prometheus_client is not installed: pip install 'switchsum[metrics]', or unset it"
    )


def test_a_training_host_loads_the_library_only_when_asked() -> None:
    program = "import sys, switchsum.torch_backend; assert 'prometheus_client' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT, env=dict(os.environ))

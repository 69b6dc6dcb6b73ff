"""Predictions against traffic that is routed message by message, counted as the kernel counts it, and a real rack."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from switchsum import bench_sites
from switchsum.bmv2_topologies import namespaces
from switchsum.measure import conservation
from switchsum.measure.conservation import Verdict
from switchsum.measure.manifest import Buffer
from switchsum.measure.results import Results
from switchsum.measure.samples import Carried, Run, Series
from tests.measure.test_bench import RACKS, bench

ELEMENTS = 256
SEGMENT = 1448
HEADERS = 66  # Ethernet, IPv4, TCP with timestamps
SWITCH = "switch"
Place = int | str


class Network:
    """Counts what crosses links. `hosts`: by process; the switch has a host of its own."""

    def __init__(self, hosts: Sequence[int], source: str) -> None:
        self.hosts, self.source = hosts, source
        self.links = {host: [0, 0, 0, 0] for host in hosts}  # bytes sent, received; packets sent, received
        self.processes = [[0, 0, 0, 0] for _ in hosts]

    def _count(self, sender: Place, receiver: Place, payload: int, header: int, packets: int, datagrams: int) -> None:
        for place, direction in ((sender, 0), (receiver, 1)):
            if isinstance(place, int):
                self.processes[place][direction] += payload
                self.processes[place][2 + direction] += datagrams
        ends = [self.hosts[place] if isinstance(place, int) else SWITCH for place in (sender, receiver)]
        if ends[0] == ends[1]:
            return
        for end, direction in zip(ends, (0, 1), strict=True):
            if isinstance(end, int):
                self.links[end][direction] += payload + header * packets
                self.links[end][2 + direction] += packets

    def tcp(self, sender: int, receiver: int, size: int) -> None:
        """A message; an interface counts runs of segments as one. Every second packet is acknowledged."""
        piece = SEGMENT if self.source == "tbf" else 40 * SEGMENT
        packets = -(-size // piece)
        self._count(sender, receiver, size, HEADERS, packets, 0)
        self._count(receiver, sender, 0, HEADERS, -(-packets // 2), 0)

    def datagram(self, sender: Place, receiver: Place, values: int) -> None:
        self._count(sender, receiver, 24 + values, 42, 1, 1)

    def carried(self) -> list[Carried]:
        counts = self.processes if self.source == "payload" else [self.links[host] for host in sorted(self.links)]
        return [Carried(*count) for count in counts]

    def payload(self) -> list[Carried]:
        return [Carried(*count) for count in self.processes]


def ring(network: Network, workers: int, size: int) -> None:
    """Each step every worker sends one chunk on: n-1 to add, n-1 to hand around."""
    chunk = size // workers
    for _ in range(2 * (workers - 1)):
        for worker in range(workers):
            network.tcp(worker, (worker + 1) % workers, chunk)


def parameter_servers(network: Network, workers: int, servers: int, size: int) -> None:
    for worker in range(workers):
        for server in range(workers, workers + servers):
            network.tcp(worker, server, size // servers)
            network.tcp(server, worker, size // servers)


def switch(network: Network, workers: int, size: int, lanes: int) -> None:
    """Slots ask for an exponent first; then each packet carries ELEMENTS lanes."""
    for _ in range(64):
        for worker in range(workers):
            network.datagram(worker, SWITCH, 0)
            network.datagram(SWITCH, worker, 0)
    left = size // 4
    while left > 0:
        for worker in range(workers):
            network.datagram(worker, SWITCH, 4 * ELEMENTS)
            network.datagram(SWITCH, worker, 4 * ELEMENTS)
        left -= ELEMENTS * 32 // lanes


def row(benchmark: str, transport: str, size: int, workers: int, hosts: Sequence[int], source: str, run: Run) -> Series:
    return Series(
        benchmark=benchmark,
        transport=transport,
        mode="",
        payload="payload",
        size_bytes=size,
        buffers=1,
        dtype="float32",
        redop="sum",
        workers=workers,
        servers=len(hosts) - workers,
        hosts=list(hosts),
        lanes={"switchsum16": 16, "switchsum8": 8}.get(transport, 32),
        link_source=source,
        runs=[run],
    )


def finished(network: Network, workers: int, operations: int) -> Run:
    run = Run(0, seconds=[[1.0] * operations for _ in range(workers)], carried=network.carried(), payload=network.payload())
    run.resent_bytes = [0] * len(network.hosts)
    return run


def judged(series: Series) -> list[Verdict]:
    names = [str(process) for process in range(len(series.hosts))]
    buffers = [Buffer(series.size_bytes, "float32")]
    return conservation.verdicts(series, buffers, ELEMENTS, series.transport, names)


def assert_conserved_and_sensitive(series: Series) -> None:
    """All hosts are within the tolerance, and each is seen when its count changes by a tenth of the payload."""
    for verdict in judged(series):
        assert verdict.ok, verdict
        assert verdict.ratio is None or verdict.ratio == pytest.approx(1, abs=0.005)
    [run] = series.runs
    for index, count in enumerate(run.carried):
        more = series.size_bytes * run.operations // 10 + max(count.sent_bytes, count.received_bytes) // 20
        for name in ("sent_bytes", "received_bytes"):
            for change in (more, -more) if getattr(count, name) > 2 * more else (more,):
                wrong = [*run.carried]
                wrong[index] = replace(count, **{name: getattr(count, name) + change})
                failed = [each for each in judged(replace(series, runs=[replace(run, carried=wrong)])) if each.ok is False]
                assert len(failed) == 1
                assert failed[0].direction == name.removesuffix("_bytes")
                assert ("more" if change > 0 else "less") in failed[0].note


SIZES = st.integers(25, 40).map(lambda number: number * 40320)  # divides among up to 8 workers and servers


@given(st.data(), SIZES, st.integers(2, 8), st.sampled_from(["tbf", "interface", "payload"]), st.integers(1, 3))
@settings(max_examples=25, deadline=None)
def test_ring_and_switch(data: st.DataObject, size: int, workers: int, source: str, operations: int) -> None:
    transport = data.draw(st.sampled_from(["gloo", "switchsum", "switchsum16", "switchsum8"]))
    network = Network(range(workers), source)
    for _ in range(operations):
        if transport == "gloo":
            ring(network, workers, size)
        else:
            switch(network, workers, size, {"switchsum16": 16, "switchsum8": 8}.get(transport, 32))
    assert_conserved_and_sensitive(
        row("allreduce", transport, size, workers, range(workers), source, finished(network, workers, operations))
    )


@given(st.data(), SIZES, st.integers(1, 5), st.integers(1, 4), st.sampled_from(["tbf", "payload"]), st.integers(1, 3))
@settings(max_examples=25, deadline=None)
def test_parameter_servers_and_calls_wherever_they_are(
    data: st.DataObject, size: int, workers: int, servers: int, source: str, operations: int
) -> None:
    """Servers may share hosts with workers and with each other; what stays on a host is on no link."""
    anywhere = st.integers(0, workers + servers - 1)
    hosts = [*range(workers), *(data.draw(anywhere) for _ in range(servers))]
    benchmark = data.draw(st.sampled_from(["allreduce", "ps-throughput", "p2p-bandwidth"]))
    network = Network(hosts, source)
    made = [data.draw(st.integers(1, 3)) for _ in range(workers)]
    if benchmark == "allreduce":
        for _ in range(operations):
            parameter_servers(network, workers, servers, size)
    else:
        for worker, calls in enumerate(made):
            for _ in range(calls):
                for server in range(workers, workers + servers):
                    network.tcp(worker, server, size)
                    network.tcp(server, worker, size if benchmark == "ps-throughput" else 8)
    run = finished(network, workers, operations)
    run.made = [] if benchmark == "allreduce" else [calls * servers for calls in made]
    assert_conserved_and_sensitive(row(benchmark, "grpc", size, workers, hosts, source, run))


def test_resent_bytes_are_allowed_for_but_not_more() -> None:
    network = Network([0, 1], "tbf")
    ring(network, 2, 2_000_000)
    run = finished(network, 2, 1)
    run.carried[0] = replace(run.carried[0], sent_bytes=run.carried[0].sent_bytes + 200_000)
    series = row("allreduce", "gloo", 2_000_000, 2, [0, 1], "tbf", run)
    told = [each for each in judged(series) if each.ok is False]
    assert [(each.host, each.direction, each.note) for each in told] == [
        ("0", "sent", "the link carried more than the algorithm must move")
    ]
    run.resent_bytes = [200_000, 0]
    [own] = [each for each in judged(series) if (each.host, each.direction) == ("0", "sent")]
    assert (own.ok, own.ratio, own.resent) == (True, pytest.approx(1.1, abs=0.001), 200_000)
    run.resent_bytes = [0, 200_000]  # of the other one
    assert conservation.failed(judged(series))
    run.resent_bytes = [1000, 0]
    assert {each.note for each in judged(series) if each.ok is False} == {
        "the link carried more than the algorithm must move, even without what was sent again"
    }


def test_what_cannot_be_judged_says_why() -> None:
    def told(**changes: object) -> list[str]:
        network = Network([0, 1], "tbf")
        ring(network, 2, 1000)
        run = finished(network, 2, 1)
        run.lost = 7 if "lost" in changes else 0
        series = row("allreduce", str(changes.get("transport", "gloo")), 1000, 2, [0, 1], "tbf", run)
        series.size_bytes = int(str(changes.get("size", 1_000_000)))
        found = judged(series)
        assert {each.ok for each in found} == {None}
        return sorted({each.note for each in found})

    assert told(size=1000) == ["below 1000000 B framing may be more than 3 %"]
    assert told(lost=7, transport="limit") == ["7 datagrams were lost, which nobody sends again"]
    assert told(transport="nccl") == ["NCCL chooses its algorithm and its way"]


def test_lines_tell_the_worst_host_and_the_verdict() -> None:
    network = Network([0, 1], "tbf")
    ring(network, 2, 2_000_000)
    good = row("allreduce", "gloo", 2_000_000, 2, [0, 1], "tbf", finished(network, 2, 1))
    bad = replace(
        good, runs=[replace(good.runs[0], carried=[replace(good.runs[0].carried[0], sent_bytes=1), *good.runs[0].carried[1:]])]
    )
    small = replace(good, size_bytes=1000)
    assert conservation.lines([judged(good), judged(small)])[-1] == ("# Conservation within 3 % : OK (1 of 2 rows not judged)")
    lines = conservation.lines([judged(good), judged(bad)])
    assert lines[-1] == "# Conservation within 3 % : FAILED in 1 row"
    assert "FAILED: the link carried less than the algorithm must move (0 sent, by tbf)" in lines[-2]
    assert conservation.lines([judged(small)])[-1] == "# Conservation within 3 % : - (1 of 1 rows not judged)"


@pytest.mark.skipif(namespaces.what_is_missing() is not None, reason=f"racks: {namespaces.what_is_missing()}")
def test_a_rack_conserves_and_a_tampered_count_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Everything is conserved, except where the test adds half to what worker 1 sent over the bridge."""
    honest = bench_sites.RackSite.link_counters

    def tampered(site: bench_sites.RackSite) -> list[Carried] | None:
        counts = honest(site)
        if counts is not None and not site.switch_pids:
            counts[1] = replace(counts[1], sent_bytes=counts[1].sent_bytes * 3 // 2)
        return counts

    monkeypatch.setattr(bench_sites.RackSite, "link_counters", tampered)
    raw = tmp_path / "raw.json"
    options = ["--rack", str(RACKS / "two.yaml"), "--rate", "500M", "--size", "2M", "--duration", "0.01", "--warmup", "0.01"]
    transports = ["--transport", "switchsum", "--transport", "gloo", "--transport", "tcp", "--num-ps", "1"]
    assert bench([*options, *transports, "--placement", "dedicated", "--json", str(raw)], monkeypatch) == 1
    printed = capsys.readouterr()
    assert "# Out of bounds values : 0 OK" in printed.out, printed.err
    assert "# Conservation within 3 % : FAILED in 2 rows" in printed.out
    results = Results.load(raw)
    verdicts = results.verdicts
    workers = [f"worker {rank} (w{rank})" for rank in (0, 0, 1, 1)]
    server = "parameter server 0 (w2)"
    assert [(each["label"], each["host"]) for each in verdicts] == [
        *(("switchsum", worker) for worker in workers),
        *(("gloo", worker) for worker in workers),
        *(("tcp", name) for name in [*workers, server, server]),
    ]
    assert [each["predicted"] for each in verdicts[-2:]] == [2 * 2_097_152] * 2
    assert {each["source"] for each in verdicts} == {"tbf"}
    failed = [(each["label"], each["host"], each["direction"]) for each in verdicts if not each["ok"]]
    assert failed == [(name, "worker 1 (w1)", "sent") for name in ("gloo", "tcp")]
    tracks = results.timeline["tracks"]
    bridged = ["gloo", "tcp"]
    assert [(track["kind"], track["name"], track["transports"]) for track in tracks] == [
        ("machine", "machine", ["switchsum", *bridged]),
        ("switch", "switch", ["switchsum"]),
        *(("rank", f"worker {rank} (w{rank})", ["switchsum"]) for rank in range(2)),
        *(("rank", f"worker {rank} (w{rank})", bridged) for rank in range(2)),
        ("rank", server, bridged),
    ]
    for track in tracks:
        if track["kind"] == "rank":
            assert track["samples"]["sent_bytes"][-1] > 5 * 2_097_152
    assert len(results.timeline["marks"]) == 15
    assert not [name for name in namespaces.names() if name.startswith(f"switchsum.bench-{os.getpid()}")]

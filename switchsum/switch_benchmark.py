"""python -m switchsum.switch_benchmark [--bmv2 PATH] [build.json ...]: nanoseconds of compiled code for each contribution.

For every build of the switch program (p4src/build by default) a job of four workers runs whole rounds: one overwrite, two
additions, one addition that completes the sum and multicasts it to all four. The sums are checked before anything is timed. A
contribution that only adds is timed too, in a job of 32 workers that is never complete. With --bmv2 (as root), the rounds of
four workers also go through simple_switch_grpc, by real packets: see bmv2_benchmark.py.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import ipaddress
import multiprocessing
import os
import socket
import struct
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from switchsum.bmv2_benchmark import rates
from switchsum.bmv2_topologies import namespaces
from switchsum.p4src.layout import HEADER_BYTES, HEADER_DTYPE, SERVICE_PORT, WIRE_VERSION, PacketType
from switchsum.softswitch.benchmark import Packets, Timing, measure
from switchsum.softswitch.dataplane import Dataplane, Program, Table
from switchsum.softswitch.interface_ports import InterfacePorts
from switchsum.softswitch.serving import enlarge_buffers
from switchsum.softswitch.stages import Stages
from switchsum.softswitch.tables import Exact
from switchsum.softswitch.udp_ports import UdpPorts

Bytes = npt.NDArray[np.uint8]
Address = tuple[str, int]

BUILD = Path(__file__).resolve().parent / "p4src" / "build"
SWITCH_IP = ipaddress.IPv4Address("10.83.0.1")
FIRST_IP = ipaddress.IPv4Address("10.83.1.0")
SWITCH_MAC = 0x025353000000
UDP_PORT = 40000
JOB, EPOCH, GROUP = 7, 3, 9
SLOTS_USED = 64
BEFORE_SERVICE = 14 + 20 + 8  # Ethernet, IPv4, UDP


def _table(dataplane: Dataplane, suffix: str) -> Table:
    return next(table for name, table in dataplane.tables.items() if name.endswith(suffix))


def _action(table: Table, suffix: str) -> str:
    return next(name for name in table.actions if name.endswith(suffix))


def install_job(dataplane: Dataplane, workers: int, endpoints: list[Address] | None = None, slots: int = SLOTS_USED) -> None:
    """One job, worker i on port i, in the tables the controller would write. `endpoints`: address and UDP port of each."""
    addresses, jobs = _table(dataplane, "own_address.addresses"), _table(dataplane, "membership.jobs")
    members, peers = _table(dataplane, "membership.workers"), _table(dataplane, "addressing.peers")
    key = (Exact(JOB), Exact(EPOCH))
    addresses.insert((Exact(int(SWITCH_IP)),), 0, _action(addresses, ".own"), (SWITCH_MAC,))
    for i in range(workers):
        address, udp_port = int(FIRST_IP) + i, UDP_PORT
        if endpoints is not None:
            address, udp_port = int(ipaddress.IPv4Address(endpoints[i][0])), endpoints[i][1]
        members.insert((*key, Exact(i), Exact(address), Exact(udp_port)), 0, _action(members, "admit_worker"), (i, 1 << i))
        peers.insert((*key, Exact(i)), 0, _action(peers, "to_worker"), (0x020000000000 + i, address, udp_port))
    jobs.insert(key, 0, _action(jobs, "admit_job"), (0, slots, (1 << workers) - 1, GROUP))
    dataplane.multicast_groups.insert(GROUP, [(i, i + 1) for i in range(workers)])


def contribution(worker: int, slot: int, values: np.ndarray[tuple[int], np.dtype[np.uint32]]) -> bytes:
    """The frame of one contribution, phase 0."""
    header = np.zeros(1, HEADER_DTYPE)
    fields = {
        "version": WIRE_VERSION,
        "type": PacketType.CONTRIBUTION,
        "job": JOB,
        "epoch": EPOCH,
        "slot": slot,
        "worker": worker,
    }
    for name, value in fields.items():
        header[name] = value
    payload = header.tobytes() + values.astype(">u4").tobytes()
    ip = struct.pack("!BBHHHBBHII", 0x45, 0, 28 + len(payload), 0, 0x4000, 64, 17, 0, int(FIRST_IP) + worker, int(SWITCH_IP))
    total = sum(struct.unpack("!10H", ip))
    total = (total & 0xFFFF) + (total >> 16)
    ip = ip[:10] + struct.pack("!H", ~total & 0xFFFF) + ip[12:]
    udp = struct.pack("!HHHH", UDP_PORT, SERVICE_PORT, 8 + len(payload), 0)
    ethernet = SWITCH_MAC.to_bytes(6, "big") + (0x020000000000 + worker).to_bytes(6, "big") + b"\x08\x00"
    return ethernet + ip + udp + payload


def elements_of(program: Program) -> int:
    """Elements a packet: 32-bit lanes in the values header."""
    return program.headers["values"].type.fixed_bits // 32


def time_rounds(program: Program, workers: int, senders: int) -> Timing:
    """`senders` of `workers` contribute to every slot, one after the other; the phase rises with every repetition.

    Raises RuntimeError if the switch's sums are wrong.
    """
    dataplane = Dataplane(program)
    install_job(dataplane, workers)
    elements = elements_of(program)
    rng = np.random.default_rng(1)
    values = rng.integers(0, (1 << 32) // workers, (senders, elements), np.uint32)
    frames = [(w, contribution(w, slot, values[w])) for slot in range(SLOTS_USED) for w in range(senders)]
    packets = Packets.of(frames)
    rows = packets.buffer.reshape(len(frames), -1)
    phase_offset = BEFORE_SERVICE + int(HEADER_DTYPE.fields["phase"][1])  # type: ignore[index]

    def next_phase(number: int) -> None:
        rows[:, phase_offset : phase_offset + 4] = np.frombuffer(struct.pack("!I", number + 1), np.uint8)

    next_phase(-1)
    batch = dataplane.process_batch(packets.ports, packets.offsets, packets.lengths, packets.buffer)
    answers = batch.frames()
    expected = workers * SLOTS_USED if senders == workers else 0
    sums = values.astype(np.uint64).sum(axis=0) % (1 << 32)
    for _, frame in answers:
        got = np.frombuffer(frame[BEFORE_SERVICE + HEADER_BYTES :], ">u4")
        if not np.array_equal(got, sums):
            raise RuntimeError(f"{program.source}: the switch's sum is wrong")
    if len(answers) != expected:
        raise RuntimeError(f"{program.source}: {len(answers)} answers where {expected} are due: {dataplane.statistics}")
    return measure(dataplane, packets, next_phase)


def bmv2_rates(binary: str, path: Path, program: Program, workers: int = 4) -> list[str]:
    """The rounds of time_rounds() through BMv2, as lines to print. Errors: those of bmv2_benchmark.rates()."""
    dataplane = Dataplane(program)
    install_job(dataplane, workers)
    rng = np.random.default_rng(1)
    values = rng.integers(0, (1 << 32) // workers, (workers, elements_of(program)), np.uint32)
    frames = [[contribution(w, slot, values[w]) for slot in range(SLOTS_USED)] for w in range(workers)]
    return rates(binary, path, dataplane, frames, values.astype(np.uint64).sum(axis=0) % (1 << 32))


PROFILED_SLOTS = 512  # two halves, one on its way while the other is summed
RUN = 60  # datagrams of one send call, as the host agent has it
_UDP_SEGMENT, _UDP_GRO = 103, 104  # linux/udp.h


def drive(hosts: list[socket.socket], switch: list[Address], payloads: list[Bytes], seconds: float) -> None:
    """All workers: contribute to every slot, phase after phase, for `seconds`; leave the sums unread.

    hosts[w] sends payloads[w], u8[slots][bytes], to switch[w].
    """
    half = PROFILED_SLOTS // 2
    size = payloads[0].shape[1]
    phase_at = int(HEADER_DTYPE.fields["phase"][1])  # type: ignore[index]
    received_by, due = [0] * len(hosts), 0
    segments = [(socket.IPPROTO_UDP, _UDP_SEGMENT, struct.pack("=H", size))]
    nothing = bytearray(1)

    def send(first: int, phase: int) -> None:
        for payload in payloads:
            payload[first : first + half, phase_at : phase_at + 4] = np.frombuffer(struct.pack("!I", phase), np.uint8)
        for start in range(first, first + half, RUN):
            for host, address, payload in zip(hosts, switch, payloads, strict=True):
                host.sendmsg([payload[start : min(start + RUN, first + half)].data], segments, 0, address)

    for host in hosts:
        host.setsockopt(socket.IPPROTO_UDP, _UDP_GRO, 1)
        host.settimeout(5)
    send(0, 1)
    send(half, 1)
    end = time.monotonic() + seconds
    phase = 1
    while time.monotonic() < end:
        phase += 1
        for first in (0, half):
            due += half * size
            for index, host in enumerate(hosts):
                while received_by[index] < due:
                    received_by[index] += host.recv_into(nothing, 1, socket.MSG_TRUNC)
            send(first, phase)


def _host_socket(address: str) -> socket.socket:
    opened = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    opened.bind((address, 0))
    enlarge_buffers(opened)
    return opened


def _on_loopback(
    dataplane: Dataplane, workers: int, _: contextlib.ExitStack
) -> tuple[UdpPorts, list[socket.socket], list[Address]]:
    ports = UdpPorts(lambda: dataplane, dict.fromkeys(range(workers), ("127.0.0.1", 0)), str(SWITCH_IP), SERVICE_PORT)
    return ports, [_host_socket("127.0.0.1") for _ in range(workers)], [ports.addresses[w] for w in range(workers)]


def _on_interfaces(
    dataplane: Dataplane, workers: int, stack: contextlib.ExitStack
) -> tuple[InterfacePorts, list[socket.socket], list[Address]]:
    """A veth pair for each worker, whose end lies in a namespace of its own."""
    name = f"switchsum-profile-{os.getpid()}"
    hosts = []
    for namespace in (name, *(f"{name}-{w}" for w in range(workers))):
        namespaces.add(namespace)
        stack.callback(namespaces.delete, namespace)
    mac = ":".join(f"{byte:02x}" for byte in SWITCH_MAC.to_bytes(6, "big"))
    for w in range(workers):
        host, address = f"{name}-{w}", str(FIRST_IP + w)
        own = f"02:00:00:00:00:{w:02x}"
        namespaces.ip(name, [f"link add port{w} type veth peer name eth0 netns {host} address {own}", f"link set port{w} up"])
        neighbour = f"neigh add {SWITCH_IP} lladdr {mac} dev eth0"
        namespaces.ip(host, ["link set eth0 up", f"address add {address}/16 dev eth0", neighbour])
        namespaces.turn_off(host, "eth0", ("tso",))
        hosts.append(namespaces.inside(host, functools.partial(_host_socket, address)))
    ports = namespaces.inside(name, lambda: InterfacePorts(lambda: dataplane, {w: f"port{w}" for w in range(workers)}))
    return ports, hosts, [(str(SWITCH_IP), SERVICE_PORT)] * workers


def profile(program: Program, workers: int, seconds: float, interfaces: bool = False) -> Stages:
    """A switch under the load of a driver in another process: its serving thread's time by stage.

    Its ports are UDP sockets on loopback or, with `interfaces`, veth pairs (root only).
    """
    dataplane = Dataplane(program)
    values = np.random.default_rng(1).integers(0, 1 << 28, (workers, elements_of(program)), np.uint32)
    payloads = [
        np.frombuffer(b"".join(contribution(w, slot, values[w])[BEFORE_SERVICE:] for slot in range(PROFILED_SLOTS)), np.uint8)
        .reshape(PROFILED_SLOTS, -1)
        .copy()
        for w in range(workers)
    ]
    with contextlib.ExitStack() as stack:
        ports, hosts, to = (_on_interfaces if interfaces else _on_loopback)(dataplane, workers, stack)
        stack.callback(ports.close)
        install_job(dataplane, workers, [host.getsockname() for host in hosts], PROFILED_SLOTS)
        # Forked before the switch's thread exists.
        driver = multiprocessing.get_context("fork").Process(target=drive, args=(hosts, to, payloads, seconds + 1))
        driver.start()
        for host in hosts:
            host.close()
        ports.start()
        time.sleep(0.5)  # the first batches find cold caches
        stages = ports.measure()
        time.sleep(seconds)
        stages = replace(stages)
        driver.join()
        if driver.exitcode:
            raise RuntimeError(f"the driver ended with status {driver.exitcode}: {dataplane.statistics}, {ports.statistics}")
    return stages


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m switchsum.switch_benchmark", description="Nanoseconds a contribution.")
    parser.add_argument("builds", nargs="*", type=Path, help="BMv2 JSON files; default: all of p4src/build")
    parser.add_argument("--bmv2", metavar="PATH", help="measure this simple_switch_grpc beside it; needs root and iproute2")
    parser.add_argument("--profile", type=float, metavar="SECONDS", help="drive real ports instead: the thread's time by stage")
    parser.add_argument("--interfaces", action="store_true", help="with --profile: veth pairs, not UDP sockets; needs root")
    options = parser.parse_args(arguments)
    if (options.bmv2 or options.interfaces) and (problem := namespaces.what_is_missing()):
        parser.error(f"--bmv2 and --interfaces need network namespaces, but {problem}")
    if options.bmv2 and not os.access(options.bmv2, os.X_OK):
        parser.error(f"--bmv2 {options.bmv2} is not a program that can be run; give the path of simple_switch_grpc")
    paths = options.builds or sorted(BUILD.glob("*.json"))
    paths = [path for path in paths if "manifest" not in path.name]
    if not paths:
        print(f"no builds in {BUILD}: run make p4", file=sys.stderr)
        return 1
    for path in paths:
        start = time.perf_counter()
        program = Program.load(path)
        loaded = time.perf_counter()
        _ = program.native
        print(f"{path.name}: {elements_of(program)} elements; load {loaded - start:.2f} s, "
              f"compile {time.perf_counter() - loaded:.2f} s (cached: less)")  # fmt: skip
        if options.profile:
            where = "veth pairs" if options.interfaces else "loopback"
            print(f"  4 workers on {where}: {profile(program, 4, options.profile, options.interfaces)}", flush=True)
            continue
        print(f"  whole rounds of 4 workers, multicast included: {time_rounds(program, 4, 4)}")
        print(f"  additions alone, sum not complete:             {time_rounds(program, 32, 31)}")
        for line in bmv2_rates(options.bmv2, path, program) if options.bmv2 else ():
            print(f"  {line}", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

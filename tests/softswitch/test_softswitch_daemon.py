"""The whole switch in one object: from nothing to answered packets over its two faces, and to nothing again."""

import re
import signal
import socket
import subprocess
import sys
import threading

import pytest

from switchsum.p4src import layout
from switchsum.softswitch import daemon
from switchsum.softswitch.daemon import SoftSwitch, consecutive_ports, ready_line
from tests.p4runtime.raw_client import Client, Names, Set, inserts, later_build, p4info

TIMEOUT_S = 20


def test_a_controller_loads_the_program_and_packets_are_answered() -> None:
    names = Names(p4info())
    with SoftSwitch(ports=2) as switch, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as host:
        host.settimeout(TIMEOUT_S)
        client = Client(switch.grpc_address)
        client.become_primary()
        client.set_pipeline()
        client.write(*inserts(names.entry("op", b"\x01", action=names.action("reflect"))))
        host.sendto(b"\x01\x03hello", switch.port_addresses[2])
        assert host.recvfrom(100) == (b"\x01\x03hello", switch.port_addresses[2])
        (entry,) = client.read(table_entry=names.entry("op", counter_data={}))
        assert (entry.counter_data.packet_count, entry.counter_data.byte_count) == (1, 42 + 7)
        cell = client.read(counter_entry={"counter_id": names.counter_id("tags"), "index": {"index": 3}})[0]
        assert (cell.data.packet_count, cell.data.byte_count) == (1, 42 + 7)
        client.close()


def test_pipelines_are_replaced_under_traffic_without_losing_an_answer() -> None:
    """RECONCILE_AND_COMMIT of a changed program keeps the entry that answers; only the reference is swapped."""
    names = Names(p4info())
    stop = threading.Event()
    answered: list[int] = []
    with SoftSwitch(ports=1) as switch, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as host:
        host.settimeout(TIMEOUT_S)
        client = Client(switch.grpc_address)
        client.become_primary()
        client.set_pipeline()
        client.write(*inserts(names.entry("op", b"\x01", action=names.action("reflect"))))

        def talk() -> None:
            number = 0
            while not stop.is_set():
                number += 1
                request = b"\x01" + number.to_bytes(4, "big")
                host.sendto(request, switch.port_addresses[1])
                if host.recv(100) == request:
                    answered.append(number)

        talker = threading.Thread(target=talk)
        talker.start()
        before = switch.dataplane
        for _ in range(5):
            client.set_pipeline(Set.RECONCILE_AND_COMMIT, device_config=later_build())
            client.set_pipeline(Set.RECONCILE_AND_COMMIT)
        stop.set()
        talker.join()
        assert switch.dataplane is not before
        assert answered == list(range(1, len(answered) + 1))
        client.close()


def test_closing_is_complete_and_may_be_repeated() -> None:
    threads = set(threading.enumerate())  # of other tests' switches too
    switch = SoftSwitch(ports=3)
    switch.start()
    client = Client(switch.grpc_address)
    client.become_primary()
    addresses = switch.port_addresses
    client.close()
    switch.close()
    switch.close()
    again = SoftSwitch(grpc=switch.grpc_address, ports=addresses)
    assert again.port_addresses == addresses
    again.close()
    left = set(threading.enumerate()) - threads
    assert [t.name for t in left if t.name.startswith(("p4runtime", "switch-ports"))] == []
    assert len(left) <= 1  # the client's own channel may still be going away


def test_a_switch_that_was_never_started_closes() -> None:
    SoftSwitch(ports=1).close()


def test_a_taken_p4runtime_address_is_named_and_the_ports_are_freed() -> None:
    with SoftSwitch(ports=1) as first:
        threads = set(threading.enumerate())
        with pytest.raises(OSError, match=f"cannot bind {first.grpc_address}"):
            SoftSwitch(grpc=first.grpc_address, ports={1: ("127.0.0.1", 0)})
        assert [t.name for t in set(threading.enumerate()) - threads if t.name == "switch-ports"] == []


def test_bad_arguments_are_named() -> None:
    with pytest.raises(ValueError, match="at least one"):
        SoftSwitch(ports=0)
    with pytest.raises(ValueError, match="device id 0"):
        SoftSwitch(device_id=0)
    with pytest.raises(ValueError, match="do not exist"):
        consecutive_ports("127.0.0.1", 65530, 8)
    with pytest.raises(ValueError, match="host:port"):
        SoftSwitch(grpc="9559")


def test_ports_by_base() -> None:
    assert consecutive_ports("127.0.0.1", 9000, 2) == {1: ("127.0.0.1", 9001), 2: ("127.0.0.1", 9002)}
    assert consecutive_ports("127.0.0.1", 0, 1) == {1: ("127.0.0.1", 0)}


def test_the_defaults_are_those_of_the_protocol() -> None:
    assert daemon.DEFAULT_SERVICE_PORT == layout.SERVICE_PORT


DAEMON = """
from switchsum.softswitch.daemon import SoftSwitch, run
run(SoftSwitch(ports=2), lambda line: print(line, flush=True))
print("closed")
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_daemon_says_where_it_is_and_ends_at_a_signal(number: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", DAEMON], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.fullmatch(r"switch ready: P4Runtime (127\.0\.0\.1:\d+), ports 1=127\.0\.0\.1:\d+, 2=\S+\n", line)
        assert found, line
        client = Client(found[1])
        client.become_primary()
        process.send_signal(number)
        assert process.stdout.readline() == "closed\n"
        assert process.wait(TIMEOUT_S) == 0
        client.close()


def test_the_ready_line_of_consecutive_ports_is_short() -> None:
    switch = SoftSwitch(ports=1)
    port = switch.port_addresses[1][1]
    assert ready_line(switch) == f"switch ready: P4Runtime {switch.grpc_address}, ports 1..1 at 127.0.0.1:{port}..{port}"
    switch.close()

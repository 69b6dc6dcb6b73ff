"""Controllers that are not there, or not what they should be; a switch that is out of reach; ports that are taken."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from switchsum.bmv2_topologies import namespaces
from switchsum.controller.daemon import ControllerDaemon
from switchsum.doctor import examination, services
from switchsum.doctor.findings import Controller, Host, Role, Status
from switchsum.p4src.layout import WIRE_VERSION
from switchsum.protos import job_pb2 as pb
from switchsum.softswitch.daemon import SoftSwitch
from tests.controller.conftest import make_controller
from tests.doctor.conftest import WORKER, Lan, about, needs_root, only, statuses

WORKER_ROLE = frozenset({Role.WORKER})
CONTROLLER = Host(frozenset({Role.CONTROLLER}), asked=True)
PIPELINE = "switchsum 1, 256 elements, lanes"


@pytest.fixture(scope="module")
def controller() -> Iterator[ControllerDaemon]:
    with SoftSwitch(ports=2) as switch, make_controller(switch) as controller:
        yield controller


def asked(address: str) -> Host:
    return Host(WORKER_ROLE, controllers=(examination.ask(address),))


def answering(address: str = "10.83.0.254:50099", **fields: object) -> Host:
    """A host whose controller answered so."""
    reply = pb.InspectReply(**{"pipeline": PIPELINE, **fields})  # type: ignore[arg-type]
    return Host(WORKER_ROLE, controllers=(Controller(address, reply),))


def test_a_controller_that_serves(controller: ControllerDaemon) -> None:
    host = asked(controller.address)
    finding = only(services.controllers(host))
    assert finding.status is Status.FINE
    assert finding.found.endswith("switchsum 1, 64 elements, lanes; 0 jobs run, 2048 of 2048 slots are free")
    reply = host.reply
    assert reply is not None
    assert (reply.data_address, reply.wire_version) == ("127.0.0.1", WIRE_VERSION)
    assert only(services.switch(host)).found == "an embedded switch on this machine"
    assert list(services.ipv4(host)) == []


def test_no_controller_is_configured() -> None:
    assert only(services.controllers(WORKER)).status is Status.NOTE


def test_nobody_listens() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        finding = only(services.controllers(asked("{}:{}".format(*closed.getsockname()))))
    assert finding.status is Status.ERROR
    assert finding.found == "cannot be reached: Connection refused"
    assert finding.remedy.startswith("start it (`switchsum controller`)")


def test_something_else_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        finding = only(services.controllers(asked("{}:{}".format(*mute.getsockname()))))
    assert finding.status is Status.ERROR
    assert finding.found.startswith("no controller answers at 127.0.0.1:")


@pytest.mark.parametrize(
    ("address", "found"),
    [
        ("nowhere", "is not an address"),
        ("[::1]:0", "is not an address"),
        ("no.such.invalid:1", "no.such.invalid cannot be resolved"),
    ],
)
def test_addresses_that_are_none(address: str, found: str) -> None:
    finding = only(services.controllers(asked(address)))
    assert finding.status is Status.ERROR
    assert finding.found.startswith(found)


def test_no_way_leads_to_the_controller(lan: Lan) -> None:
    answer = namespaces.inside(lan.here, lambda: services.ask("192.0.2.9:50099"))
    assert (answer.problem, answer.remedy) == (
        "cannot be reached: Network is unreachable",
        "find a way: `ip route get 192.0.2.9`",
    )


def test_another_wire_version() -> None:
    finding = about(services.controllers(answering(wire_version=0x42)), "controller 10.83.0.254:50099: version")
    assert finding.status is Status.ERROR
    assert "speaks wire version 0x42" in finding.found


def test_a_controller_without_its_switch() -> None:
    finding = about(services.controllers(answering(switch_problem="it is gone")), "controller 10.83.0.254:50099: switch")
    assert finding.status is Status.ERROR
    assert finding.found.startswith("it is gone")


def test_a_standby_is_no_fault() -> None:
    assert only(services.controllers(answering(standby=True, switch_problem="it stands by"))).status is Status.NOTE


def test_the_controller_in_charge_is_believed() -> None:
    replies = [pb.InspectReply(standby=True), pb.InspectReply(pipeline=PIPELINE)]
    host = Host(WORKER_ROLE, controllers=tuple(Controller("10.83.0.254:1", reply) for reply in replies))
    assert host.reply is replies[1]


def test_clocks_that_differ() -> None:
    host = Host(WORKER_ROLE, controllers=(Controller("a:1", pb.InspectReply(), clock_ahead_s=-90.0),))
    finding = about(services.controllers(host), "controller a:1: time of day")
    assert finding.status is Status.NOTE
    assert "by 90.0 s" in finding.found
    slow = Host(WORKER_ROLE, controllers=(Controller("a:1", pb.InspectReply(), took_s=4.0, clock_ahead_s=-2.0),))
    assert only(services.controllers(slow)).status is Status.FINE


def test_a_controller_by_ipv6_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host(WORKER_ROLE, controllers=(Controller("[::1]:50099", pb.InspectReply()),))
    finding = only(services.ipv4(host))
    assert finding.status is Status.ERROR
    assert finding.remedy.startswith("export SWITCHSUM_DATA_ADDRESS=")
    monkeypatch.setenv("SWITCHSUM_DATA_ADDRESS", "127.0.0.1")
    assert list(services.ipv4(host)) == []


def test_an_embedded_switch_of_another_machine() -> None:
    finding = only(services.switch(answering("192.0.2.9:50099", data_address="127.0.0.1")))
    assert finding.status is Status.ERROR
    assert "switchsum controller --fabric FILE" in finding.remedy


def test_a_switch_that_answers(lan: Lan) -> None:
    finding = only(lan.examine(services.switch, answering(data_address="10.83.0.1")))
    assert finding.status is Status.FINE
    assert finding.found.startswith("answers a ping from 10.83.0.11 in ")


def test_a_switch_that_does_not(lan: Lan) -> None:
    finding = only(lan.examine(services.switch, answering(data_address="10.83.0.2")))
    assert finding.status is Status.ERROR
    assert finding.found.startswith("does not answer a ping from 10.83.0.11")


def test_no_way_leads_to_the_switch(lan: Lan) -> None:
    finding = only(lan.examine(services.switch, answering(data_address="10.99.0.1")))
    assert finding.status is Status.ERROR
    assert finding.found == "no way leads there: Network is unreachable"


def test_a_way_that_is_too_narrow(lan: Lan) -> None:
    namespaces.ip(lan.here, ["route add 10.99.0.0/24 via 10.83.0.1 mtu 600"])
    finding = only(lan.examine(services.switch, answering(data_address="10.99.0.1")))
    assert finding.status is Status.ERROR
    assert finding.found.startswith("the way from 10.83.0.11 carries 600 bytes a packet; those of a sum have 1076")


@needs_root
def test_a_user_who_may_not_ping(lan: Lan) -> None:
    program = (
        "from switchsum.doctor import services; from switchsum.doctor.findings import *\n"
        "from switchsum.protos import job_pb2 as pb\n"
        "reply = pb.InspectReply(data_address='10.83.0.1')\n"
        "host = Host(frozenset({Role.WORKER}), controllers=(Controller('10.83.0.254:1', reply),))\n"
        "for finding in services.switch(host): print(finding.status.value, finding.found)"
    )
    user = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]
    command = namespaces.command_inside(lan.here, [*user, sys.executable, "-c", program])
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=True, env={**os.environ, "HOME": "/nowhere"}
    )
    assert done.stdout.startswith("note a way from 10.83.0.11 exists; whether it answers was not asked")


def test_ports_that_are_free(lan: Lan) -> None:
    assert set(statuses(lan.examine(services.ports, CONTROLLER)).values()) == {Status.FINE}


def test_ports_that_are_taken(lan: Lan) -> None:
    def listener() -> socket.socket:
        return socket.create_server(("127.0.0.1", 50099))

    def port_three() -> socket.socket:
        opened = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        opened.bind(("127.0.0.1", 47003))
        return opened

    serving = Host(CONTROLLER.roles, controllers=answering(data_address="127.0.0.1").controllers)
    with namespaces.inside(lan.here, listener), namespaces.inside(lan.here, port_three):
        found = lan.examine(services.ports, CONTROLLER)
        assert about(lan.examine(services.ports, serving), "switch ports").status is Status.FINE
    assert statuses(found) == {
        "job service's port": Status.WARNING,
        "P4Runtime's port": Status.FINE,
        "switch ports": Status.WARNING,
    }
    assert about(found, "switch ports").found.startswith("UDP 47003 are taken")

"""Links that are down, too narrow, or help too much; addresses that are not this host's; names that are loopback.

Where a finding tells a command, the test runs it and looks again.
"""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from switchsum.bmv2_topologies import namespaces
from switchsum.doctor import network
from switchsum.doctor.findings import Controller, Host, Role, Status
from switchsum.protos import job_pb2 as pb
from tests.doctor.conftest import WORKER, Lan, about, needs_root, only

WORKER_ROLE = frozenset({Role.WORKER})
D0 = Host(WORKER_ROLE, interfaces=("d0",))
needs_ethtool = pytest.mark.skipif(shutil.which("ethtool") is None, reason="the remedy is an ethtool command")


def with_pipeline(pipeline: str, *, address: str = "10.83.0.254:50099", interfaces: tuple[str, ...] = ()) -> Host:
    return Host(WORKER_ROLE, controllers=(Controller(address, pb.InspectReply(pipeline=pipeline)),), interfaces=interfaces)


def test_an_mtu_below_a_packet(lan: Lan) -> None:
    namespaces.ip(lan.here, ["link set d0 mtu 1000"])
    finding = about(lan.examine(network.links, D0), "d0: MTU")
    assert finding.status is Status.ERROR
    assert finding.found.startswith("1000 bytes; a packet of a sum has 1076")
    lan.follow(finding.remedy.partition(";")[0])
    assert about(lan.examine(network.links, D0), "d0: MTU").status is Status.FINE


def test_the_controller_tells_how_large_packets_are(lan: Lan) -> None:
    namespaces.ip(lan.here, ["link set d0 mtu 1000"])
    small = with_pipeline("switchsum 1, 64 elements, lanes", interfaces=("d0",))
    assert about(lan.examine(network.links, small), "d0: MTU").status is Status.FINE


@needs_ethtool
@pytest.mark.parametrize(("layout", "status"), [("lanes", Status.WARNING), ("wide", Status.ERROR)])
def test_offloads_that_the_switch_cannot_bear(lan: Lan, layout: str, status: Status) -> None:
    host = with_pipeline(f"switchsum 1, 256 elements, {layout}", interfaces=("d0",))
    finding = about(lan.examine(network.links, host), "d0: offloads")
    assert finding.status is status
    assert "tso" in finding.found
    lan.follow(finding.remedy)
    assert about(lan.examine(network.links, host), "d0: offloads").status is Status.FINE


def test_a_link_that_is_down(lan: Lan) -> None:
    namespaces.ip(lan.here, ["link set d0 down"])
    finding = only(lan.examine(network.links, D0))
    assert (finding.status, finding.found) == (Status.ERROR, "is down")
    lan.follow(finding.remedy)
    assert about(lan.examine(network.links, D0), "d0: MTU").status is Status.FINE


def test_a_link_without_a_carrier(lan: Lan) -> None:
    namespaces.ip(lan.there, ["link set p0 down"])
    finding = only(lan.examine(network.links, D0))
    assert (finding.status, finding.found) == (Status.ERROR, "has no carrier")


def test_an_interface_that_does_not_exist(lan: Lan) -> None:
    finding = only(lan.examine(network.links, Host(WORKER_ROLE, interfaces=("d1",))))
    assert finding.status is Status.ERROR
    assert finding.remedy == "name one of lo, d0"


def test_the_interface_is_the_one_that_leads_to_the_controller(lan: Lan) -> None:
    found = lan.examine(network.links, with_pipeline("switchsum 1, 256 elements, lanes"))
    assert {finding.subject for finding in found} == {"d0: MTU", "d0: offloads"}


def test_the_interface_is_the_one_of_the_data_address(lan: Lan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWITCHSUM_DATA_ADDRESS", "10.83.0.11")
    assert about(lan.examine(network.links, WORKER), "d0: MTU").status is Status.FINE
    assert only(lan.examine(network.data_address, WORKER)).found == "10.83.0.11, of d0"


def test_without_a_hint_the_interface_is_unknown(lan: Lan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SWITCHSUM_DATA_ADDRESS", raising=False)
    assert only(lan.examine(network.links, WORKER)).status is Status.NOTE


@pytest.mark.parametrize(
    ("address", "found"),
    [("10.99.99.99", "10.99.99.99 is no address of this host"), ("fd00::2", "'fd00::2' is not an IPv4 address")],
)
def test_a_data_address_that_cannot_be(address: str, found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWITCHSUM_DATA_ADDRESS", address)
    finding = only(network.data_address(WORKER))
    assert finding.status is Status.ERROR
    assert finding.found.startswith(found)


def test_the_interface_that_gloo_shall_use(lan: Lan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "d0")
    assert only(lan.examine(network.gloo, WORKER)).status is Status.FINE
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth7")
    finding = only(lan.examine(network.gloo, WORKER))
    assert (finding.status, finding.found) == (Status.ERROR, "eth7 is no interface of this host")


@needs_root
@pytest.mark.parametrize(("controller", "status"), [("192.0.2.9:50099", "warning"), ("127.0.0.1:50099", "note")])
def test_a_host_name_that_is_loopback(controller: str, status: str) -> None:
    """As Debian's installer writes it into /etc/hosts. It matters once there is another host."""
    program = (
        "from switchsum.doctor import network; from switchsum.doctor.findings import *\n"
        f"host = Host(frozenset({{Role.WORKER}}), controllers=(Controller('{controller}', None),))\n"
        "for finding in network.gloo(host): print(finding.subject, finding.status.value, finding.found, sep='|')"
    )
    command = ["unshare", "--uts", "sh", "-c", 'hostname localhost && exec "$@"', "sh", sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    subject, found_status, found = done.stdout.strip().split("|")
    assert (subject, found_status) == ("host name", status)
    assert "127.0.0.1: Gloo would tell the ranks of other hosts loopback" in found

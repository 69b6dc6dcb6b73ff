"""A rack's file: what a good one means, and that a bad one is told file, line and field."""

from __future__ import annotations

from ipaddress import IPv4Address
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchsum.bmv2_topologies import rack_file, runner
from switchsum.bmv2_topologies.rack import namespace_of
from switchsum.bmv2_topologies.rack_file import Link, RackError
from switchsum.controller import fabric
from switchsum.controller.fabric import Loss

RACKS = Path(__file__).resolve().parents[2] / "bmv2_topologies" / "racks"
FULL = """\
name: lab
switches:
  tor: {kind: bmv2, elements: 64}
link: {rate: 1 Gbit/s, burst: 128 KiB, mtu: 9000}
loss: {in: 0.01}
network: 10.7.1.0/24
workers:
  left: {address: 10.7.1.10}
  right: {address: 10.7.1.20, link: {rate: 10.5mbit, mtu: 1500}, loss: {out: 0.5}}
"""


def test_every_field_arrives() -> None:
    rack = rack_file.parse(FULL, "some.yaml")
    assert (rack.name, rack.switch_name, rack.kind, rack.elements, rack.layout) == ("lab", "tor", "bmv2", 64, "wide")
    [controller] = rack.controllers
    listen = rack.reached_at(controller)
    assert (str(rack.switch_address), listen, controller.port) == ("10.7.1.1", "10.7.1.254:50099", 3)
    left, right = rack.workers
    assert (left.name, left.rank, left.port, left.address) == ("left", 0, 1, IPv4Address("10.7.1.10"))
    assert (left.link, left.loss) == (Link(10**9, 128 << 10, 9000), Loss(0.01, 0.0))
    assert (right.rank, right.port, right.mac) == (1, 2, "02:00:0a:07:01:14")
    assert (right.link, right.loss) == (Link(10_500_000, 128 << 10, 1500), Loss(0.0, 0.5))


def test_a_rack_may_have_a_second_network_and_a_second_controller() -> None:
    text = FULL + "management: 10.7.2.0/24\ncontroller: {lease: 1.5, standby: yes}\n"
    rack = rack_file.parse(text, "some.yaml")
    assert (rack.lease_s, [(host.name, host.port, str(host.address)) for host in rack.controllers]) == (
        1.5,
        [("controller", 3, "10.7.1.254"), ("standby", 4, "10.7.1.253")],
    )
    assert rack.fabric().ports == (1, 2, 3, 4)
    shown = rack.as_json()
    assert (shown["controller"]["listen"], shown["standby"]["listen"]) == ("10.7.2.254:50099", "10.7.2.253:50099")
    environment = runner.environment(shown, 1)
    assert environment["SWITCHSUM_CONTROLLER"] == "10.7.2.254:50099,10.7.2.253:50099"
    assert (environment["MASTER_ADDR"], environment["GLOO_SOCKET_IFNAME"]) == ("10.7.2.10", "eth1")
    assert environment["SWITCHSUM_DATA_ADDRESS"] == "10.7.1.20"


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("management: 10.7.1.0/24", "some.yaml line 10, management: 10.7.1.0/24 is the network of the switch; choose another"),
        ("management: 10.7.2.0/16", "some.yaml line 10, management: '10.7.2.0/16' is not a network such as 10.84.0.0/24"),
        ("controller: {lease: soon}", "some.yaml line 10, controller.lease: 'soon' is not a number of seconds"),
        ("controller: {lease: nan}", "some.yaml line 10, controller.lease: nan is out of range: 0.1 to 3600 seconds"),
        ("controller: {standby: maybe}", "some.yaml line 10, controller.standby: 'maybe' is not yes or no"),
        ("  standby: {address: 10.7.1.30}", "some.yaml line 10, workers.standby: standby is the standby controller's name"),
        (
            "  w: {address: 10.7.1.253}\ncontroller: {standby: yes}",
            "some.yaml line 10, workers.w.address: 10.7.1.253 belongs to the standby already",
        ),
    ],
)
def test_a_bad_second_network_or_controller_is_told(line: str, complaint: str) -> None:
    with pytest.raises(RackError) as caught:
        rack_file.parse(f"{FULL}{line}\n", "some.yaml")
    assert str(caught.value).startswith(complaint)


def test_little_is_required() -> None:
    rack = rack_file.parse("workers:\n  w0: {address: 10.83.0.11}\n", "Small rack.yaml")
    assert (rack.name, rack.kind, rack.elements, rack.layout) == ("small-rack", "softswitch", 256, "lanes")
    assert rack.workers[0].link == Link(None, 0, 1500)


@pytest.mark.parametrize("path", sorted(RACKS.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_racks_that_come_along_are_valid(path: Path) -> None:
    rack = rack_file.load(path)
    assert rack.name == path.stem
    assert len(rack.workers) == {"two": 2, "four": 4, "eight": 8}[path.stem.partition("-")[0]]
    rates = {worker.link.rate_bps for worker in rack.workers}
    assert rates == {{"100m": 100_000_000, "1g": 1_000_000_000, "": None}[path.stem.partition("-")[2]]}


def test_the_controller_is_told_all_it_needs() -> None:
    """The fabric's text, read back as the controller does, has the workers, itself and the losses."""
    rack = rack_file.parse(FULL, "some.yaml")
    read = fabric.parse(rack.as_json()["fabric"], "fabric.yaml")
    assert read.stations == rack.fabric().stations
    assert [station.port for station in read.stations] == [1, 2, 3]
    assert read.ports == (1, 2, 3)
    assert read.losses == {1: Loss(0.01, 0.0), 2: Loss(0.0, 0.5)}
    assert (read.switch_ip, read.switch_mac) == (int(rack.switch_address), rack.fabric().switch_mac)


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("kind: bmv2", "kind: x", "some.yaml line 3, switches.tor.kind: 'x' is no kind of switch; write softswitch, bmv2"),
        ("elements: 64", "elements: 65", "some.yaml line 3, switches.tor.elements: 65 elements a packet are not compiled"),
        ("elements: 64", "elements: many", "some.yaml line 3, switches.tor.elements: 'many' is not a number"),
        ("elements: 64}", "elements: 64}\n  top: {}", "some.yaml line 2, switches: 2 switches are listed; a rack has one"),
        ("1 Gbit/s", "fast", "some.yaml line 4, link.rate: 'fast' is not a rate, such as 100 Mbit/s or 1 Gbit/s"),
        ("1 Gbit/s", "9" * 400 + " Gbit/s", "some.yaml line 4, link.rate: '999"),
        ("128 KiB", "99999999 MiB", "some.yaml line 4, link.burst: 99999999 MiB is more than tc can take"),
        ("128 KiB", "9" * 400 + " B", "some.yaml line 4, link.burst: '999"),
        ("mtu: 9000", "mtu: 9_000", "some.yaml line 4, link.mtu: '9_000' is not a number of bytes"),
        ("10.7.1.0/24", "127.0.0.0/24", "some.yaml line 6, network: '127.0.0.0/24' is not a network such as"),
        ("10.7.1.0/24", "0.0.0.0/24", "some.yaml line 6, network: '0.0.0.0/24' is not a network such as"),
        ("  right:", "  localhost:", "some.yaml line 9, workers.localhost: localhost is every host's own name; choose another"),
        ("1 Gbit/s", "1 bit/s", "some.yaml line 4, link.rate: 1 bit/s is out of range: 10 kbit/s to 100 Gbit/s"),
        ("128 KiB", "8 KiB", "some.yaml line 4, link.burst: 8192 bytes is less than one frame of 9014: nothing"),
        ("rate: 1 Gbit/s, ", "", "some.yaml line 4, link.burst: a link without `rate` is not shaped"),
        ("mtu: 9000", "mtu: 90000", "some.yaml line 4, link.mtu: 90000 is out of range: 576 to 9000"),
        ("elements: 64", "elements: 256", ""),
        ("mtu: 1500", "mtu: 600", ""),
        ("{in: 0.01}", "{in: 1}", "some.yaml line 5, loss.in: '1' is not a probability from 0 to below 1, such as 0.01"),
        ("{in: 0.01}", "{inn: 0.01}", "some.yaml line 5, loss.inn: is not a field; there are in, out"),
        ("10.7.1.0/24", "10.7.0.0/16", "some.yaml line 6, network: '10.7.0.0/16' is not a network such as 10.83.0.0/24"),
        ("10.7.1.10}", "10.8.1.10}", "some.yaml line 8, workers.left.address: 10.8.1.10 is no host of the rack's network"),
        ("10.7.1.10}", "10.7.1.1}", "some.yaml line 8, workers.left.address: 10.7.1.1 belongs to the switch already"),
        ("10.7.1.20", "10.7.1.254", "some.yaml line 9, workers.right.address: 10.7.1.254 belongs to the controller already"),
        ("10.7.1.20", "10.7.1.10", "some.yaml line 9, workers.right.address: 10.7.1.10 belongs to left already"),
        ("10.7.1.20", "10.7.1.255", "some.yaml line 9, workers.right.address: 10.7.1.255 is no host"),
        ("10.7.1.20", "localhost", "some.yaml line 9, workers.right.address: 'localhost' is not an IPv4 address"),
        ("  right:", "  Right Side:", "some.yaml line 9, workers.Right Side: 'Right Side' is not a name: a letter"),
        ("  right:", "  left:", "some.yaml line 9, workers.left: is there twice"),
        ("  right:", "  controller:", "some.yaml line 9, workers.controller: controller is the controller's name"),
        ("  right:", "  tor:", "some.yaml line 9, workers.tor: tor is the switch's name; choose another"),
        ("{address: 10.7.1.20,", "{", "some.yaml line 9, workers.right: the field address is missing"),
        ("workers:", "hosts:", "some.yaml line 7, hosts: is not a field; there are controller, link, loss,"),
        ("name: lab", "name: -", "some.yaml line 1"),
    ],
)  # fmt: skip
def test_a_bad_file_is_told_line_and_field(old: str, new: str, complaint: str) -> None:
    assert old in FULL
    text = FULL.replace(old, new, 1)
    if not complaint:
        rack_file.parse(text, "some.yaml")
        return
    with pytest.raises(RackError) as caught:
        rack_file.parse(text, "some.yaml")
    assert str(caught.value).startswith(complaint)


def test_a_file_that_is_nested_too_deeply_is_told() -> None:
    with pytest.raises(RackError, match=r"x.yaml: nested too deeply to be read"):
        rack_file.parse("[" * 3000, "x.yaml")


def test_no_two_racks_share_a_namespace() -> None:
    """Names may contain hyphens, also where another rack's name ends."""
    assert namespace_of("brk", "a-w0") != namespace_of("brk-a", "w0")


def test_a_packet_must_fit_the_link() -> None:
    text = "link: {mtu: 1000}\nworkers:\n  w0: {address: 10.83.0.11}\n"
    with pytest.raises(RackError, match=r"x.yaml line 1, link.mtu: 1000 is less than a packet of 256 elements needs: 1076"):
        rack_file.parse(text, "x.yaml")
    small = rack_file.parse("switches: {tor: {elements: 64}}\n" + text, "x.yaml")
    with pytest.raises(RackError, match=r"--elements 256 needs an MTU of 1076; w0 has less"):
        small.changed(elements=256)


def test_too_many_workers_are_refused() -> None:
    lines = "".join(f"  w{i}: {{address: 10.83.0.{i + 10}}}\n" for i in range(33))
    with pytest.raises(RackError, match=r"x.yaml line 1, workers: 33 workers are listed; a job has at most 32"):
        rack_file.parse("workers:\n" + lines, "x.yaml")
    with pytest.raises(RackError, match=r"x.yaml line 1, workers: no worker is listed"):
        rack_file.parse("workers: {}\n", "x.yaml")


def test_options_change_a_rack() -> None:
    rack = rack_file.parse(FULL, "some.yaml")
    changed = rack.changed(kind="softswitch", elements=128, loss=0.2, name="other")
    assert (changed.name, changed.kind, changed.elements, changed.layout) == ("other", "softswitch", 128, "lanes")
    assert {worker.loss for worker in changed.workers} == {Loss(0.2, 0.2)}
    assert rack.changed() == rack
    for options, complaint in (
        ({"kind": "cisco"}, "--switch cisco is no kind of switch; choose softswitch, bmv2 or bridge"),
        ({"elements": 7}, "--elements 7 is not compiled; choose 64, 128, 256"),
        ({"loss": 1.0}, "--loss 1.0 is not a probability from 0 to below 1, such as 0.01"),
        ({"name": "A b"}, "--name 'A b' is not a name"),
    ):
        with pytest.raises(RackError) as caught:
            rack.changed(**options)  # type: ignore[arg-type]
        assert str(caught.value).startswith(complaint)


def test_a_rack_grows_and_shrinks() -> None:
    rack = rack_file.parse(FULL, "some.yaml")
    assert rack.with_workers(2) == rack
    assert rack.with_workers(1).workers == rack.workers[:1]
    grown = rack.with_workers(12)
    assert grown.workers[:2] == rack.workers
    assert [worker.name for worker in grown.workers[2:]] == [f"w{number}" for number in range(10)]
    assert [(worker.rank, worker.port) for worker in grown.workers] == [(rank, rank + 1) for rank in range(12)]
    assert {worker.link for worker in grown.workers[2:]} == {rack.workers[0].link}
    addresses = [worker.address for worker in grown.workers]
    assert len(set(addresses)) == 12  # 10.7.1.20 is taken already
    assert not {grown.switch_address, grown.controllers[0].address} & set(addresses)
    with pytest.raises(RackError, match="33 workers are not possible: a job has 1 to 32"):
        rack.with_workers(33)
    late = rack_file.parse("workers:\n  w1: {address: 10.83.0.250}\n", "x.yaml")
    assert [worker.name for worker in late.with_workers(4).workers] == ["w1", "w0", "w2", "w3"]
    with pytest.raises(RackError, match=r"network 10.83.0.0/24 has no room for 5 workers behind 10.83.0.250"):
        late.with_workers(5)


def test_links_of_all_workers_change_at_once() -> None:
    rack = rack_file.parse(FULL, "some.yaml")
    assert rack.with_links() == rack
    changed = rack.with_links(rate_bps=10**8, burst_bytes=70_000, queue_bytes=600_000)
    assert [(w.link.rate_bps, w.link.burst, w.link.queue, w.link.mtu) for w in changed.workers] == [
        (10**8, 70_000, 600_000, 9000),
        (10**8, 70_000, 600_000, 1500),
    ]


def test_a_bridge_has_no_program_no_controller_and_no_loss() -> None:
    text = "switches: {plain: {kind: bridge}}\nlink: {rate: 10 Mbit/s}\nworkers:\n  w0: {address: 10.83.0.11}\n"
    rack = rack_file.parse(text, "x.yaml")
    shown = rack.as_json()
    assert (shown["switch"]["kind"], shown["switch"]["layout"]) == ("bridge", "")
    assert (shown["controller"], shown["fabric"]) == (None, None)
    assert shown["workers"][0]["link"]["burst_bytes"] == 128 << 10  # a whole run of TCP segments, and more
    assert rack.changed(kind="softswitch").as_json()["workers"][0]["link"]["burst_bytes"] == 16 << 10
    told = "a bridge drops nothing on purpose: leave `loss` out"
    with pytest.raises(RackError, match=rf"x.yaml line 1, loss: {told}"):
        rack_file.parse("loss: {in: 0.1}\n" + text, "x.yaml")
    with pytest.raises(RackError, match=r"x.yaml line 1, controller: a bridge has no controller: leave `controller` out"):
        rack_file.parse("controller: {lease: 1}\n" + text, "x.yaml")
    with pytest.raises(RackError, match=rf"x.yaml line 3, workers: w0 has loss, but {told}"):
        rack_file.parse(text.replace("0.11}", "0.11, loss: {in: 0.1}}"), "x.yaml")
    with pytest.raises(RackError, match=rf"w0 has loss, but {told}, or --loss 0"):
        rack.changed(loss=0.1)


@pytest.mark.parametrize(
    ("text", "rate"), [("100M", 10**8), ("1G", 10**9), ("100 Mbit/s", 10**8), ("10.5mbit", 10_500_000), ("20k", 20_000)]
)
def test_rates_of_the_command_line(text: str, rate: int) -> None:
    assert rack_file.parse_rate(text) == rate


@pytest.mark.parametrize("text", ["", "fast", "-1M", "1T", "9" * 400 + "G", "5"])
def test_what_is_no_rate_is_told(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a rate, such as 100 Mbit/s|is out of range: 10 kbit/s to 100 Gbit/s"):
        rack_file.parse_rate(text)


@given(st.text())
def test_any_text_is_a_rack_or_told_why_not(text: str) -> None:
    assert parsed_or_told(text)


@given(st.lists(st.sampled_from([*FULL.splitlines(), "x: y", "  : {", "- a", "  w: {address: 10.7.1.3}"]), max_size=12))
def test_any_lines_are_a_rack_or_told_why_not(lines: list[str]) -> None:
    assert parsed_or_told("\n".join(lines))


def parsed_or_told(text: str) -> bool:
    try:
        rack_file.parse(text, "any.yaml")
    except RackError as error:
        return str(error).startswith("any.yaml")
    return True

"""The controller and its switch: lost, found, restarted, taken over; nothing of an earlier life survives by accident."""

from __future__ import annotations

import dataclasses
import socket
import threading
import time
from collections.abc import Callable

import pytest

from switchsum.controller import pipeline, programming
from switchsum.controller.daemon import ControllerDaemon
from switchsum.controller.errors import ElectionIdTaken, NotPrimary, SwitchError, SwitchUnreachable, WriteRefused
from switchsum.controller.fabric import Fabric, RackFabric, Station
from switchsum.controller.options import ControllerOptions
from switchsum.controller.p4names import Entry, Group
from switchsum.controller.switch_keeper import reconcile
from switchsum.controller.switch_session import DELETE, INSERT, MODIFY, SwitchSession
from switchsum.host_agent.errors import ControllerUnreachable
from switchsum.softswitch.daemon import SoftSwitch
from tests.controller.conftest import ELEMENTS, all_join, make_controller
from tests.controller.processes import CONTROLLER, child
from tests.controller.test_service import eventually, send, sums
from tests.controller.worker import Worker

Workers = Callable[[ControllerDaemon | str, int], list[Worker]]


def entries(switch: SoftSwitch, table: str) -> int:
    assert switch.dataplane is not None
    return len(switch.dataplane.tables[table].entries())


# --- reaching the switch ------------------------------------------------------------


def test_no_switch_is_an_error_that_names_the_address() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound but not listening: connections are refused
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        with (
            pytest.raises(SwitchUnreachable, match=f"no switch answers P4Runtime at {address} within 1 s; start it"),
            ControllerDaemon(
                Fabric.loopback({1: ("127.0.0.1", 9)}),
                ControllerOptions(switch=address, listen=("127.0.0.1:0",), elements=ELEMENTS, connect_timeout_s=1.0),
            ),
        ):
            pass


def test_something_else_than_a_switch_is_told_apart(controller: ControllerDaemon) -> None:
    with pytest.raises(SwitchError, match=f"the switch at {controller.address} refused the session: UNIMPLEMENTED"):
        SwitchSession(controller.address, 1, 1, timeout_s=20.0, on_lost=print, on_role=print)


def test_a_switch_with_another_device_id_is_named(switch: SoftSwitch) -> None:
    with (
        pytest.raises(SwitchError, match=r"refused the session: NOT_FOUND: .*device id 7"),
        make_controller(switch, device_id=7),
    ):
        pass


def test_an_election_id_that_is_taken_is_an_error(switch: SoftSwitch) -> None:
    with (
        make_controller(switch),
        pytest.raises(ElectionIdTaken, match="refused the session: INVALID_ARGUMENT"),
        make_controller(switch, connect_timeout_s=1.0),
    ):
        pass


def test_an_election_id_is_waited_for_while_the_switch_has_not_noticed_its_owner_s_end(switch: SoftSwitch) -> None:
    """A controller that was killed and is started again at once."""
    predecessor = SwitchSession(
        switch.grpc_address, 1, 1, timeout_s=20.0, on_lost=lambda sentence: None, on_role=lambda standing: None
    )
    end = threading.Timer(0.5, predecessor.close)
    end.start()
    with make_controller(switch):
        pass
    end.join()


def test_an_address_in_use_is_an_error(switch: SoftSwitch) -> None:
    with make_controller(switch) as first, pytest.raises(OSError, match=f"cannot listen at {first.address}; is another"):
        make_controller(switch, listen=(first.address,))


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"listen": ("here",)}, "listen 'here' is not an address: write HOST:PORT"),
        ({"switch": "127.0.0.1:0"}, "switch '127.0.0.1:0' is not an address"),
        ({"lease_s": 0.0}, "lease 0.0 is out of range: 0.1 to 3600 seconds"),
        ({"slots": 2049}, "slots 2049 is out of range: 1 to 2048"),
        ({"election_id": 0}, "election_id 0 is out of range"),
        ({"device_id": -1}, "device_id -1 is out of range"),
        ({"connect_timeout_s": -1.0}, "connect_timeout -1.0 is out of range"),
        ({"loss_in": 1.0}, "a loss of 1.0 is not possible: give a probability from 0 to below 1"),
        ({"loss_out": -0.1}, "a loss of -0.1 is not possible"),
        ({"elements": 100}, "100 elements a packet is not compiled; choose 64, 128, 256"),
        ({"layout": "tall"}, "layout 'tall' does not exist"),
    ],
)
def test_bad_options_are_refused_before_anything_starts(switch: SoftSwitch, options: dict[str, object], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        make_controller(switch, **options)


# --- losing it and getting it back ------------------------------------------------------------


def test_a_lost_switch_ends_its_jobs_and_is_programmed_again_when_it_returns(workers: Workers) -> None:
    first = SoftSwitch(ports=2)
    ports = first.port_addresses
    first.start()
    with make_controller(first, lease_s=1.0) as controller:
        world = workers(controller, 2)
        all_join(world, "train")
        first.close()
        for worker in world:
            ended = worker.ended()
            assert ended.cause == "SWITCH_LOST"
            assert f"the switch at {first.grpc_address} is gone" in str(ended)
        (again,) = workers(controller, 1)
        with pytest.raises(ControllerUnreachable, match=f"UNAVAILABLE: there is no switch to sum in: .*{first.grpc_address}"):
            again.join("train", 0, 1, timeout_s=2.0)  # for so long it hopes that the switch comes back
        assert first.grpc_address in again.client.inspect().switch_problem
        with SoftSwitch(grpc=first.grpc_address, ports=ports):
            eventually(lambda: again.client.inspect().switch_problem == "")
            new = workers(controller, 2)
            all_join(new, "train")
            assert new[0].joined is not None
            assert world[0].joined is not None
            assert new[0].joined.epoch > world[0].joined.epoch
            for worker in new:
                send(worker, 4)
            assert [sums(worker)[0] for worker in new] == [8, 8]


def test_a_killed_controller_s_successor_keeps_what_is_right_and_removes_what_is_not(
    switch: SoftSwitch, workers: Workers
) -> None:
    ports = [udp_port for _, udp_port in switch.port_addresses.values()]
    with child(CONTROLLER, switch.grpc_address, 1, "", 2, *ports) as old:
        (worker,) = workers(old.line(), 1)
        all_join([worker], "train")
        send(worker, 1)
        sums(worker)
        worker.socket.sendto(b"?" * 50, switch.port_addresses[1])
        eventually(lambda: worker.client.inspect().rejected.get("VERSION", 0) > 0)
        rejected = dict(worker.client.inspect().rejected)
        dataplane = switch.dataplane
        old.process.kill()
        ended = worker.ended()
        assert ended.cause == "CONTROLLER_LOST"
        assert "lost the controller at" in str(ended)
    assert entries(switch, programming.JOBS) == 1  # nobody tidied up
    with make_controller(switch) as successor:
        assert switch.dataplane is dataplane  # the program was not loaded again
        assert [entries(switch, table) for table in programming.JOB_TABLES] == [0] * len(programming.JOB_TABLES)
        (fresh,) = workers(successor, 1)
        assert dict(fresh.client.inspect().rejected) == rejected  # entries that were right kept their counters
        all_join([fresh], "train")
        assert fresh.joined is not None
        assert worker.joined is not None
        assert fresh.joined.epoch > worker.joined.epoch
        send(fresh, 3)
        assert sums(fresh)[0] == 3


def test_another_program_on_the_switch_is_replaced(switch: SoftSwitch, workers: Workers) -> None:
    build = pipeline.load("lanes", ELEMENTS)
    session = SwitchSession(
        switch.grpc_address, 1, 1, timeout_s=20.0, on_lost=lambda sentence: None, on_role=lambda primary: None
    )
    session.commit(dataclasses.replace(build, cookie=build.cookie ^ 1 << 63))
    session.close()
    before = switch.dataplane
    with make_controller(switch) as controller:
        assert switch.dataplane is not before
        (worker,) = workers(controller, 1)
        all_join([worker], "train")


# --- the session ------------------------------------------------------------


def test_refused_updates_are_named_and_the_others_applied(switch: SoftSwitch) -> None:
    names = pipeline.load("lanes", ELEMENTS).names
    with make_controller(switch, election_id=1):
        pass  # leaves the program on the switch
    session = SwitchSession(
        switch.grpc_address, 1, 1, timeout_s=20.0, on_lost=lambda sentence: None, on_role=lambda primary: None
    )
    good, bad = (
        Entry(programming.LOSS_IN, (7,), programming.SET_LOSS_IN, (1,)),
        Entry(programming.LOSS_IN, (8,), programming.SET_LOSS_IN, (1,)),
    )
    before = entries(switch, programming.LOSS_IN)
    with pytest.raises(WriteRefused) as caught:
        session.write(names, [(INSERT, good), (DELETE, bad), (INSERT, Group(9, frozenset({(1, 1)})))])
    assert "refused 1 of 3 updates: SwitchIngress.drop_simulator.loss[8] -> " in str(caught.value)
    assert "NOT_FOUND" in str(caught.value)
    assert entries(switch, programming.LOSS_IN) == before + 1
    session.write(names, [(DELETE, good), (DELETE, Group(9, frozenset({(1, 1)})))])
    session.close()


def test_a_backup_may_not_write(switch: SoftSwitch) -> None:
    names = pipeline.load("lanes", ELEMENTS).names
    with make_controller(switch, election_id=1):
        session = SwitchSession(
            switch.grpc_address, 1, 0, timeout_s=20.0, on_lost=lambda sentence: None, on_role=lambda primary: None
        )
        assert not session.primary
        with pytest.raises(NotPrimary, match="another controller is in charge of the switch"):
            session.write(names, [(INSERT, Entry(programming.LOSS_IN, (7,), programming.SET_LOSS_IN, (1,)))])
        session.close()


def test_the_end_of_a_session_is_reported_once_and_not_when_asked_for() -> None:
    build = pipeline.load("lanes", ELEMENTS)
    sentences: list[str] = []
    with SoftSwitch(ports=1) as switch:
        for election_id in (1, 2):
            session = SwitchSession(
                switch.grpc_address, 1, election_id, timeout_s=20.0, on_lost=sentences.append, on_role=lambda primary: None
            )
            if election_id == 1:
                session.close()
    eventually(lambda: len(sentences) == 1)
    assert f"the switch at {switch.grpc_address} is gone" in sentences[0]
    with pytest.raises(SwitchUnreachable, match="does not answer"):
        session.commit(build)
    session.close()


# --- what is written ------------------------------------------------------------


def test_reconciling_touches_only_what_is_wrong() -> None:
    def loss(port: int, threshold: int) -> Entry:
        return Entry(programming.LOSS_IN, (port,), programming.SET_LOSS_IN, (threshold,))

    job = Entry(programming.JOBS, (1, 99), programming.ADMIT_JOB, (0, 1, 1, 1))
    peer = Entry(programming.PEERS, (1, 99, 0), programming.TO_WORKER, (1, 2, 3))
    default = Entry(programming.STATIONS, (), programming.DISCARD, is_default=True)
    old_group, new_group = Group(0x7FFF, frozenset({(1, 1)})), Group(0x7FFF, frozenset({(1, 1), (2, 1)}))
    present = [loss(1, 5), loss(2, 5), peer, job, Group(1, frozenset()), old_group]
    wanted = [loss(1, 5), loss(2, 6), loss(3, 5), new_group, default]
    assert reconcile(present, wanted) == [
        [(DELETE, job)],
        [(DELETE, peer), (DELETE, Group(1, frozenset()))],
        [(MODIFY, loss(2, 6)), (MODIFY, new_group), (MODIFY, default)],
        [(INSERT, loss(3, 5))],
    ]
    assert reconcile(wanted[:-1], wanted[:-1]) == []


def test_a_rack_forwards_to_its_stations_and_floods_the_rest() -> None:
    rack = RackFabric((1, 2), (Station(0x0A530001, 0xB, 1),))
    items = programming.fabric_items(rack, 0.0, 0.25)
    assert Entry(programming.STATIONS, (0xB,), programming.FORWARD, (1,)) in items
    assert Entry(programming.STATIONS, (), programming.FLOOD, (0x7FFF,), is_default=True) in items
    assert Group(0x7FFF, frozenset({(1, 1), (2, 1)})) in items
    assert Entry(programming.LOSS_OUT, (2,), programming.SET_LOSS_OUT, (2**30,)) in items
    assert not [item for item in items if isinstance(item, Entry) and item.table == programming.LOSS_IN]


def test_epochs_start_at_the_present(controller: ControllerDaemon, workers: Workers) -> None:
    """256 a second, so that a controller that remembers nothing is ahead of all that its predecessors gave out."""
    before = int(time.time() * 256)
    (worker,) = workers(controller, 1)
    all_join([worker], "train")
    assert worker.joined is not None
    age = (before - worker.joined.epoch) % 2**32
    assert age < 300 * 256 or age > 2**32 - 300 * 256

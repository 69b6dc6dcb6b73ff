"""What the controller puts on a switch, as entries and groups by name: the fabric's share and each job's.

Order matters where packets could meet a half-installed job: its steps are written one after the other, the entry that
admits packets last, and removed in reverse.
"""

from collections.abc import Iterable
from ipaddress import IPv4Address

from switchsum.controller.fabric import Fabric, Loss
from switchsum.controller.jobs import Job
from switchsum.controller.p4names import Entry, Group, Item, P4Names
from switchsum.p4src.layout import RejectReason, Verdict

LOSS_IN = "SwitchIngress.drop_simulator.loss"
LOSS_OUT = "SwitchEgress.drop_simulator.loss"
DROPPED_IN = "SwitchIngress.drop_simulator.dropped"
DROPPED_OUT = "SwitchEgress.drop_simulator.dropped"
ADDRESSES = "SwitchIngress.own_address.addresses"
JOBS = "SwitchIngress.service.membership.jobs"
WORKERS = "SwitchIngress.service.membership.workers"
WORKER_VERDICTS = "SwitchIngress.service.tally.worker_verdicts"
JOB_VERDICTS = "SwitchIngress.service.tally.job_verdicts"
REJECTIONS = "SwitchIngress.service.tally.rejections"
STATIONS = "SwitchIngress.forwarding.stations"
PEERS = "SwitchEgress.addressing.peers"

SET_LOSS_IN = "SwitchIngress.drop_simulator.set_threshold"
SET_LOSS_OUT = "SwitchEgress.drop_simulator.set_threshold"
OWN = "SwitchIngress.own_address.own"
ADMIT_JOB = "SwitchIngress.service.membership.admit_job"
ADMIT_WORKER = "SwitchIngress.service.membership.admit_worker"
COUNT_WORKER = "SwitchIngress.service.tally.count_worker"
COUNT_JOB = "SwitchIngress.service.tally.count_job"
COUNT_REJECTED = "SwitchIngress.service.tally.count_rejected"
FORWARD = "SwitchIngress.forwarding.forward"
FLOOD = "SwitchIngress.forwarding.flood"
DISCARD = "SwitchIngress.forwarding.discard"
TO_WORKER = "SwitchEgress.addressing.to_worker"

# Table -> (match fields in order, actions): what a program must have to be driven by this module.
TABLES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    LOSS_IN: (("port",), (SET_LOSS_IN,)),
    LOSS_OUT: (("port",), (SET_LOSS_OUT,)),
    ADDRESSES: (("address",), (OWN,)),
    JOBS: (("job", "epoch"), (ADMIT_JOB,)),
    WORKERS: (("job", "epoch", "port", "address", "udp_port"), (ADMIT_WORKER,)),
    WORKER_VERDICTS: (("job", "epoch", "worker", "verdict"), (COUNT_WORKER,)),
    JOB_VERDICTS: (("job", "epoch", "verdict"), (COUNT_JOB,)),
    REJECTIONS: (("reason",), (COUNT_REJECTED,)),
    STATIONS: (("mac",), (FORWARD, FLOOD, DISCARD)),
    PEERS: (("job", "epoch", "worker"), (TO_WORKER,)),
}
# Tables whose key begins with job and epoch, in the order in which a job is taken off.
JOB_TABLES = (JOBS, WORKERS, WORKER_VERDICTS, JOB_VERDICTS, PEERS)

FLOOD_GROUP = 0x7FFF  # the last one BMv2 takes (above, it keeps clone sessions); job groups are the job numbers, 1 to 255


def check_program(names: P4Names) -> None:
    """Raise WrongProgram unless the program has every table, action and counter that this module writes or reads."""
    for table, (fields, actions) in TABLES.items():
        names.require(table, fields, actions)
    for counter in (DROPPED_IN, DROPPED_OUT):
        names.counter_id(counter)


def loss_threshold(probability: float) -> int:
    """The drop simulator's threshold: a packet is lost if a uniform 32-bit number is below it. `probability` in [0, 1)."""
    if not 0 <= probability < 1:
        raise ValueError(f"a loss of {probability} is not possible: give a probability from 0 to below 1")
    return round(probability * 2**32)


def fabric_items(fabric: Fabric, loss_in: float, loss_out: float) -> list[Item]:
    """What the switch holds whether there are jobs or not. Losses are probabilities, of every port that has none of its own."""
    items: list[Item] = [Entry(ADDRESSES, (fabric.switch_ip,), OWN, (fabric.switch_mac,))]
    items += [Entry(REJECTIONS, (reason.value,), COUNT_REJECTED) for reason in RejectReason]
    for port in fabric.ports:
        loss = fabric.losses.get(port, Loss(loss_in, loss_out))
        for probability, table, action in ((loss.into, LOSS_IN, SET_LOSS_IN), (loss.out, LOSS_OUT, SET_LOSS_OUT)):
            if probability:
                items.append(Entry(table, (port,), action, (loss_threshold(probability),)))
    if fabric.carries_other_traffic:
        items += [Entry(STATIONS, (station.mac,), FORWARD, (station.port,)) for station in fabric.stations]
        items.append(Group(FLOOD_GROUP, frozenset((port, 1) for port in fabric.ports)))
        items.append(Entry(STATIONS, (), FLOOD, (FLOOD_GROUP,), is_default=True))
    else:
        items.append(Entry(STATIONS, (), DISCARD, is_default=True))
    return items


def job_steps(job: Job) -> list[list[Item]]:
    """A job's items in the order of writing; the items of one step may be written in any order."""
    identity = (job.number, job.epoch)
    members = sorted(job.members.items())
    address_of = {rank: int(IPv4Address(member.application.data_address)) for rank, member in members}
    answers: list[Item] = [
        Entry(PEERS, (*identity, rank), TO_WORKER, (m.attachment.mac, address_of[rank], m.application.data_port))
        for rank, m in members
    ]
    answers += [Entry(WORKER_VERDICTS, (*identity, rank, v.value), COUNT_WORKER) for rank, _ in members for v in Verdict]
    answers += [Entry(JOB_VERDICTS, (*identity, verdict.value), COUNT_JOB) for verdict in Verdict]
    group = Group(job.number, frozenset((m.attachment.port, rank + 1) for rank, m in members))
    workers: list[Item] = [
        Entry(
            WORKERS,
            (*identity, m.attachment.port, address_of[rank], m.application.data_port),
            ADMIT_WORKER,
            (rank, 1 << rank),
        )
        for rank, m in members
    ]
    full = (1 << job.world_size) - 1
    admission = Entry(JOBS, identity, ADMIT_JOB, (job.slots.start, len(job.slots), full, job.number))
    return [answers, [group], workers, [admission]]


def epochs(items: Iterable[Item]) -> list[int]:
    """Every epoch that stands in a switch's entries."""
    return [item.key[1] for item in items if isinstance(item, Entry) and item.table in JOB_TABLES]

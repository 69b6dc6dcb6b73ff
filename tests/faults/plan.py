"""What can go wrong, what is promised for it, and how a seed becomes one run."""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import Enum

from tests.faults.ground import LEASE_S, WORKERS, Variant
from tests.faults.training import LONG_STEPS, SHORT_STEPS

GLOO, FAIL, WAIT = "gloo", "fail", "wait"  # SWITCHSUM_ON_LOSS


class Promise(Enum):
    """How a run must end on every rank that lives. Errors are of ranks that were not hit; others may say what they know."""

    RIGHT = "right weights"
    BACK = "right weights, in the end through the switch again"
    LOST = "error: the lost rank and its host"
    GONE = "error: switch or controller"
    ERROR = "error"
    RESUMED = "error, then right weights in a new epoch"


class When(Enum):
    """When a blow is taken back."""

    NEVER = (0.0, 0.0)
    BRIEF = (0.1 * LEASE_S, 0.4 * LEASE_S)  # before anybody may take it for a failure
    LATE = (2.2 * LEASE_S, 3.5 * LEASE_S)  # when everybody must have noticed


@dataclass(frozen=True)
class Stroke:
    """A blow of a scenario. `target`: "switch", "controller", "standby", "worker", "other" (another worker)."""

    target: str
    action: str
    back: When = When.NEVER


@dataclass(frozen=True)
class Scenario:
    """`promises`: by policy. `long`: whether the training must outlast two leases."""

    name: str
    variant: Variant
    strokes: tuple[Stroke, ...]
    promises: dict[str, Promise]
    long: bool = False
    elastic: bool = False

    @property
    def least_workers(self) -> int:
        return 3 if any(stroke.target == "other" for stroke in self.strokes) else 2


@dataclass(frozen=True)
class Plan:
    """One run. `victims`: ranks that "worker" and "other" mean. `step`, `delay_s`: the strokes fall so long after the first
    victim, or rank 0, has done that step. `backs_s`: when each stroke is taken back, after it fell."""

    seed: int
    scenario: Scenario
    policy: str
    workers: int
    victims: tuple[int, ...]
    step: int
    delay_s: float
    backs_s: tuple[float | None, ...]
    how: str

    @property
    def promise(self) -> Promise:
        return self.scenario.promises[self.policy]

    @property
    def steps(self) -> int:
        return LONG_STEPS if self.scenario.long else SHORT_STEPS


BARE = Variant(management=False)
MANAGED = Variant()
STANDBY = Variant(standby=True)
LOSSY = Variant(loss=0.05)
BMV2 = Variant(kind="bmv2")
PATIENT = Variant(lease_s=8.0)  # a process that loads PyTorch while others do may renew nothing for seconds

_ALWAYS_LOST = {GLOO: Promise.LOST, FAIL: Promise.LOST}
_ALWAYS_RIGHT = {GLOO: Promise.RIGHT, FAIL: Promise.RIGHT}
_ALWAYS_ERROR = {GLOO: Promise.ERROR, FAIL: Promise.ERROR}
_ALWAYS_GONE = {GLOO: Promise.GONE, FAIL: Promise.GONE}
_GONE_FOR_GOOD = {GLOO: Promise.RIGHT, FAIL: Promise.GONE}
_GONE_FOR_A_WHILE = {GLOO: Promise.BACK, WAIT: Promise.BACK}


def _scenario(name: str, variant: Variant, promises: dict[str, Promise], *strokes: Stroke, long: bool = False) -> Scenario:
    return Scenario(name, variant, strokes, promises, long)


_ONE_OF_EACH = [
    # A worker
    _scenario("worker killed", MANAGED, _ALWAYS_LOST, Stroke("worker", "kill")),
    _scenario("worker killed, one network", BARE, _ALWAYS_LOST, Stroke("worker", "kill")),
    _scenario("worker ended", MANAGED, _ALWAYS_LOST, Stroke("worker", "term")),
    _scenario("worker stopped", MANAGED, _ALWAYS_LOST, Stroke("worker", "stop"), long=True),
    _scenario("worker stopped, one network", BARE, _ALWAYS_LOST, Stroke("worker", "stop"), long=True),
    _scenario("worker stopped for long", MANAGED, _ALWAYS_LOST, Stroke("worker", "stop", When.LATE), long=True),
    _scenario("worker stopped briefly", MANAGED, _ALWAYS_RIGHT, Stroke("worker", "stop", When.BRIEF)),
    _scenario("worker cut off", MANAGED, _ALWAYS_LOST, Stroke("worker", "cut"), long=True),
    _scenario("worker cut off, one network", BARE, _ALWAYS_LOST, Stroke("worker", "cut"), long=True),
    _scenario("worker cut off briefly", BARE, _ALWAYS_RIGHT, Stroke("worker", "cut", When.BRIEF)),
    _scenario("worker's data link cut", MANAGED, _GONE_FOR_GOOD, Stroke("worker", "cut-data"), long=True),
    _scenario(
        "worker's data link cut for long", MANAGED, _GONE_FOR_A_WHILE, Stroke("worker", "cut-data", When.LATE), long=True
    ),
    _scenario("two workers killed", MANAGED, _ALWAYS_LOST, Stroke("worker", "kill"), Stroke("other", "kill")),
    # The switch
    _scenario("switch killed", MANAGED, _GONE_FOR_GOOD, Stroke("switch", "kill"), long=True),
    _scenario("switch killed, one network", BARE, _ALWAYS_GONE, Stroke("switch", "kill"), long=True),
    _scenario("switch ended", MANAGED, _GONE_FOR_GOOD, Stroke("switch", "term"), long=True),
    _scenario("switch stopped", MANAGED, _GONE_FOR_GOOD, Stroke("switch", "stop"), long=True),
    _scenario("switch stopped briefly", MANAGED, _ALWAYS_RIGHT, Stroke("switch", "stop", When.BRIEF)),
    _scenario("switch stopped for long", MANAGED, _GONE_FOR_A_WHILE, Stroke("switch", "stop", When.LATE), long=True),
    _scenario("switch cut off", MANAGED, _GONE_FOR_GOOD, Stroke("switch", "cut-data"), long=True),
    _scenario("switch cut off briefly", MANAGED, _ALWAYS_RIGHT, Stroke("switch", "cut-data", When.BRIEF)),
    _scenario("switch restarted empty", MANAGED, _GONE_FOR_A_WHILE, Stroke("switch", "kill", When.BRIEF), long=True),
    _scenario("switch restarted empty, late", MANAGED, _GONE_FOR_A_WHILE, Stroke("switch", "kill", When.LATE), long=True),
    # The controller
    _scenario("controller killed", MANAGED, _GONE_FOR_GOOD, Stroke("controller", "kill"), long=True),
    _scenario("controller ended", MANAGED, _GONE_FOR_GOOD, Stroke("controller", "term"), long=True),
    _scenario("controller stopped", MANAGED, _GONE_FOR_GOOD, Stroke("controller", "stop"), long=True),
    _scenario("controller cut off", MANAGED, _GONE_FOR_GOOD, Stroke("controller", "cut"), long=True),
    _scenario("controller stopped briefly", MANAGED, _ALWAYS_RIGHT, Stroke("controller", "stop", When.BRIEF)),
    _scenario("controller cut off briefly", MANAGED, _ALWAYS_RIGHT, Stroke("controller", "cut", When.BRIEF)),
    _scenario("controller restarted", MANAGED, _ALWAYS_RIGHT, Stroke("controller", "kill", When.BRIEF), long=True),
    _scenario("controller restarted, one network", BARE, _ALWAYS_RIGHT, Stroke("controller", "kill", When.BRIEF), long=True),
    _scenario("controller restarted, late", MANAGED, _GONE_FOR_A_WHILE, Stroke("controller", "kill", When.LATE), long=True),
    # Two controllers
    _scenario("standby killed", STANDBY, _ALWAYS_RIGHT, Stroke("standby", "kill"), long=True),
    _scenario("standby stopped", STANDBY, _ALWAYS_RIGHT, Stroke("standby", "stop"), long=True),
    _scenario("controller killed, standby takes over", STANDBY, _ALWAYS_RIGHT, Stroke("controller", "kill"), long=True),
    _scenario("controller stopped beside a standby", STANDBY, {GLOO: Promise.RIGHT}, Stroke("controller", "stop"), long=True),
    _scenario("controller cut off beside a standby", STANDBY, {GLOO: Promise.RIGHT}, Stroke("controller", "cut"), long=True),
    # Two at once
    _scenario(
        "switch and controller killed",
        MANAGED,
        _GONE_FOR_GOOD,
        Stroke("switch", "kill"),
        Stroke("controller", "kill"),
        long=True,
    ),
    _scenario(
        "switch and worker killed",
        MANAGED,
        _ALWAYS_ERROR,
        Stroke("switch", "kill"),
        Stroke("worker", "kill"),
        long=True,
    ),
    _scenario(
        "controller and worker killed",
        MANAGED,
        _ALWAYS_ERROR,
        Stroke("controller", "kill"),
        Stroke("worker", "kill"),
        long=True,
    ),
    # A network that loses 5 % of the packets in each direction
    _scenario("5 % loss", LOSSY, {GLOO: Promise.RIGHT}),
    _scenario("5 % loss, worker killed", LOSSY, _ALWAYS_LOST, Stroke("worker", "kill")),
    _scenario("5 % loss, switch restarted empty", LOSSY, {GLOO: Promise.BACK}, Stroke("switch", "kill", When.BRIEF), long=True),
    _scenario("5 % loss, controller restarted", LOSSY, _ALWAYS_RIGHT, Stroke("controller", "kill", When.BRIEF), long=True),
    # torchrun
    Scenario("worker killed under torchrun", PATIENT, (Stroke("worker", "kill"),), {GLOO: Promise.RESUMED}, elastic=True),
]
_ON_BMV2 = [
    _scenario("BMv2: worker killed", BMV2, {GLOO: Promise.LOST}, Stroke("worker", "kill")),
    _scenario("BMv2: switch killed", BMV2, {GLOO: Promise.RIGHT}, Stroke("switch", "kill"), long=True),
    _scenario("BMv2: switch restarted empty", BMV2, {GLOO: Promise.BACK}, Stroke("switch", "kill", When.BRIEF), long=True),
    _scenario("BMv2: controller restarted", BMV2, {GLOO: Promise.RIGHT}, Stroke("controller", "kill", When.BRIEF), long=True),
]


def cases(bmv2: bool) -> list[tuple[Scenario, str]]:
    """Every scenario with every policy for which something is promised. `bmv2`: whether there is one here."""
    scenarios = _ONE_OF_EACH + (_ON_BMV2 if bmv2 else [])
    return [(scenario, policy) for scenario in scenarios for policy in scenario.promises]


def plan(seed: int, choices: list[tuple[Scenario, str]]) -> Plan:
    """The run of that seed: consecutive seeds go through all choices in turn, and everything else is drawn."""
    scenario, policy = choices[seed % len(choices)]
    dice = random.Random(seed)
    workers = dice.randint(scenario.least_workers, WORKERS)
    victims = tuple(dice.sample(range(workers), 2))
    length = LONG_STEPS if scenario.long else SHORT_STEPS
    return Plan(
        seed=seed,
        scenario=scenario,
        policy=policy,
        workers=workers,
        victims=victims,
        # Late enough for all to be under way, early enough for the fault to show before the end.
        step=dice.randint(1, length // 4),
        delay_s=dice.uniform(0.0, 0.05),
        backs_s=tuple(None if stroke.back is When.NEVER else dice.uniform(*stroke.back.value) for stroke in scenario.strokes),
        how=dice.choice(("down-host", "down-switch", "silent")),
    )

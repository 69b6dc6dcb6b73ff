"""The ranks of one fabric as the coordinator sees them: asked all at once, and named when one fails."""

from __future__ import annotations

import contextlib
import selectors
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from switchsum.measure.channel import Channel, Closed
from switchsum.measure.samples import Carried

_LOOK_S = 0.2  # how often the fabric is looked at while answers are awaited
# When one rank says that something failed, a peer's death may be the cause, and is heard a moment later.
_CAUSE_S = 2.0
_CLOSING_S = 0.5


class BenchmarkFailed(RuntimeError):
    """The experiment cannot go on; the text names the rank and says why."""


class Site(Protocol):
    """Where a crew works: a rack, loopback, or real hosts."""

    @property
    def labels(self) -> Sequence[str]:
        """What each rank is called in errors, such as "worker 2 (w2)"."""

    @property
    def hosts(self) -> Sequence[int]:
        """By rank: the number of the host that it is on."""

    @property
    def rendezvous(self) -> str:
        """Where the ranks meet: torch.distributed's init_method."""

    @property
    def link_rates_bps(self) -> Sequence[int | None]:
        """By host, in the order of their numbers, each direction; None where nothing limits it, empty where nobody knows."""

    @property
    def switch_pids(self) -> Sequence[int]:
        """Processes of the switch, if it is on this machine."""

    def link_counters(self) -> list[Carried] | None:
        """By host: what its link has carried until now; None where only the workers can tell."""

    def obituary(self, rank: int) -> str | None:
        """How a rank's process ended and what it said last; None if it lives, or is on another host."""

    def failure(self) -> str | None:
        """What of the fabric has ended that should not have."""


@dataclass(frozen=True)
class _Member:
    channel: Channel
    hello: Mapping[str, Any]


class _Arrivals:
    """Connections whose first word is awaited, of all at once: a port that is open to the network may be found by anybody."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._silent: set[Channel] = set()
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        listener.settimeout(_LOOK_S)  # who has left again before we look is not waited for

    def wait(self, seconds: float) -> list[_Member]:
        """Those that have spoken, perhaps within `seconds`; who says nothing that could be of ours is sent away."""
        heard = []
        for key, _ in self._selector.select(seconds):
            if key.fileobj is self._listener:
                with contextlib.suppress(OSError):
                    accepted, _ = self._listener.accept()
                    accepted.settimeout(None)
                    channel = Channel(accepted)
                    self._silent.add(channel)
                    self._selector.register(channel, selectors.EVENT_READ, channel)
                continue
            channel = key.data
            try:
                said = channel.first()
            except Closed:
                said = {}
            if said is None:
                continue
            self._selector.unregister(channel)
            self._silent.discard(channel)
            heard.append(_Member(channel, said))
        return heard

    def close(self) -> None:
        """Those that have not spoken are sent away, too."""
        self._selector.close()
        for channel in self._silent:
            channel.close()


class Crew:
    """All ranks of a site, connected."""

    def __init__(self, site: Site, listener: socket.socket, patience_s: float) -> None:
        """Wait until each of the site's ranks has connected and said who it is. Raises BenchmarkFailed.

        Whoever else connects is not waited for, and sent away.
        """
        self.site = site
        found: dict[int, _Member] = {}
        deadline = time.monotonic() + patience_s
        with contextlib.closing(_Arrivals(listener)) as arrivals:
            while len(found) < len(site.labels):
                heard = arrivals.wait(_LOOK_S)
                for member in heard:
                    rank = member.hello.get("rank")
                    if type(rank) is int and 0 <= rank < len(site.labels) and rank not in found:
                        found[rank] = member
                    else:
                        member.channel.close()
                if not heard:
                    self._look(range(len(site.labels)))
                missing = [label for rank, label in enumerate(site.labels) if rank not in found]
                if missing and time.monotonic() > deadline:
                    raise BenchmarkFailed(f"{', '.join(missing)} did not start within {patience_s:g} s")
        self._members = [found[rank] for rank in sorted(found)]

    @property
    def ranks(self) -> int:
        return len(self._members)

    @property
    def hellos(self) -> list[Mapping[str, Any]]:
        """What worker.Worker.hello said, by rank."""
        return [member.hello for member in self._members]

    @property
    def link_rates_bps(self) -> list[int | None]:
        """As the site knows them, else as the ranks' drivers tell them, if each rank has an interface for itself; else
        empty."""
        if self.site.link_rates_bps:
            return list(self.site.link_rates_bps)
        rates = [hello["rate_bps"] for hello in self.hellos if hello["alone"] and hello["rate_bps"] is not None]
        return rates if len(rates) == self.ranks else []

    @property
    def link_rate_bps(self) -> int | None:
        """The slowest link's, as far as rates are known."""
        return min((rate for rate in self.link_rates_bps if rate is not None), default=None)

    def ask(self, command: str, patience_s: float, /, **values: Any) -> list[dict[str, Any]]:
        """Have every rank do something; the answers by rank. Raises BenchmarkFailed naming the rank that failed."""
        return self.ask_each(command, patience_s, dict.fromkeys(range(self.ranks), values))

    def ask_each(self, command: str, patience_s: float, values: Mapping[int, Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Like ask(), of some ranks, each with values of its own; the answers in the order of `values`."""
        for rank, named in values.items():
            try:
                self._members[rank].channel.send(do=command, **named)
            except Closed:
                raise BenchmarkFailed(self._death(rank)) from None
        answers: dict[int, dict[str, Any]] = {}
        failed: list[str] = []
        deadline = time.monotonic() + patience_s
        with selectors.DefaultSelector() as selector:
            for rank in values:
                selector.register(self._members[rank].channel, selectors.EVENT_READ, rank)
            while len(answers) < len(values):
                ready = selector.select(min(_LOOK_S, max(0.0, deadline - time.monotonic())))
                for key, _ in ready:
                    rank = key.data
                    try:
                        answers[rank] = self._members[rank].channel.receive()
                    except Closed:
                        raise BenchmarkFailed(self._death(rank)) from None
                    selector.unregister(key.fileobj)
                    if "error" in answers[rank] and not failed:
                        failed.append(f"{self.site.labels[rank]}: {answers[rank]['error']}")
                        deadline = min(deadline, time.monotonic() + _CAUSE_S)
                if not ready:
                    self._look([rank for rank in values if rank not in answers])
                    if time.monotonic() > deadline:
                        break
        if failed:
            self._look_for_a_cause()
            raise BenchmarkFailed(failed[0])
        if missing := [self.site.labels[rank] for rank in values if rank not in answers]:
            raise BenchmarkFailed(f"{', '.join(missing)} did not answer within {patience_s:g} s ({command}); see --timeout")
        return [answers[rank] for rank in values]

    def _look(self, ranks: Sequence[int]) -> None:
        """Raise BenchmarkFailed if one of these ranks, or something of the fabric, has ended."""
        for rank in ranks:
            if (told := self.site.obituary(rank)) is not None:
                raise BenchmarkFailed(f"{self.site.labels[rank]} {told}")
        if (told := self.site.failure()) is not None:
            raise BenchmarkFailed(told)

    def _look_for_a_cause(self) -> None:
        """Raise BenchmarkFailed if a process has ended: its connections close a moment before it can be waited for."""
        deadline = time.monotonic() + _CLOSING_S
        while time.monotonic() < deadline:
            self._look(range(self.ranks))
            time.sleep(0.02)

    def _death(self, rank: int) -> str:
        deadline = time.monotonic() + _CAUSE_S
        while (told := self.site.obituary(rank)) is None and time.monotonic() < deadline:
            time.sleep(0.02)  # the connection closes a moment before the process can be waited for
        return f"{self.site.labels[rank]} {told or 'closed its connection: it ended, or its host is gone'}"

    def dismiss(self) -> None:
        """Let them go; afterwards their processes end by themselves."""
        for member in self._members:
            try:
                member.channel.send(do="quit")
            except Closed:
                continue
        self.close()

    def close(self) -> None:
        for member in self._members:
            member.channel.close()

"""Which P4Runtime client may write: the primary/backup election of one device, without gRPC.

Source: P4Runtime 1.4.1, section "Client Arbitration and Controller Replication". Clients come and go as opaque
handles; every call returns the notices that have to be sent, in order. No lock: the owner serializes the calls.
"""

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

Handle = TypeVar("Handle", bound=Hashable)


class Standing(Enum):
    """What a client is told about the election; the values are google.rpc.Code numbers (section "Client
    Arbitration Notifications")."""

    PRIMARY = 0  # OK
    BACKUP = 6  # ALREADY_EXISTS: somebody else is primary
    NO_PRIMARY = 5  # NOT_FOUND: nobody is


@dataclass(frozen=True)
class Notice(Generic[Handle]):
    """One arbitration message for one client. `highest` is None until there has been a first primary."""

    client: Handle
    standing: Standing
    highest: int | None


class ElectionIdTaken(ValueError):
    """Another live client uses this election id; the newcomer's stream ends with INVALID_ARGUMENT."""


class Arbitration(Generic[Handle]):
    """The election among the live clients of one device (default role only).

    Election ids are 128-bit integers; None means unset, which is lower than any id and never wins.
    """

    def __init__(self) -> None:
        self._clients: dict[Handle, int | None] = {}
        self._highest: int | None = None  # ever seen from a primary; survives the primary's departure

    def update(self, client: Handle, election_id: int | None) -> list[Notice[Handle]]:
        """A client introduces itself or changes its election id.

        Raises ElectionIdTaken, leaving everything as it was.
        """
        if election_id is not None and any(other != client and taken == election_id for other, taken in self._clients.items()):
            raise ElectionIdTaken(f"election id {election_id} is used by another live controller; choose one of your own")
        was_primary = self.is_primary_client(client)
        self._clients[client] = election_id
        if election_id is not None and (self._highest is None or election_id >= self._highest):
            self._highest = election_id
            return list(self._notices())
        if was_primary:  # it downgraded itself: there is no primary until somebody reaches the highest id again
            return list(self._notices())
        return [self._notice(client)]

    def leave(self, client: Handle) -> list[Notice[Handle]]:
        """A client's stream ended. Only the loss of the primary is news to the others."""
        was_primary = self.is_primary_client(client)
        self._clients.pop(client, None)
        return list(self._notices()) if was_primary else []

    def is_primary(self, election_id: int | None) -> bool:
        """Whether a live client holds this id and is primary by it: the check of each Write."""
        return election_id is not None and election_id == self._highest and election_id in self._clients.values()

    def is_primary_client(self, client: Handle) -> bool:
        return client in self._clients and self.is_primary(self._clients[client])

    def has_client(self, client: Handle) -> bool:
        return client in self._clients

    def standing(self) -> tuple[int, bool]:
        """How many clients there are, and whether one of them is primary."""
        return len(self._clients), any(map(self.is_primary_client, self._clients))

    def _notices(self) -> Iterator[Notice[Handle]]:
        """Everybody's notice; the primary's comes last (section "Rules for Handling MasterArbitrationUpdate")."""
        for client in sorted(self._clients, key=self.is_primary_client):
            yield self._notice(client)

    def _notice(self, client: Handle) -> Notice[Handle]:
        if self.is_primary_client(client):
            standing = Standing.PRIMARY
        elif self._highest is not None and self._highest in self._clients.values():
            standing = Standing.BACKUP
        else:
            standing = Standing.NO_PRIMARY
        return Notice(client, standing, self._highest)

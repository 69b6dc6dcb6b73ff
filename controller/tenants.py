"""Who may use a switch, and how much of it: a file of tenants, known by their tokens.

    vision: {sha256: 9f86d081884c7d65..., jobs: 4, workers: 64, slots: 1024}
    speech: {sha256: [60303ae22b998861..., fd61a03af4f77d87...]}
    ops: {sha256: b5bb9d8014a0f9b1..., operator: true}

The file holds hashes, so that who reads it cannot use them; two for one tenant while a token is being replaced. It is read
again when it changes. A token is drawn from 256 bits at random: no slow hash is needed to keep it from being guessed.
"""

import hashlib
import hmac
import logging
import re
import stat
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from switchsum.controller import yaml_fields
from switchsum.controller.errors import TenantsError
from switchsum.controller.yaml_fields import Place

_LOOK_EVERY_S = 1.0  # at the file's date
_HASH = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_NAME_FORM = "a tenant's name: 1 to 64 letters, digits, dots, dashes and underscores, the first a letter or digit"
_LARGEST = 1 << 20
_SCHEME = "bearer "
_MISSING = (
    "this controller asks for a token: set SWITCHSUM_TOKEN, or SWITCHSUM_TOKEN_FILE, to the one that its operator gave you"
)
_UNKNOWN = (
    "this controller does not know the token: it was withdrawn, or is another controller's; ask the operator for a new one"
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Limits:
    """What one tenant may hold at a time; None: no limit but the switch's."""

    jobs: int | None = None
    workers: int | None = None
    slots: int | None = None


@dataclass(frozen=True)
class Tenant:
    """`operator`: sees and may change every tenant's jobs."""

    name: str
    limits: Limits = Limits()
    operator: bool = False


# Everybody, where the controller asks for no tokens.
ANYBODY = Tenant("", operator=True)


class Tenants:
    """The tenants of a file. Thread-safe."""

    def __init__(self, path: Path) -> None:
        """Raises TenantsError naming line and field, or when others than the owner may read or write the file."""
        self._path = path
        self._lock = threading.Lock()
        self._state = _state(path)
        self._known = _load(path)
        self._next_look = time.monotonic() + _LOOK_EVERY_S

    def of(self, metadata: Iterable[tuple[str, Any]]) -> "Tenant | str":
        """Whose token a call carries in its metadata, or why it is not let in. Takes the same time whichever token it is."""
        header = next((value for key, value in metadata if key == "authorization"), "")
        if not isinstance(header, str) or not header.lower().startswith(_SCHEME):
            return _MISSING
        digest = hash_of(header[len(_SCHEME) :].strip())
        found: Tenant | None = None
        for known, tenant in self._current():
            if hmac.compare_digest(known, digest):
                found = tenant
        return found or _UNKNOWN

    def _current(self) -> list[tuple[str, Tenant]]:
        """The file's contents; the last good ones while it cannot be used."""
        with self._lock:
            if time.monotonic() >= self._next_look:
                self._next_look = time.monotonic() + _LOOK_EVERY_S
                state = _state(self._path)
                if state != self._state:
                    self._state = state
                    try:
                        self._known = _load(self._path)
                        logger.info("%s was read again: %d tokens", self._path, len(self._known))
                    except TenantsError as error:
                        logger.error("the tokens stay as they were: %s", error)
            return self._known


def is_name(text: str) -> bool:
    """Whether a tenant may be called so."""
    return _NAME.fullmatch(text) is not None


def hash_of(token: str) -> str:
    """What stands in the file for a token."""
    return hashlib.sha256(token.encode()).hexdigest()


def _state(path: Path) -> tuple[int, ...]:
    """Changes when the file does."""
    try:
        found = path.stat()
    except OSError:
        return ()
    return (found.st_mtime_ns, found.st_ino, found.st_size, found.st_mode)


def _load(path: Path) -> list[tuple[str, Tenant]]:
    """(hash, tenant) of every token."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError as error:
        raise TenantsError(f"{path}: cannot be read: {error.strerror}") from None
    if mode & 0o077:
        raise TenantsError(f"{path}: others than its owner may use it (mode {mode:04o}); chmod 600 {path}")
    known: dict[str, Tenant] = {}
    for name, place in yaml_fields.load(path, TenantsError).items():
        if not is_name(name):
            place.fail(f"{name!r} is not {_NAME_FORM}")
        fields = place.fields({"sha256", "jobs", "workers", "slots", "operator"}, required={"sha256"})
        limits = Limits(**{what: _number(fields[what]) for what in ("jobs", "workers", "slots") if what in fields})
        operator = "operator" in fields and fields["operator"].convert(_truth, "true or false")
        hashes = fields["sha256"].elements() if fields["sha256"].is_list() else [fields["sha256"]]
        for each in hashes:
            digest = each.text().lower()
            if _HASH.fullmatch(digest) is None:  # not shown: it may be the token itself
                each.fail("is no SHA-256 of a token (64 hexadecimal digits); `switchsum token` makes both")
            if digest in known:
                each.fail(f"is the token of {known[digest].name!r} as well; give each tenant its own")
            known[digest] = Tenant(name, limits, operator)
    return list(known.items())


def _number(place: Place) -> int:
    def whole(text: str) -> int:
        if not text.isdecimal() or int(text) > _LARGEST:
            raise ValueError
        return int(text)

    return place.convert(whole, f"a number from 0 to {_LARGEST}")


def _truth(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError
    return text.lower() == "true"

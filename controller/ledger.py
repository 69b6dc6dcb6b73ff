"""What outlives the controller: the next epoch and the jobs that are on the switch, in an SQLite file.

A call that has returned is on disk (journal_mode WAL, synchronous FULL); one that was cut short by a crash has happened
completely or not at all. What is written comes before what it stands for: a job before its entries reach the switch and before
its epoch is told to anybody, its end before its entries are removed.

Two controllers of one machine may share a file. Whoever takes over signs it, and the other's writes are refused from then on.
"""

import json
import os
import secrets
import sqlite3
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from switchsum.controller.errors import StateError
from switchsum.controller.jobs import Application, Attachment, Job, Member, State, later_epoch
from switchsum.controller.slots import Demand

_APPLICATION = 0x53575353  # "SWSS", SQLite's application_id: whose file it is
_VERSION = 1  # SQLite's user_version: of the tables below
_PATIENCE_S = 5.0  # for the other controller's transaction
_SCHEMA = (
    f"PRAGMA application_id = {_APPLICATION}",
    f"PRAGMA user_version = {_VERSION}",
    "CREATE TABLE reign (signature TEXT NOT NULL, next_epoch INTEGER, incarnation TEXT)",
    "CREATE TABLE jobs (epoch INTEGER PRIMARY KEY, name TEXT NOT NULL, tenant TEXT NOT NULL, world_size INTEGER NOT NULL,"
    " first_slot INTEGER NOT NULL, slots INTEGER NOT NULL, number INTEGER NOT NULL, born_at REAL NOT NULL)",
    "CREATE TABLE members (epoch INTEGER NOT NULL, rank INTEGER NOT NULL, key TEXT NOT NULL, has_left INTEGER NOT NULL,"
    " application TEXT NOT NULL, attachment TEXT NOT NULL, PRIMARY KEY (epoch, rank))",
    "INSERT INTO reign VALUES ('', NULL, NULL)",
)


@dataclass(frozen=True)
class Kept:
    """What the file holds. `next_epoch`: None if none has been given out; `incarnation`: of the program that was on the switch,
    None if there was none yet."""

    jobs: tuple[Job, ...] = ()
    next_epoch: int | None = None
    incarnation: int | None = None


class Ledger:
    """An open state file. Thread-safe. Every method raises StateError with a sentence that names the file."""

    def __init__(self, path: Path) -> None:
        """Open it, or make it, for this user only: it holds the keys by which members are known."""
        self._path = path
        self._lock = threading.Lock()
        self._signature = secrets.token_hex(16)
        with self._explaining("opened"):
            _make_private(path)
            self._database = sqlite3.connect(path, timeout=_PATIENCE_S, isolation_level=None, check_same_thread=False)
        try:
            with self._explaining("opened"):
                self._prepare()
        except StateError:
            self._database.close()
            raise

    def close(self) -> None:
        with self._lock:
            self._database.close()

    def take_over(self, now: float) -> Kept:
        """Sign the file, so that no other controller writes to it any more, and read it. `now`: of the registry's clock."""
        with self._explaining("read"), self._transaction():
            self._database.execute("UPDATE reign SET signature = ?", (self._signature,))
            next_epoch, incarnation = self._database.execute("SELECT next_epoch, incarnation FROM reign").fetchone()
            jobs = [
                self._job(row, now)
                for row in self._database.execute(
                    "SELECT epoch, name, tenant, world_size, first_slot, slots, number, born_at FROM jobs ORDER BY epoch"
                ).fetchall()
            ]
            return Kept(
                tuple(jobs),
                None if next_epoch is None else int(next_epoch),
                None if incarnation is None else int(incarnation),
            )

    def is_ours(self) -> bool:
        """Whether no other controller has taken over since we did."""
        with self._explaining("read"), self._transaction():
            return self._is_signed()

    def found(self, incarnation: int) -> None:
        """The switch runs this incarnation of the program. Jobs of another one are gone with it."""
        with self._explaining("written"), self._transaction(signed=True):
            (known,) = self._database.execute("SELECT incarnation FROM reign").fetchone()
            if known != str(incarnation):
                self._database.execute("DELETE FROM members")
                self._database.execute("DELETE FROM jobs")
                self._database.execute("UPDATE reign SET incarnation = ?", (str(incarnation),))

    def add(self, job: Job, now: float) -> None:
        """The job is about to be installed, and its epoch to be told. `now`: of the registry's clock."""
        with self._explaining("written"), self._transaction(signed=True):
            (next_epoch,) = self._database.execute("SELECT next_epoch FROM reign").fetchone()
            next_epoch = job.epoch + 1 if next_epoch is None else later_epoch(next_epoch, job.epoch + 1)
            self._database.execute("UPDATE reign SET next_epoch = ?", (next_epoch,))
            self._database.execute(
                "INSERT OR REPLACE INTO jobs VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    job.epoch,
                    job.name,
                    job.tenant,
                    job.world_size,
                    job.slots.start,
                    len(job.slots),
                    job.number,
                    time.time() - (now - job.born_at),
                ),
            )
            self._database.executemany(
                "INSERT OR REPLACE INTO members VALUES (?, ?, ?, ?, ?, ?)",
                [
                    (
                        job.epoch,
                        rank,
                        member.key,
                        member.left,
                        json.dumps(asdict(member.application)),
                        json.dumps(asdict(member.attachment)),
                    )
                    for rank, member in job.members.items()
                ],
            )

    def leave(self, epoch: int, rank: int) -> None:
        """A member is done; nobody shall wait for its lease."""
        with self._explaining("written"), self._transaction(signed=True):
            self._database.execute("UPDATE members SET has_left = 1 WHERE epoch = ? AND rank = ?", (epoch, rank))

    def remove(self, epoch: int) -> None:
        """A job is over."""
        with self._explaining("written"), self._transaction(signed=True):
            self._database.execute("DELETE FROM members WHERE epoch = ?", (epoch,))
            self._database.execute("DELETE FROM jobs WHERE epoch = ?", (epoch,))

    # --- inside ----------------------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.execute("PRAGMA synchronous = FULL")
        with self._transaction():
            whose, version, tables = (
                self._database.execute(question).fetchone()[0]
                for question in ("PRAGMA application_id", "PRAGMA user_version", "SELECT count(*) FROM sqlite_master")
            )
            if (whose, tables) == (0, 0):
                for statement in _SCHEMA:
                    self._database.execute(statement)
            elif whose != _APPLICATION:
                raise StateError(f"{self._path} is a database of something else; give the controller a file of its own")
            elif version != _VERSION:
                raise StateError(
                    f"the state file {self._path} has format {version}, this release knows {_VERSION}: run the release that "
                    "wrote it, or give a new file while no job is running"
                )
        (verdict,) = self._database.execute("PRAGMA quick_check").fetchone()
        if verdict != "ok":
            raise sqlite3.DatabaseError(verdict)

    @contextmanager
    def _transaction(self, signed: bool = False) -> Iterator[None]:
        """All or nothing, and no other controller in between. `signed`: only while the file bears our signature."""
        with self._lock:
            self._database.execute("BEGIN IMMEDIATE")
            try:
                if signed and not self._is_signed():
                    raise StateError(f"the state file {self._path} is another controller's now: that one took over")
                yield
                self._database.execute("COMMIT")
            except BaseException:
                if self._database.in_transaction:
                    self._database.execute("ROLLBACK")
                raise

    def _is_signed(self) -> bool:
        return bool(self._database.execute("SELECT signature FROM reign").fetchone() == (self._signature,))

    def _job(self, row: tuple[int, str, str, int, int, int, int, float], now: float) -> Job:
        epoch, name, tenant, world_size, first, slots, number, born_at = row
        age_s = max(time.time() - born_at, 0.0)  # the clock may have been put back
        job = Job(name, world_size, range(first, first + slots), number, tenant, Demand(slots, slots), now - age_s)
        job.epoch, job.state = epoch, State.RUNNING
        members = self._database.execute(
            "SELECT rank, key, has_left, application, attachment FROM members WHERE epoch = ? ORDER BY rank", (epoch,)
        )
        for rank, key, has_left, application, attachment in members:
            job.members[rank] = Member(
                key, Application(**json.loads(application)), Attachment(**json.loads(attachment)), left=bool(has_left)
            )
        if sorted(job.members) != list(range(world_size)):
            raise ValueError(f"job {name!r} has not all its ranks")
        return job

    @contextmanager
    def _explaining(self, what: str) -> Iterator[None]:
        """What SQLite, the file system or the contents say, as a sentence."""
        try:
            yield
        except sqlite3.OperationalError as error:
            raise StateError(
                f"the state file {self._path} cannot be {what} ({error}): see that its folder exists, is this user's, is on a "
                "local disk and has room"
            ) from None
        except OSError as error:
            raise StateError(f"the state file {self._path} cannot be {what} ({error.strerror}); give another path") from None
        except (sqlite3.Error, ValueError, TypeError, KeyError) as error:
            raise StateError(
                f"the state file {self._path} is damaged, or no state file ({error}): put back a copy, or move it away; "
                "without it, running jobs join anew"
            ) from None


def _make_private(path: Path) -> None:
    """A file that only this user can read; what is there and not ours stays as it is. SQLite gives the files beside it the same
    mode."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise StateError(f"{path} is no file; give the controller a path for its state file")
        begin = os.read(descriptor, 72)
        if not begin or begin[68:] == _APPLICATION.to_bytes(4, "big"):
            os.fchmod(descriptor, 0o600)
    finally:
        os.close(descriptor)

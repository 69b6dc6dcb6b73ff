"""The state file: what a call wrote is there after any crash, and nothing else is."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from switchsum.controller.errors import StateError
from switchsum.controller.jobs import Application, Attachment, Job, Member, State
from switchsum.controller.ledger import Kept, Ledger
from switchsum.controller.slots import Demand

Call = tuple[str, int, int]  # a method, and its two numbers


def job(epoch: int, world: int = 2) -> Job:
    """A job whose every field follows from its epoch."""
    made = Job(f"job {epoch}", world, range(epoch % 100, epoch % 100 + 16), epoch % 255 + 1, "t", Demand(16, 16), 0.0)
    made.epoch, made.state = epoch, State.RUNNING
    for rank in range(world):
        application = Application(made.name, rank, world, "h", 7, "127.0.0.1", 1000 + rank, 0, 0, queue_s=1.5, tenant="t")
        made.members[rank] = Member(f"{epoch}.{rank}", application, Attachment(rank + 1, 2, "127.0.0.1", 9))
    return made


def told(kept: Kept) -> object:
    """A file's contents, to be compared."""
    jobs = {one.epoch: {rank: (each.key, each.left) for rank, each in one.members.items()} for one in kept.jobs}
    return jobs, kept.next_epoch, kept.incarnation


class Expected:
    """What the file must hold after these calls."""

    def __init__(self) -> None:
        self.jobs: dict[int, dict[int, tuple[str, bool]]] = {}
        self.next_epoch: int | None = None
        self.incarnation: int | None = None

    def apply(self, call: Call) -> None:
        method, first, second = call
        if method == "add":
            self.jobs[first] = {rank: (f"{first}.{rank}", False) for rank in range(2)}
            self.next_epoch = max(self.next_epoch or 0, first + 1)
        elif method == "leave" and first in self.jobs:
            self.jobs[first][second] = (f"{first}.{second}", True)
        elif method == "remove":
            self.jobs.pop(first, None)
        elif method == "found" and self.incarnation != first:
            self.jobs, self.incarnation = {}, first

    def told(self) -> object:
        return self.jobs, self.next_epoch, self.incarnation


def perform(ledger: Ledger, call: Call) -> None:
    method, first, second = call
    if method == "add":
        ledger.add(job(first), 0.0)
    elif method == "leave":
        ledger.leave(first, second)
    elif method == "remove":
        ledger.remove(first)
    else:
        ledger.found(first)


def random_calls(seed: int, count: int) -> list[Call]:
    chance, epoch, calls = random.Random(seed), 1000, []
    for _ in range(count):
        method = chance.choice(["add", "add", "leave", "remove", "found"])
        epoch += method == "add"
        first = {"add": epoch ^ 1, "found": chance.choice([5, 5, 5, 1 << 63])}.get(method, chance.randint(1000, epoch))
        calls.append((method, first, chance.randint(0, 1)))
    return calls


@settings(max_examples=40)  # each call waits for the disk
@given(seed=st.integers(0, 10**6), count=st.integers(0, 12))
def test_after_any_prefix_of_calls_the_file_holds_what_they_wrote(
    tmp_path_factory: pytest.TempPathFactory, seed: int, count: int
) -> None:
    path = tmp_path_factory.mktemp("ledger") / "state"
    expected = Expected()
    ledger = Ledger(path)
    assert told(ledger.take_over(0.0)) == expected.told()
    for call in random_calls(seed, count):
        perform(ledger, call)
        expected.apply(call)
        assert told(ledger.take_over(0.0)) == expected.told()
    ledger.close()
    again = Ledger(path)
    assert told(again.take_over(0.0)) == expected.told()
    again.close()


VICTIM = """
import os, signal, sys
from pathlib import Path
from switchsum.controller.ledger import Ledger
from tests.controller.test_ledger import perform, random_calls
path, seed, statements = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
ledger = Ledger(path)
ledger.take_over(0.0)
left = statements
def count(statement):
    global left
    left -= 1
    if left == 0:
        print("fired", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
ledger._database.set_trace_callback(count)
for call in random_calls(seed, 40):
    perform(ledger, call)
    print("done", flush=True)
"""


@pytest.mark.parametrize("seed", range(6))
def test_a_process_killed_at_any_statement_leaves_what_it_had_completed(tmp_path: Path, seed: int) -> None:
    """SQLite tells of each statement before it runs it: so some kills hit between BEGIN and COMMIT."""
    statements = random.Random(seed).randint(1, 150)
    victim = subprocess.run(
        [sys.executable, "-c", VICTIM, tmp_path / "state", str(seed), str(statements)], stdout=subprocess.PIPE, text=True
    )
    assert victim.returncode == -signal.SIGKILL
    *done, fired = victim.stdout.split()
    assert fired == "fired"
    calls = random_calls(seed, 40)
    expected = Expected()
    for call in calls[: len(done)]:
        expected.apply(call)
    possible = [expected.told()]
    expected = Expected()
    for call in calls[: len(done) + 1]:  # the one that was cut short may have been written, as a whole
        expected.apply(call)
    possible.append(expected.told())
    ledger = Ledger(tmp_path / "state")
    assert told(ledger.take_over(0.0)) in possible
    ledger.close()


def test_a_job_comes_back_as_it_was(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "state")
    ledger.take_over(50.0)
    before = job(7)
    ledger.add(before, 90.0)
    (after,) = ledger.take_over(1000.0).jobs
    assert 1000.0 - after.born_at == pytest.approx(90.0, abs=5.0)  # its age, in a clock that started anew
    assert {rank: vars(member) for rank, member in after.members.items()} == {
        rank: vars(member) for rank, member in before.members.items()
    }
    after.born_at, after.members = before.born_at, before.members
    assert vars(after) == vars(before)
    ledger.close()


def test_the_next_epoch_is_after_all_that_were_given_out_in_whatever_order_they_are_written(tmp_path: Path) -> None:
    """Jobs that wait for a switch that is away are written down in the order in which their first ranks came."""
    ledger = Ledger(tmp_path / "state")
    ledger.take_over(0.0)
    for epoch, expected in ((2**32 - 2, 2**32 - 1), (2, 3), (2**32 - 1, 3), (1, 3)):  # they come round
        ledger.add(job(epoch), 0.0)
        assert ledger.take_over(0.0).next_epoch == expected
    ledger.close()


def test_only_its_owner_can_read_it(tmp_path: Path) -> None:
    path = tmp_path / "state"
    path.touch()
    for _ in range(2):
        path.chmod(0o644)
        ledger = Ledger(path)
        ledger.take_over(0.0)
        ledger.found(1)
        assert len(list(tmp_path.iterdir())) == 3  # SQLite's own two beside it
        assert {stat.S_IMODE(each.stat().st_mode) for each in tmp_path.iterdir()} == {0o600}
        ledger.close()


def test_who_takes_over_ends_the_other_s_writing(tmp_path: Path) -> None:
    first, second = Ledger(tmp_path / "state"), Ledger(tmp_path / "state")
    first.take_over(0.0)
    first.add(job(1), 0.0)
    assert first.is_ours()
    assert [one.epoch for one in second.take_over(0.0).jobs] == [1]
    assert not first.is_ours()
    for write in (lambda: first.add(job(2), 0.0), lambda: first.leave(1, 0), lambda: first.remove(1), lambda: first.found(3)):
        with pytest.raises(StateError, match="state is another controller's now: that one took over"):
            write()
    assert told(second.take_over(0.0)) == ({1: {0: ("1.0", False), 1: ("1.1", False)}}, 2, None)
    first.close()
    second.close()


def damaged(path: Path, how: str) -> Path:
    """A file that cannot be a state file, or a path that cannot be a file."""
    if how == "text":
        path.write_text("slots: 12\n" * 100)
    elif how == "folder":
        path.mkdir()
    elif how == "pipe":
        os.mkfifo(path)
    elif how == "nowhere":
        return path / "below"
    elif how == "foreign":
        with sqlite3.connect(path) as database:
            database.execute("CREATE TABLE songs (title TEXT)")
    else:
        ledger = Ledger(path)
        ledger.take_over(0.0)
        ledger.add(job(1), 0.0)
        ledger.close()
        with sqlite3.connect(path) as database:
            database.execute(how)
        database.close()
    return path


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ("text", "is damaged, or no state file (file is not a database): put back a copy, or move it away"),
        ("folder", "cannot be opened (Is a directory); give another path"),
        ("pipe", "is no file; give the controller a path"),
        ("nowhere", "cannot be opened (No such file or directory); give another path"),
        ("foreign", "is a database of something else; give the controller a file of its own"),
        ("PRAGMA user_version = 9", "has format 9, this release knows 1: run the release that wrote it"),
        ("DELETE FROM members WHERE rank = 1", "is damaged, or no state file (job 'job 1' has not all its ranks)"),
        ("UPDATE members SET application = '{}'", "is damaged, or no state file"),
        ("UPDATE members SET attachment = 'x'", "is damaged, or no state file"),
        ("UPDATE jobs SET slots = 'many'", "is damaged, or no state file"),
        ("DELETE FROM reign", "is damaged, or no state file"),
    ],
)
def test_what_is_no_state_file_is_an_error(tmp_path: Path, how: str, sentence: str) -> None:
    path = damaged(tmp_path / "state", how)
    with pytest.raises(StateError) as caught:
        Ledger(path).take_over(0.0)
    assert sentence in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_torn_page_is_noticed(tmp_path: Path) -> None:
    path = damaged(tmp_path / "state", "PRAGMA user_version = 1")
    content = bytearray(path.read_bytes())
    content[4096:] = random.Random(1).randbytes(len(content) - 4096)
    path.write_bytes(content)
    with pytest.raises(StateError, match="is damaged, or no state file"):
        Ledger(path)


def test_a_full_disk_is_an_error_and_leaves_what_was_there(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "state")
    ledger.take_over(0.0)
    ledger.add(job(1), 0.0)
    (pages,) = ledger._database.execute("PRAGMA page_count").fetchone()
    ledger._database.execute(f"PRAGMA max_page_count = {pages}")  # what SQLite meets on a full disk is the same error

    def fill() -> None:
        for epoch in range(2, 1000):
            ledger.add(job(epoch), 0.0)

    with pytest.raises(StateError, match=r"cannot be written \(database or disk is full\): see that its folder exists"):
        fill()
    ledger.close()
    again = Ledger(tmp_path / "state")
    kept = again.take_over(0.0)
    assert [one.epoch for one in kept.jobs] == list(range(1, kept.next_epoch or 0))
    again.close()

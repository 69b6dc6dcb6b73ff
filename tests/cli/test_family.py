"""No child process outlives the demo, and what a child says is heard."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from switchsum.demo.family import Child, Family, Notice

LIMIT_S = 30.0

CHILD = """
import os, sys, time
from switchsum.demo.events import EventWriter, die_with_parent

behaviour, events_fd, parent = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
die_with_parent(parent)
events = EventWriter(events_fd)
print("hello from", behaviour, flush=True)
events.send("pid", pid=os.getpid())
if behaviour == "fails":
    print("what went wrong", file=sys.stderr)
    sys.exit(3)
if behaviour == "talks":
    for number in range(1000):
        events.send("number", number=number)
    print("last words without a newline", end="")
    sys.exit(0)
time.sleep(600)
"""

PARENT = """
import os, sys, time
from switchsum.demo.family import Family

family = Family()
for number in range(2):
    family.start("child", "child", lambda fd: ["sleeps", str(fd), str(os.getpid())], {})
pids = []
while len(pids) < 2:
    notice = family.hear(30)
    if notice.kind == "pid":
        pids.append(str(notice.values["pid"]))
print(" ".join(pids), flush=True)
time.sleep(600)
"""


@pytest.fixture
def environment(tmp_path: Path) -> Mapping[str, str]:
    """Where children find the module `child`."""
    (tmp_path / "child.py").write_text(CHILD)
    return {"PYTHONPATH": str(tmp_path)}


@pytest.fixture
def family() -> Iterator[Family]:
    with Family() as family:
        yield family


def start(family: Family, behaviour: str, environment: Mapping[str, str]) -> Child:
    return family.start(behaviour, "child", lambda events_fd: [behaviour, str(events_fd), str(os.getpid())], environment)


def hear_until(family: Family, kind: str) -> list[Notice]:
    heard = [family.hear(LIMIT_S)]
    while heard[-1].kind != kind:
        heard.append(family.hear(LIMIT_S))
    return heard


def state_of(pid: int) -> str:
    """The kernel's letter for what a process does: "T" is stopped; "" for one that is gone or only waits to be collected."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return ""
    return status.rpartition(")")[2].split()[0].removeprefix("Z")


def wait_for_state(pid: int, state: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while state_of(pid) != state:
        assert time.monotonic() < deadline, f"process {pid} is in state {state_of(pid)!r}, not {state!r}"
        time.sleep(0.01)


def test_everything_a_child_says_is_heard_in_order_and_before_its_end(family: Family, environment: Mapping[str, str]) -> None:
    child = start(family, "talks", environment)
    heard = hear_until(family, "ended")
    assert [notice.kind for notice in heard] == ["pid", *["number"] * 1000, "ended"]
    assert [notice.values["number"] for notice in heard[1:-1]] == list(range(1000))
    assert list(child.output) == ["hello from talks", "last words without a newline"]
    assert child.how_it_ended == "ended with exit status 0"


def test_a_child_that_fails_leaves_its_words(family: Family, environment: Mapping[str, str]) -> None:
    child = start(family, "fails", environment)
    hear_until(family, "ended")
    assert list(child.output) == ["hello from fails", "what went wrong"]
    assert child.how_it_ended == "ended with exit status 3"


def test_a_killed_child_is_named_with_its_signal(family: Family, environment: Mapping[str, str]) -> None:
    child = start(family, "sleeps", environment)
    hear_until(family, "pid")
    os.kill(child.process.pid, signal.SIGKILL)
    assert hear_until(family, "ended")[-1].child is child
    assert child.how_it_ended == "was killed by SIGKILL"


def test_silence_is_bounded(family: Family, environment: Mapping[str, str]) -> None:
    start(family, "sleeps", environment)
    hear_until(family, "pid")
    with pytest.raises(TimeoutError, match=r"nothing was heard for 0\.2 s"):
        family.hear(0.2)


def test_leaving_ends_all_even_one_that_is_stopped(environment: Mapping[str, str]) -> None:
    with Family() as family:
        children = [start(family, "sleeps", environment) for _ in range(2)]
        for _ in children:
            hear_until(family, "pid")
        os.kill(children[0].process.pid, signal.SIGSTOP)
        wait_for_state(children[0].process.pid, "T")  # from now on SIGTERM cannot end it
    assert [child.process.returncode for child in children] == [-signal.SIGKILL, -signal.SIGTERM]


def test_an_exception_ends_all(environment: Mapping[str, str]) -> None:
    def interrupted() -> None:
        with Family() as family:
            children.append(start(family, "sleeps", environment))
            hear_until(family, "pid")
            raise KeyboardInterrupt

    children: list[Child] = []
    with pytest.raises(KeyboardInterrupt):
        interrupted()
    (child,) = children
    assert child.process.returncode == -signal.SIGTERM


def test_children_die_with_a_parent_that_is_killed(environment: Mapping[str, str]) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True, env={**os.environ, **environment}
    )
    assert parent.stdout is not None
    with parent:
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) == 2
        assert all(map(state_of, pids))
        parent.kill()
    for pid in pids:
        wait_for_state(pid, "")

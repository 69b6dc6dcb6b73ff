"""Few cores, slow frequencies, little memory and disk, and no place for compiled code."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from switchsum.doctor import machine
from switchsum.doctor.findings import Finding, Host, Role, Status
from tests.doctor.conftest import WORKER, as_nobody, needs_root, only


def test_one_core_is_few() -> None:
    """In a thread of its own, which the kernel confines to one."""
    found: list[Finding] = []

    def confined() -> None:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        found.extend(machine.processor(WORKER))

    thread = threading.Thread(target=confined)
    thread.start()
    thread.join()
    assert only(found).status is Status.WARNING
    assert only(found).found.startswith("1 may be used")


def describe_processor(folder: Path, number: int, governor: str, driver: str) -> None:
    """As /sys/devices/system/cpu does."""
    here = folder / f"cpu{number}" / "cpufreq"
    here.mkdir(parents=True)
    (here / "scaling_governor").write_text(f"{governor}\n")
    (here / "scaling_driver").write_text(f"{driver}\n")


def test_a_governor_that_saves_power(tmp_path: Path) -> None:
    describe_processor(tmp_path, 0, "powersave", "acpi-cpufreq")
    describe_processor(tmp_path, 1, "performance", "acpi-cpufreq")
    finding = only(machine.governor(WORKER, tmp_path))
    assert finding.status is Status.WARNING
    assert finding.found.startswith("powersave on 1 processors")
    assert finding.remedy == "cpupower frequency-set -g performance"


def test_a_governor_that_is_only_called_so(tmp_path: Path) -> None:
    describe_processor(tmp_path, 0, "powersave", "intel_pstate")
    assert list(machine.governor(WORKER, tmp_path)) == []


@pytest.mark.parametrize(
    ("available", "swap_free", "status"),
    [(8 << 20, 4 << 20, Status.FINE), (100 << 10, 4 << 20, Status.WARNING), (1 << 20, 0, Status.WARNING)],
    ids=["enough", "too little", "swapped out"],
)
def test_memory(tmp_path: Path, available: int, swap_free: int, status: Status) -> None:
    lines = [f"MemAvailable: {available} kB", f"SwapTotal: {4 << 20} kB", f"SwapFree: {swap_free} kB"]
    (tmp_path / "meminfo").write_text("\n".join(lines) + "\n")
    assert only(machine.memory(WORKER, tmp_path)).status is status


def test_the_memory_of_this_machine_can_be_read() -> None:
    assert len(list(machine.memory(WORKER))) == 1


@needs_root
def test_a_disk_that_is_full(tmp_path: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", tmp_path], check=True)
    try:
        finding = only(machine.disk(tmp_path))
    finally:
        subprocess.run(["umount", tmp_path], check=True)
    assert finding.status is Status.WARNING
    assert "NUMBA_CACHE_DIR" in finding.remedy


LOOPS = (
    "from switchsum.doctor import machine; from switchsum.doctor.findings import Host\n"
    "for each in machine.packet_loops(Host(frozenset())): print(each.subject, each.status.value, each.found, sep='|')"
)


@needs_root
def test_nowhere_to_keep_compiled_code() -> None:
    """Neither beside the sources nor at home."""
    (line,) = as_nobody(LOOPS).splitlines()
    assert line.startswith("numba's cache|error|there is no folder that it may write: cannot cache function")


def test_an_empty_cache_will_be_filled_by_the_first_rank(tmp_path: Path) -> None:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", LOOPS]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=True)
    cache, disk = done.stdout.splitlines()
    assert cache.startswith(f"numba's cache|note|{tmp_path}")
    assert disk.startswith(f"disk {tmp_path}")


def test_a_switch_that_cannot_keep_its_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")
    controller = Host(frozenset({Role.CONTROLLER}))
    finding = only(machine.switch_cache(controller))
    assert finding.subject == "embedded switch's cache"
    assert list(machine.switch_cache(WORKER)) == []

"""Compiled test programs, each loaded once a session; a fresh dataplane for every test."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from switchsum.softswitch.dataplane import Dataplane, Program

PROGRAMS = Path(__file__).parent / "programs"


@cache
def compiled(name: str) -> Program:
    return Program.load(PROGRAMS / f"{name}.json")


@pytest.fixture
def switch() -> Callable[..., Dataplane]:
    """switch(name, seed=0): a dataplane that runs programs/<name>.json, in its initial state."""
    return lambda name, seed=0: Dataplane(compiled(name), seed)

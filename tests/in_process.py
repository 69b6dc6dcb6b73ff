"""The command line in this process, so that what it prints and how it ends can be looked at."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from switchsum import cli

ROOT = Path(__file__).resolve().parents[1]


def command_line(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    """The exit status of `switchsum WORDS`. Processes that it starts import this checkout."""
    monkeypatch.setattr(sys, "argv", ["switchsum", *map(str, words)])
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert isinstance(stopped.value.code, int)
    return stopped.value.code

"""Environment variables: those that do not work, and those that nobody reads."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator

from switchsum.doctor.findings import Finding, Host, Status
from switchsum.settings import Settings

PREFIX = "SWITCHSUM_"
# All that any part reads; tests/doctor/test_variables.py compares them with the sources.
KNOWN = frozenset(
    {
        "SWITCHSUM_BMV2",
        "SWITCHSUM_CA",
        "SWITCHSUM_CAPTURE",
        "SWITCHSUM_CERT",
        "SWITCHSUM_COMMAND",
        "SWITCHSUM_CONTROLLER",
        "SWITCHSUM_DATA_ADDRESS",
        "SWITCHSUM_GLOO_BELOW",
        "SWITCHSUM_INSECURE",
        "SWITCHSUM_JOB",
        "SWITCHSUM_KEY",
        "SWITCHSUM_LANES",
        "SWITCHSUM_LEAST_SLOTS",
        "SWITCHSUM_LOG",
        "SWITCHSUM_METRICS",
        "SWITCHSUM_ON_LOSS",
        "SWITCHSUM_PROFILE",
        "SWITCHSUM_QUEUE",
        "SWITCHSUM_RACK_RUN",
        "SWITCHSUM_SLOTS",
        "SWITCHSUM_TIMEOUT",
        "SWITCHSUM_TOKEN",
        "SWITCHSUM_TOKEN_FILE",
    }
)


def values(host: Host) -> Iterator[Finding]:
    """Whether a rank that is started from here would accept them."""
    try:
        Settings.from_environment()
    except ValueError as error:
        yield Finding("values", Status.ERROR, str(error), "correct it: docs/pytorch.md lists variables and values")
        return
    present = sorted(name for name in os.environ if name in KNOWN)
    yield Finding(
        "values", Status.FINE, f"{', '.join(present)} can be read" if present else "none of switchsum's variables is set"
    )


def names(host: Host) -> Iterator[Finding]:
    """Names that look like ours and are not: usually misspelled, and ignored without a word."""
    for name in sorted(os.environ):
        if name.startswith(PREFIX) and name not in KNOWN:
            near = [PREFIX + rest for rest in difflib.get_close_matches(name.removeprefix(PREFIX), _rests(), 1)]
            remedy = f'export {near[0]}="${name}"; unset {name}' if near else f"unset {name}"
            yield Finding(name, Status.WARNING, "is set, but no part of switchsum reads a variable of this name", remedy)


def _rests() -> list[str]:
    return [name.removeprefix(PREFIX) for name in KNOWN]


def autoload(host: Host) -> Iterator[Finding]:
    """PyTorch's own switch for backends that are found by their entry point."""
    if os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD") == "0":
        yield Finding(
            "TORCH_DEVICE_BACKEND_AUTOLOAD",
            Status.WARNING,
            "is 0: PyTorch does not know the backend unless the script imports switchsum after torch",
            "unset TORCH_DEVICE_BACKEND_AUTOLOAD",
        )

"""Log lines for people and for machines: time, level, component, message, and which job, epoch, rank and tenant they concern.

Whoever logs names those in `extra`: logger.info("...", extra={"job": "train", "epoch": 7}).
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TextIO

from switchsum.printable import printable

FIELDS = ("tenant", "job", "epoch", "rank")
FORMATS = ("text", "json")
LEVELS = ("debug", "info", "warning", "error")
_PACKAGE = "switchsum"


class TextFormatter(logging.Formatter):
    """2026-11-30T08:00:00.123Z INFO controller.service: job 'train', epoch 7 ended: ... [job=train epoch=7]"""

    def format(self, record: logging.LogRecord) -> str:
        told = _fields(record)
        fields = f" [{' '.join(f'{name}={value}' for name, value in told.items())}]" if told else ""
        # A host or job may be called anything; what it is called must not look like another line.
        line = printable(f"{_time(record)} {record.levelname} {_component(record)}: {record.getMessage()}{fields}")
        trace = _trace(self, record)
        return f"{line}\n{trace}" if trace else line


class JsonFormatter(logging.Formatter):
    """The same as one JSON object; a trace is its member "exception"."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "component": _component(record),
            "message": record.getMessage(),
            **_fields(record),
        }
        trace = _trace(self, record)
        return json.dumps(line | {"exception": trace} if trace else line, default=str)


class _Handler(logging.StreamHandler[TextIO]):
    """Writes to what is the standard error when it writes."""

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        return sys.stderr

    @stream.setter
    def stream(self, value: TextIO) -> None:
        pass


def log_process(style: str) -> Callable[[str], None]:
    """A process of ours, such as the controller: everything that is logged in it goes to standard error in this style, ours
    from INFO on, other's from WARNING on.

    Returns how it says what is no log line for people: print, but for "json" a log line all the same. Raises ValueError for a
    style that there is not.
    """
    _check("--log-format", style, FORMATS)
    _install(logging.getLogger(), style)
    logging.getLogger(_PACKAGE).setLevel(logging.INFO)
    return logging.getLogger(_PACKAGE).info if style == "json" else print


def log_library(setting: str, name: str) -> None:
    """A process of somebody else's, such as a training script: only what is ours, as `setting` says.

    `setting`: "LEVEL", "json" or "LEVEL,json"; "": nothing changes, the process's own logging decides. Raises ValueError, which
    calls the setting `name`.
    """
    if not setting:
        return
    level, style = "info", "text"
    for word in setting.lower().split(","):
        if word in FORMATS:
            style = word
        else:
            _check(name, word, (*LEVELS, *FORMATS))
            level = word
    logger = logging.getLogger(_PACKAGE)
    _install(logger, style)
    logger.setLevel(level.upper())
    logger.propagate = False  # the process's own handlers would tell it a second time


def log_as_environment_says() -> None:
    """log_library(), by SWITCHSUM_LOG."""
    log_library(os.environ.get("SWITCHSUM_LOG", ""), "SWITCHSUM_LOG")


def _install(logger: logging.Logger, style: str) -> None:
    handler = _Handler()
    handler.setFormatter({"text": TextFormatter, "json": JsonFormatter}[style]())
    for present in list(logger.handlers):
        if isinstance(present, _Handler):
            logger.removeHandler(present)
    logger.addHandler(handler)


def _check(name: str, word: str, choices: tuple[str, ...]) -> None:
    if word not in choices:
        raise ValueError(f"{name} {word!r} is not known: write {', '.join(choices[:-1])} or {choices[-1]}")


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _component(record: logging.LogRecord) -> str:
    return record.name.removeprefix(f"{_PACKAGE}.")


def _fields(record: logging.LogRecord) -> dict[str, object]:
    return {name: value for name in FIELDS if (value := getattr(record, name, None)) not in (None, "")}


def _trace(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    return formatter.formatException(record.exc_info) if record.exc_info else ""

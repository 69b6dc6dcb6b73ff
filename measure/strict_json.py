"""JSON that people may have written or damaged: read within limits, with errors that say where; written whole or not at all.

Each function takes the error to raise, a kind of ValueError, so that a bad file is its module's own error.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any


def read_text(path: Path, what: str, largest_bytes: int, error: type[ValueError]) -> str:
    """A file's text (UTF-8); `what`: a noun for errors, such as "payload"."""
    if path.exists() and not path.is_file():  # opening a pipe might wait for ever
        raise error(f"{path} is no file with a {what}")
    try:
        with path.open("rb") as file:
            content = file.read(largest_bytes + 1)
    except OSError as failed:
        raise error(f"{path} cannot be read: {failed.strerror}") from failed
    if len(content) > largest_bytes:
        raise error(f"{path} is larger than {largest_bytes} bytes; no {what} is")
    try:
        return content.decode()
    except UnicodeDecodeError as failed:
        raise error(f"{path} is no text (UTF-8): byte {failed.start}") from None


def parse(text: str, where: str, what: str, error: type[ValueError]) -> Any:
    """Without NaN and infinity, whatever way they are written."""
    try:
        return json.loads(text, parse_float=_finite, parse_constant=_finite)
    except RecursionError:
        raise error(f"{where} is no {what}: it is nested too deeply") from None
    except ValueError as failed:
        raise error(f"{where} is not JSON: {failed}") from None


def fields(value: Any, where: str, required: Sequence[str], optional: Sequence[str], error: type[ValueError]) -> dict[str, Any]:
    """An object's, if they are all of the required ones and none that is unknown."""
    if not isinstance(value, dict):
        raise error(f"{where} must be an object with {', '.join(required)}, not {shown(value)}")
    for name in required:
        if name not in value:
            raise error(f"{where} has no {name!r}")
    for name in value:
        if name not in (*required, *optional):
            raise error(f"{where} has {shown(name)}, which is unknown; there are {', '.join((*required, *optional))}")
    return dict(value)


def items(value: Any, where: str, error: type[ValueError]) -> list[Any]:
    if not isinstance(value, list):
        raise error(f"{where} must be a list, not {shown(value)}")
    return value


def whole(what: str, value: Any, least: int, largest: int, error: type[ValueError]) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise error(f"{what} {shown(value)} must be a whole number")
    if not least <= value <= largest:
        raise error(f"{what} {shown(value)} is out of range: {least} to {largest}")


def number(what: str, value: Any, largest: float, error: type[ValueError], positive: bool = False) -> None:
    """From 0, or above it, up to `largest`."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise error(f"{what} {shown(value)} is no number")
    if not 0 <= value <= largest or (positive and not value):  # NaN fails, too
        raise error(f"{what} {shown(value)} is out of range: {'above 0' if positive else '0'} to {largest:g}")


def shown(value: Any) -> str:
    """A wrong value for an error's text: on one line, and short whatever it is."""
    if isinstance(value, list | tuple | dict):
        return "an object" if isinstance(value, dict) else f"a list of {len(value)}"
    if isinstance(value, int) and abs(value) >= 10**30:
        return "with too many digits"
    text = ascii(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def write_text(path: Path, text: str) -> None:
    """All of it or, if that fails, nothing: what was there stays. Raises OSError."""
    handle, temporary = tempfile.mkstemp(dir=path.resolve().parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)  # mkstemp's own is for its owner only
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise


def _finite(text: str) -> float:
    found = float(text)
    if not math.isfinite(found):
        raise ValueError(f"{text} is no finite number")
    return found

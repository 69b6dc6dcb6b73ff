"""Reads a large JSON object entry by entry, so that memory is bounded by the largest entry and not by the file.

A trace of a few steps is easily a gigabyte, and ten times that as Python objects. One list of the object is handed out entry
by entry; its other values must be small.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

_PIECE = 1 << 20  # characters
_LARGEST_VALUE = 64 << 20  # characters of one entry, or of one value beside the list
_LONGEST_TOKEN = 32  # characters of a number, a word or an escape that may stand unfinished at the end of what was read
_BLANKS = " \t\r\n"


class BadTrace(ValueError):
    """A file or folder that cannot be analyzed; the text says which, why, and what to do."""


class NoTrace(BadTrace):
    """The file is JSON, or something else entirely, but no trace."""


def read_object(path: Path, entries: dict[str, Callable[[Any], None]]) -> dict[str, Any]:
    """Read a file of JSON, plain or gzip (told by its first bytes, whatever its name).

    entries: of each list that is read entry by entry, its key and what takes an entry. Returns the other values of the object;
    a list that was there has True. Raises NoTrace if the file does not begin with a JSON object, BadTrace if it is cut off or
    damaged.
    """
    try:
        with path.open("rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
        with gzip.open(path, "rt", encoding="utf-8") if packed else path.open(encoding="utf-8") as opened:
            return _Reader(path, opened).read(entries)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise BadTrace(f"{path} is cut off or damaged (gzip: {error}); copy it again, or profile again") from error
    except UnicodeDecodeError as error:
        raise NoTrace(f"{path} is no trace: it is not text in UTF-8") from error
    except OSError as error:
        raise BadTrace(f"{path} cannot be read: {error.strerror or error}") from error
    except RecursionError as error:
        raise BadTrace(f"{path} is damaged: its values are nested too deeply; profile again") from error


class _Reader:
    def __init__(self, path: Path, opened: IO[str]) -> None:
        self._path = path
        self._opened = opened
        self._decoder = json.JSONDecoder()
        self._text = ""
        self._at = 0
        self._gone = 0  # characters before _text
        self._ended = False

    def read(self, entries: dict[str, Callable[[Any], None]]) -> dict[str, Any]:
        first = self._next()
        if not first:
            raise BadTrace(f"{self._path} is empty; copy it again, or profile again")
        if first != "{":
            raise NoTrace(f"{self._path} is no trace: it is no JSON object")
        self._at += 1
        found: dict[str, Any] = {}
        if self._next() == "}":
            return found
        while True:
            key = self._value()
            if not isinstance(key, str):
                raise self._damaged(False)
            self._skip(":")
            if key in entries and self._next() == "[":
                self._list(entries[key])
                found[key] = True
            else:
                found[key] = self._value()
            if self._separator("}"):
                break
        if self._next():
            raise self._damaged(False)
        return found

    def _list(self, take: Callable[[Any], None]) -> None:
        self._skip("[")
        if self._next() == "]":
            self._at += 1
            return
        while True:
            take(self._value())
            if self._separator("]"):
                return

    def _separator(self, end: str) -> bool:
        """Whether what follows ends the list or object, and not a comma."""
        found = self._next()
        if found not in (",", end) or not found:
            raise self._damaged(not found)
        self._at += 1
        return found == end

    def _skip(self, wanted: str) -> None:
        found = self._next()
        if found != wanted:
            raise self._damaged(not found)
        self._at += 1

    def _next(self) -> str:
        """The next character that is not blank, without taking it; "" at the end."""
        while True:
            while self._at < len(self._text) and self._text[self._at] in _BLANKS:
                self._at += 1
            if self._at < len(self._text) or not self._more():
                return self._text[self._at : self._at + 1]

    def _value(self) -> Any:
        self._next()
        while True:
            try:
                value, end = self._decoder.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                # What ends behind the text read so far looks damaged, too, but at its end.
                unfinished = error.pos > len(self._text) - _LONGEST_TOKEN or error.msg.startswith("Unterminated")
                if unfinished and self._more():
                    continue
                raise self._damaged(unfinished) from error
            except ValueError as error:  # a number of thousands of digits
                raise self._damaged(False) from error
            size = end - self._at
            if isinstance(value, int | float) and end > len(self._text) - _LONGEST_TOKEN and self._more():
                continue  # a number may go on
            self._at += size
            return value

    def _more(self) -> bool:
        """Read on; False at the end."""
        kept = len(self._text) - self._at
        if kept > _LARGEST_VALUE:
            raise BadTrace(
                f"{self._path} is damaged, or no trace: the value at character {self._gone + self._at:,} does not end within "
                f"{_LARGEST_VALUE >> 20} Mi characters; profile again"
            )
        # As much again as is kept, so that a long value is not decoded anew for every piece.
        piece = "" if self._ended else self._opened.read(max(_PIECE, kept))
        self._ended = not piece
        self._gone += self._at
        self._text = self._text[self._at :] + piece
        self._at = 0
        return not self._ended

    def _damaged(self, cut: bool) -> BadTrace:
        place = f"at character {self._gone + self._at:,}"
        if cut:
            return BadTrace(f"{self._path} is cut off {place}; copy it again, or profile again")
        return BadTrace(f"{self._path} is damaged {place}: that is not JSON; profile again")

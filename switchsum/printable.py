"""Text that came from elsewhere, made fit for a terminal and for a line of a log."""

from __future__ import annotations

# C0, DEL, C1, and what Unicode calls line and paragraph separator: none may move a cursor or look like another line.
_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))} | {0x2028: "\\u2028", 0x2029: "\\u2029"}


def printable(text: str) -> str:
    """The text with its control characters written as escapes."""
    return text.translate(_CONTROLS)

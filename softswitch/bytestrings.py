"""P4Runtime bytestrings: unsigned integers as big-endian byte strings (P4Runtime 1.4.1, section "Bytestrings").

The canonical form is the shortest string that holds the value; zero is one zero byte. A receiver accepts longer
strings as long as the *value* fits the declared width, and refuses empty ones.
"""


class BytestringError(ValueError):
    """A byte string that holds no value of the declared width; P4Runtime answers OUT_OF_RANGE."""


def decode(text: bytes, width: int, what: str) -> int:
    """The value of `text`, which must fit `width` bits. `what` names the field in the error."""
    if not text:
        raise BytestringError(f"{what}: the byte string is empty; send at least one byte (zero is 00)")
    value = int.from_bytes(text, "big")
    if value.bit_length() > width:
        shown = text.hex() if len(text) <= 16 else f"{text[:16].hex()}... ({len(text)} bytes)"
        raise BytestringError(f"{what}: value 0x{shown} needs {value.bit_length()} bits, the field has {width}")
    return value


def encode(value: int) -> bytes:
    """The canonical string of a non-negative value, so that what was written is read back byte for byte."""
    return value.to_bytes(max(1, (value.bit_length() + 7) // 8), "big")

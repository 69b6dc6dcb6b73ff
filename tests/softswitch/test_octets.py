"""Internet checksums and copies of the compiled packet loops, against RFC 1071 written out."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from switchsum.softswitch.octets import copy, folded, put16, u16, word_sum


def sum_of_words(data: bytes) -> int:
    """Ones' complement sum, as section 1 of RFC 1071 describes it."""
    padded = data + bytes(len(data) % 2)
    total = sum(int.from_bytes(padded[at : at + 2], "big") for at in range(0, len(padded), 2))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


@given(st.binary(max_size=200), st.binary(max_size=9), st.binary(max_size=9))
def test_a_sum_is_of_its_own_bytes_wherever_they_lie(data: bytes, before: bytes, after: bytes) -> None:
    memory = np.frombuffer(before + data + after, np.uint8).copy()
    assert folded(word_sum(memory, len(before), len(data))) == sum_of_words(data)


@given(st.integers(0, 65535), st.sampled_from([0, 0xFF]))
def test_long_and_extreme_data_loses_no_carry(length: int, byte: int) -> None:
    assert folded(word_sum(np.full(length + 2, byte, np.uint8), 1, length)) == sum_of_words(bytes([byte]) * length)


@given(st.binary(min_size=1, max_size=64), st.data())
def test_a_copy_writes_its_range_and_nothing_else(data: bytes, draw: st.DataObject) -> None:
    start = draw.draw(st.integers(0, len(data)))
    length = draw.draw(st.integers(0, len(data) - start))
    at = draw.draw(st.integers(0, 20))
    target = np.full(100, 7, np.uint8)
    copy(target, at, np.frombuffer(data, np.uint8).copy(), start, length)
    assert target.tobytes() == bytes([7]) * at + data[start : start + length] + bytes([7]) * (100 - at - length)


@given(st.integers(0, 65535))
def test_fields_are_big_endian(value: int) -> None:
    memory = np.zeros(5, np.uint8)
    put16(memory, 1, value)
    assert memory.tobytes() == b"\0" + value.to_bytes(2, "big") + b"\0\0"
    assert u16(memory, 1) == value

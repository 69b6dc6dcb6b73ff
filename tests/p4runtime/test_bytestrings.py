"""The examples of P4Runtime 1.4.1, section "Bytestrings", and the round trip that read-write symmetry needs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchsum.softswitch.bytestrings import BytestringError, decode, encode


@pytest.mark.parametrize(
    ("width", "text", "value"),
    [
        (8, "63", 99),
        (16, "0063", 99),
        (16, "63", 99),
        (16, "3064", 12388),
        (16, "003064", 12388),
        (12, "0063", 99),
        (12, "63", 99),
        (12, "000063", 99),
        (1, "00", 0),
        (1, "01", 1),
    ],
)
def test_valid_examples_of_the_standard(width: int, text: str, value: int) -> None:
    assert decode(bytes.fromhex(text), width, "x") == value


@pytest.mark.parametrize(
    ("width", "text"), [(8, "0163"), (8, ""), (16, "010063"), (16, ""), (12, "1063"), (12, "010063"), (12, "004063")]
)
def test_invalid_examples_of_the_standard(width: int, text: str) -> None:
    with pytest.raises(BytestringError, match="the field"):
        decode(bytes.fromhex(text), width, "the field")


@given(st.integers(1, 300).flatmap(lambda width: st.tuples(st.just(width), st.integers(0, (1 << width) - 1))))
def test_every_value_survives_in_its_shortest_form(case: tuple[int, int]) -> None:
    width, value = case
    text = encode(value)
    assert decode(text, width, "x") == value
    assert decode(bytes(3) + text, width, "x") == value
    assert len(text) == 1 or text[0] != 0

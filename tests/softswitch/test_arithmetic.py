"""P4's operators as p4c lowers them, against plain Python. Program: programs/arithmetic.p4."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from switchsum.softswitch.dataplane import Dataplane
from tests.softswitch.conftest import compiled
from tests.softswitch.test_expressions import signed_value, unpack

INPUT: list[list[object]] = [["a", 8], ["b", 8], ["s", 8], ["t", 8], ["w", 32], ["x", 13], ["y", 3], ["big", 256], ["q", 64]]


def clamp(value: int, low: int, high: int) -> int:
    return max(low, min(high, value))


def expected(a: int, b: int, s: int, t: int, w: int, x: int, y: int, big: int, q: int) -> dict[str, int]:
    """The P4 program's assignments, field by field (P4-16 specification section 8.6 and following)."""
    unsigned_s, s, t = s, signed_value(s, 8), signed_value(t, 8)
    compared = [
        a < b,
        s < t,
        (a + b) % 256 < a,
        s >= 0,
        big > 1 << 200,
        a == b or s == t,
        x >> 10 == y and y != 0,
    ]
    return {
        "sum": (a + b) % 256,
        "difference": (a - b) % 256,
        "product": a * b % 256,
        "usat_add": clamp(a + b, 0, 255),
        "usat_sub": clamp(a - b, 0, 255),
        "sat_add": clamp(s + t, -128, 127) % 256,
        "sat_sub": clamp(s - t, -128, 127) % 256,
        "concatenated": b << 8 | a,
        "sliced": w >> 12 & 0xFF,
        "left": a << 3 & 0xFF,
        "right": a >> 3,
        "arithmetic_right": (s >> 2) % 256,
        "variable_left": a << b & 0xFF,
        "variable_right": a >> b,
        "inverted": ~a % 256,
        "negated": -s % 256,
        "widened": s % 65536,
        "unsigned_widened": unsigned_s,
        "compared": sum(bit << n for n, bit in enumerate(compared)),
        "mux": b if a > 100 else unsigned_s,
        "big_sum": (big + w) % 2**256,
        "big_shift": (big << 100 | big >> 156) % 2**256,
        "x": (x + 1) % 2**13,
        "y": (y - 1) % 8,
        "assigned_slice": w & ~0xFF00 | a << 8,
        "product64": q * 0x9E3779B97F4A7C15 % 2**64,
        "logic": (a & 0x3C) ^ (b | 0x81),
        "hash_like": (w ^ w >> 16) * 0x45D9F3B % 2**32,
    }


def test_every_operator() -> None:
    dataplane = Dataplane(compiled("arithmetic"))
    widths = {"big_sum": 256, "big_shift": 256, "x": 13, "y": 3, "assigned_slice": 32, "product64": 64, "hash_like": 32}
    widths |= {"concatenated": 16, "widened": 16, "unsigned_widened": 16}
    octet = st.sampled_from([0, 1, 2, 7, 8, 127, 128, 129, 254, 255]) | st.integers(0, 255)

    inputs = st.tuples(octet, octet, octet, octet, *(st.integers(0, 2**width - 1) for width in (32, 13, 3, 256, 64)))

    @settings(max_examples=150, deadline=None)
    @given(inputs)
    @example((255, 255, 128, 128, 2**32 - 1, 2**13 - 1, 7, 2**256 - 1, 2**64 - 1))
    @example((0, 0, 128, 127, 0, 0, 0, 0, 0))
    def check(values: tuple[int, ...]) -> None:
        whole = 0
        for (_, width), value in zip(INPUT, values, strict=True):
            whole = whole << int(str(width)) | value
        [(_, data)] = dataplane.process(1, whole.to_bytes(50, "big"))
        wanted = expected(*values)
        layout: list[list[object]] = [[name, widths.get(name, 8)] for name in wanted]
        assert unpack(data, layout) == wanted

    check()

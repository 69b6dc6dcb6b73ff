"""Sets of times: what ran when, each moment counted once.

A set is an array of shape (n, 2), float64: begins and ends in microseconds, sorted, without overlap, none empty.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

Spans = NDArray[np.float64]
EMPTY: Spans = np.empty((0, 2))


def union(begins: ArrayLike, ends: ArrayLike) -> Spans:
    """Of intervals in any order, nested and overlapping ones too; those that touch become one. Empty ones vanish."""
    begin, end = np.asarray(begins, dtype=np.float64), np.asarray(ends, dtype=np.float64)
    begin, end = begin[end > begin], end[end > begin]
    if not len(begin):
        return EMPTY
    order = np.argsort(begin, kind="stable")
    begin, reached = begin[order], np.maximum.accumulate(end[order])
    first = np.concatenate([[True], begin[1:] > reached[:-1]])
    last = np.concatenate([first[1:], [True]])
    return np.column_stack([begin[first], reached[last]])


def together(*sets: Spans) -> Spans:
    """What is in any of them."""
    every = np.concatenate([EMPTY, *sets])
    return union(every[:, 0], every[:, 1])


def both(a: Spans, b: Spans) -> Spans:
    return _where(a, b, np.logical_and)


def without(a: Spans, b: Spans) -> Spans:
    """What is in `a` and not in `b`."""
    return _where(a, b, lambda in_a, in_b: in_a & ~in_b)


def clip(a: Spans, begin: float, end: float) -> Spans:
    """The part of `a` that lies from `begin` to `end`."""
    if end <= begin:
        return EMPTY
    some = a[np.searchsorted(a[:, 1], begin, "right") : np.searchsorted(a[:, 0], end, "left")]
    return np.clip(some, begin, end)


def length(a: Spans) -> float:
    """Microseconds."""
    return float((a[:, 1] - a[:, 0]).sum())


def _where(a: Spans, b: Spans, keep: Callable[[NDArray[np.bool_], NDArray[np.bool_]], NDArray[np.bool_]]) -> Spans:
    points = np.unique(np.concatenate([a.ravel(), b.ravel()]))
    begins, ends = points[:-1], points[1:]
    kept = keep(_covers(a, begins), _covers(b, begins))
    return union(begins[kept], ends[kept])


def _covers(a: Spans, moments: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Whether something of `a` runs right after each moment."""
    begun = np.searchsorted(a[:, 0], moments, "right")
    ended = np.searchsorted(a[:, 1], moments, "right")
    return begun > ended

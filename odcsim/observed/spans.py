"""Stretches of time as two arrays, where they begin and where they end."""

import numpy as np

from odcsim.timeline import Floats, Ints

Spans = tuple[Floats, Floats]
NONE: Spans = (np.zeros(0), np.zeros(0))


def united(begin: Floats, end: Floats) -> Spans:
    """Where any of them is; they come in the order in which they begin."""
    if not len(begin):
        return NONE
    latest = np.maximum.accumulate(end)
    fresh = np.append(True, begin[1:] > latest[:-1])
    last = np.append(np.flatnonzero(fresh)[1:] - 1, len(begin) - 1)
    return begin[fresh], latest[last]


def in_turn(begin: Floats, end: Floats) -> tuple[Floats, Floats, Ints]:
    """The same without overlap: each from where those before it have ended; and which they are."""
    if not len(begin):
        return *NONE, np.zeros(0, np.int64)
    free = np.append(-np.inf, np.maximum.accumulate(end)[:-1])
    start = np.maximum(begin, free)
    kept = np.flatnonzero(start < end)
    return start[kept], end[kept], kept


def within(points: Floats, spans: Spans) -> Ints:
    """Which of these spans, that do not overlap, each point is in; or -1."""
    begin, end = spans
    if not len(begin):
        return np.full(len(points), -1, np.int64)
    place = np.searchsorted(begin, points, side="right") - 1
    return np.where((place >= 0) & (points < end[place]), place, -1)


def clipped(spans: Spans, low: float, high: float) -> Spans:
    """What of them lies there."""
    begin, end = spans
    here = slice(np.searchsorted(end, low, side="right"), np.searchsorted(begin, high, side="left"))
    return np.maximum(begin[here], low), np.minimum(end[here], high)

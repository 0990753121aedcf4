"""What a trace looks like in figures, weighted by its counts without expanding them."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from odcsim.trace import Trace

PERCENTILES = (50.0, 90.0, 95.0, 99.0, 99.9)


@dataclass(frozen=True, slots=True)
class TraceStats:
    """`cv` is the coefficient of variation: standard deviation over mean. What a trace does not hold is None."""

    count: int
    tokens: int
    mean: float
    cv: float
    shortest: int
    longest: int
    percentiles: tuple[float, ...]
    loss_share: float | None
    steps: int | None
    groups: int | None


@dataclass(frozen=True, slots=True)
class Cut:
    """What a limit costs: samples over it, and tokens lost if those are cut to it or dropped whole."""

    at: int
    samples: int
    tokens_if_cut: int
    tokens_if_dropped: int


def describe(trace: Trace) -> TraceStats:
    weight = weights(trace)
    tokens, lengths = int(weight @ trace.lengths), trace.lengths.astype(np.float64)
    mean = tokens / trace.size
    spread = float(np.sqrt(weight @ (lengths - mean) ** 2 / trace.size))
    return TraceStats(
        count=trace.size,
        tokens=tokens,
        mean=mean,
        cv=spread / mean,
        shortest=int(trace.lengths[weight > 0].min()),
        longest=trace.longest,
        percentiles=tuple(quantiles(trace, np.array(PERCENTILES) / 100).tolist()),
        loss_share=None if trace.loss is None else int(weight @ trace.loss) / tokens,
        steps=None if trace.step is None else len(np.unique(trace.step)),
        groups=None if trace.group is None else _groups(trace, trace.group),
    )


def quantiles(trace: Trace, q: ArrayLike) -> NDArray[np.float64]:
    """As numpy's default over every single sample: straight between the two nearest in order."""
    order = np.argsort(trace.lengths, kind="stable")
    ordered, upto = trace.lengths[order], np.cumsum(weights(trace)[order])
    at = np.asarray(q, np.float64) * (trace.size - 1)
    low = np.floor(at)
    below, above = (ordered[np.searchsorted(upto, side, side="right")] for side in (low, np.ceil(at)))
    return np.asarray(below + (above - below) * (at - low), np.float64)


def cut(trace: Trace, at: int) -> Cut:
    over = trace.lengths > at
    weight, lengths = weights(trace)[over], trace.lengths[over]
    return Cut(at, int(weight.sum()), int(weight @ (lengths - at)), int(weight @ lengths))


def cut_lines(trace: Trace, at: int) -> list[str]:
    lost, tokens = cut(trace, at), int(weights(trace) @ trace.lengths)
    return [
        f"over {at:,} tokens: {lost.samples:,} samples ({lost.samples / trace.size:.2%})",
        f"  cut to it, they lose {lost.tokens_if_cut:,} tokens ({lost.tokens_if_cut / tokens:.2%} of all)",
        f"  dropped, {lost.tokens_if_dropped:,} tokens ({lost.tokens_if_dropped / tokens:.2%} of all)",
    ]


def histogram(trace: Trace, bins: int = 16) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Edges, each a constant factor above the last and rounded, and samples between them (upper edge not included)."""
    weight = weights(trace)
    shortest = int(trace.lengths[weight > 0].min())
    edges = np.unique(np.rint(np.geomspace(shortest, trace.longest + 1, bins + 1)).astype(np.int64))
    upto = np.concatenate(([0], np.cumsum(weight[np.argsort(trace.lengths, kind="stable")])))
    counts = np.diff(upto[np.searchsorted(np.sort(trace.lengths), edges)])
    return edges, counts.astype(np.int64)


def weights(trace: Trace) -> NDArray[np.int64]:
    return np.ones(len(trace.lengths), np.int64) if trace.counts is None else trace.counts


def _groups(trace: Trace, group: NDArray[np.int64]) -> int:
    """A prompt drawn again in another step makes another group."""
    step = np.zeros_like(group) if trace.step is None else trace.step
    return len(np.unique(np.stack([step, group]), axis=1).T)

"""Samples over a limit of tokens, shortened to it or left out, and what that costs."""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from odcsim.errors import InputError
from odcsim.reading.stats import Cut, cut, weights
from odcsim.trace import COLUMNS, Trace


def within(trace: Trace, truncate: int | None = None, drop_over: int | None = None) -> tuple[Trace, str]:
    """The trace within one of the two limits, and the cost in words; both as they were where no limit is given."""
    limit = truncate if drop_over is None else drop_over
    if limit is None:
        return trace, ""
    if limit < 1 or (truncate is not None and drop_over is not None):
        raise InputError(f"truncate={truncate} and drop_over={drop_over}", fix="give one of them, from 1")
    kept = shortened(trace, limit) if drop_over is None else without(trace, limit)
    return kept, _cost(trace, kept, cut(trace, limit), dropped=drop_over is not None)


def lengths_within(
    name: str, lengths: NDArray[np.int64], truncate: int | None, drop_over: int | None
) -> tuple[NDArray[np.int64], str]:
    trace, cost = within(Trace(name, lengths), truncate, drop_over)
    return trace.lengths, cost


def shortened(trace: Trace, limit: int) -> Trace:
    """Trainers cut at the end, which is where the tokens with a loss stand."""
    lengths = np.minimum(trace.lengths, limit)
    loss = None if trace.loss is None else np.maximum(trace.loss - (trace.lengths - lengths), 0)
    return replace(trace, lengths=lengths, loss=loss)


def without(trace: Trace, limit: int) -> Trace:
    """Those that stay together go together."""
    kept = trace.lengths <= limit
    if trace.bundle is not None:
        starts = trace.starts(np.arange(trace.size))
        kept = np.repeat(np.logical_and.reduceat(kept, starts), np.diff(np.append(starts, trace.size)))
    if not (kept & (weights(trace) > 0)).any():
        raise InputError(
            f"all samples are over {limit:,} tokens",
            where=trace.name,
            fix="raise the limit, or shorten them: --truncate",
        )
    columns: dict[str, Any] = {name: None if (own := getattr(trace, name)) is None else own[kept] for name in COLUMNS}
    return replace(trace, **columns, drawn_from=round(trace.drawn_from * float(kept.mean())))


def _cost(trace: Trace, kept: Trace, over: Cut, *, dropped: bool) -> str:
    if not over.samples:
        return f"no sample is over {over.at:,} tokens"
    verb, what, gone, of = "shortened", "samples", over.samples, trace.size
    if dropped:
        what = "samples" if trace.bundle is None else f"{trace.unit}s with samples"
        verb, gone, of = "left out", trace.bundles.size - kept.bundles.size, trace.bundles.size
    tokens = int(weights(trace) @ trace.lengths)
    lost = tokens - int(weights(kept) @ kept.lengths)
    return f"{gone:,} {what} over {over.at:,} tokens {verb}, {gone / of:.2%}; {lost:,} tokens lost, {lost / tokens:.2%}"

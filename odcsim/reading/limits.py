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
    tokens, lost = int(weights(trace) @ trace.lengths), cut(trace, limit)
    kept = shortened(trace, limit) if drop_over is None else without(trace, limit)
    return kept, _cost(lost, trace.size, tokens, dropped=drop_over is not None)


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


def _cost(lost: Cut, samples: int, tokens: int, *, dropped: bool) -> str:
    if not lost.samples:
        return f"no sample is over {lost.at:,} tokens"
    verb, gone = ("left out", lost.tokens_if_dropped) if dropped else ("shortened", lost.tokens_if_cut)
    share, of = f"{lost.samples / samples:.2%}", f"{gone:,} tokens lost, {gone / tokens:.2%}"
    return f"{lost.samples:,} samples over {lost.at:,} tokens {verb}, {share}; {of}"

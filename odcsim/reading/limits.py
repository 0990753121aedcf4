"""Samples over a limit of tokens, shortened to it or left out, and what that costs."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from odcsim.errors import InputError
from odcsim.reading.stats import weights
from odcsim.trace import COLUMNS, Trace


@dataclass(frozen=True, slots=True)
class Cut:
    """What a limit costs: samples over it, and tokens lost if those are cut to it or dropped whole."""

    at: int
    samples: int
    tokens_if_cut: int
    tokens_if_dropped: int


def within(trace: Trace, truncate: int | None = None, drop_over: int | None = None) -> tuple[Trace, str]:
    """The trace within one of the two limits, and the cost in words; both as they were where no limit is given."""
    limit = truncate if drop_over is None else drop_over
    if limit is None:
        return trace, ""
    if limit < 1 or (truncate is not None and drop_over is not None):
        raise InputError(f"truncate={truncate} and drop_over={drop_over}", fix="give one of them, from 1")
    verb, what, of = "shortened", "samples", trace.size
    if drop_over is None:
        # Trainers cut at the end, which is where the tokens with a loss stand.
        lengths = np.minimum(trace.lengths, limit)
        loss = None if trace.loss is None else np.maximum(trace.loss - (trace.lengths - lengths), 0)
        rest, gone = replace(trace, lengths=lengths, loss=loss), cut(trace, limit).samples
    else:
        what = "samples" if trace.bundle is None else f"{trace.unit}s with samples"
        rest, verb, of = drop(trace, limit), "left out", trace.bundles.size
        gone = of - rest.bundles.size
    if not gone:
        return rest, f"no sample is over {limit:,} tokens"
    tokens = int(weights(trace) @ trace.lengths)
    lost = tokens - int(weights(rest) @ rest.lengths)
    share = f"{gone / of:.2%}; {lost:,} tokens lost, {lost / tokens:.2%}"
    return rest, f"{gone:,} {what} over {limit:,} tokens {verb}, {share}"


def drop(trace: Trace, limit: int) -> Trace:
    """A trace without samples over the limit. Those that stay together go together."""
    left = trace.lengths <= limit
    if trace.bundle is not None:
        starts = trace.starts(np.arange(trace.size))
        left = np.repeat(np.logical_and.reduceat(left, starts), np.diff(np.append(starts, trace.size)))
    if not (left & (weights(trace) > 0)).any():
        problem, fix = f"all samples are over {limit:,} tokens", "raise the limit, or shorten them: --truncate"
        raise InputError(problem, where=trace.name, fix=fix)
    columns: dict[str, Any] = {name: None if (own := getattr(trace, name)) is None else own[left] for name in COLUMNS}
    return replace(trace, **columns, drawn_from=round(trace.drawn_from * float(left.mean())))


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

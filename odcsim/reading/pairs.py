"""Pairs: what was chosen and what was rejected, two samples of a row that stay in one microbatch (DPO)."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from odcsim.trace import Trace

PAIR = "pair"
SIDES = 2


def in_turn(sides: Sequence[NDArray[np.float64]]) -> NDArray[np.int64]:
    """Sides of each row beside each other; of one side, as they are."""
    return sides[0].astype(np.int64) if len(sides) == 1 else np.stack(sides, axis=1).ravel().astype(np.int64)


def paired(trace: Trace, each: int) -> Trace:
    """With so many samples of each row together."""
    if each == 1:
        return trace
    return replace(trace, loss=_shared(trace), bundle=np.arange(trace.size) // each, unit=PAIR)


def _shared(trace: Trace) -> NDArray[np.int64] | None:
    """Loss tokens after a prompt that is the same for both sides, as TRL has it where tokens merge at its end."""
    if trace.loss is None:
        return None
    prompts = (trace.lengths - trace.loss).reshape(-1, SIDES).min(axis=1).repeat(SIDES)
    return np.asarray(trace.lengths - prompts, np.int64)

"""Rows as they come, while memory takes them; beyond that how many there are of each, since equal rows are alike.

Pairs (DPO): what was chosen and what was rejected, two samples of a row that stay in one microbatch.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from odcsim.errors import InputError
from odcsim.support import budget
from odcsim.trace import PAIR, Trace

Ints = NDArray[np.int64]
LOSS = 31  # bits of a row's key below its length: no sample is longer
WAITING = 1 << 22  # keys of pieces that are merged at a time
SIDES = 2


@dataclass(slots=True)
class Tally:
    """`beside`: what each row has for which it stands for itself, and there may be no more than are kept."""

    where: str
    beside: str = ""
    rows: int = 0
    _pieces: list[tuple[Ints, Ints | None, Ints | None]] = field(default_factory=list)
    _parts: list[tuple[Ints, Ints]] | None = None  # keys and counts, once rows are too many
    _with_loss: bool = False
    _waiting: int = 0

    def add(self, lengths: Ints, loss: Ints | None = None, counts: Ints | None = None) -> None:
        """Another piece, of the same columns as those before."""
        self.rows += len(lengths)
        if self._parts is not None:
            self._merge(lengths, loss, counts)
            return
        unlike = bool(self._pieces) and (self._pieces[0][2] is None) != (counts is None)
        self._pieces.append((lengths, loss, counts))
        if self.rows <= budget.rows() and not unlike:
            return
        if self.beside:
            raise budget.too_much(f"more than {budget.rows():,} rows, each with {self.beside}", self.where)
        pieces, self._pieces, self._parts = self._pieces, [], []
        for each in pieces:
            self._merge(each[0], each[1], each[2])

    def trace(self, name: str, origin: str, group: Ints | None = None, step: Ints | None = None) -> Trace:
        if self._parts is None:
            lengths, loss, counts = (_join([piece[i] for piece in self._pieces]) for i in range(3))
            if lengths is None:
                raise InputError("holds no rows", where=self.where, fix="give one row per sample")
            return Trace(name, lengths, counts, loss, group, step, origin)
        [(keys, counts)] = self._reduce()
        lengths, loss = keys >> LOSS, keys & (2**LOSS - 1) if self._with_loss else None
        origin = f"{origin}; {self.rows:,} rows, kept as counts of equal ones"
        return Trace(name, lengths, counts, loss, origin=origin, folded=True)

    def _merge(self, lengths: Ints, loss: Ints | None, counts: Ints | None) -> None:
        assert self._parts is not None
        self._with_loss = loss is not None
        self._parts.append(_count(lengths << LOSS if loss is None else (lengths << LOSS) | loss, counts))
        self._waiting += len(self._parts[-1][0])
        if self._waiting > max(WAITING, 2 * len(self._parts[0][0])):
            self._parts = self._reduce()
            self._waiting = len(self._parts[0][0])
            if self._waiting > budget.rows() // 2:
                raise budget.too_much(f"more than {budget.rows() // 2:,} unlike rows", self.where)

    def _reduce(self) -> list[tuple[Ints, Ints]]:
        keys, counts = (np.concatenate([part[i] for part in self._parts or ()]) for i in range(2))
        return [_count(keys, counts)]


def in_places(trace: Trace, where: object) -> Trace:
    """Refuse a trace whose samples can no longer be told apart by their numbers."""
    if trace.folded:
        raise budget.too_much(f"{trace.size:,} rows, each of which stands for itself here", where)
    return trace


def _count(keys: Ints, counts: Ints | None) -> tuple[Ints, Ints]:
    """Each key once, and how often it is there."""
    if not len(keys):
        return keys, keys
    if counts is not None and float(counts.sum(dtype=np.float64)) >= 2.0**62:
        raise InputError("counts more than 2^62 samples", fix="divide the counts by a common factor")
    least, apart = int(keys.min()), int(keys.max() - keys.min())
    if counts is None and apart < 4 * len(keys):
        often = np.bincount(keys - least)
        each = np.flatnonzero(often)
        return each + least, often[each]
    if counts is None:
        return np.unique(keys, return_counts=True)
    order = np.argsort(keys)
    keys, counts = keys[order], counts[order]
    begins = np.flatnonzero(np.diff(keys, prepend=keys[0] - 1))
    return keys[begins], np.add.reduceat(counts, begins)


def _join(pieces: list[Ints | None]) -> Ints | None:
    known = [piece for piece in pieces if piece is not None]
    return np.concatenate(known) if known else None


def in_turn(sides: Sequence[NDArray[np.float64]]) -> Ints:
    """Sides of each row beside each other; of one side, as they are."""
    return sides[0].astype(np.int64) if len(sides) == 1 else np.stack(sides, axis=1).ravel().astype(np.int64)


def pair(trace: Trace, each: int) -> Trace:
    """With so many samples of each row together."""
    if each == 1:
        return trace
    loss = trace.loss
    if loss is not None:
        # After a prompt that is the same for both sides, as TRL has it where tokens merge at its end.
        prompts = (trace.lengths - loss).reshape(-1, SIDES).min(axis=1).repeat(SIDES)
        loss = np.asarray(trace.lengths - prompts, np.int64)
    return replace(trace, loss=loss, bundle=np.arange(trace.size) // each, unit=PAIR)

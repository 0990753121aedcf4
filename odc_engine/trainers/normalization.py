"""What a loss divides by, found out from its values: so that microbatches weigh what they have to.

A loss of a whole minibatch is to be put together from losses of its microbatches, however it was cut. Where the loss is
a mean over samples, a microbatch weighs its part of the samples; where it is a mean over labels, its part of those. A
loss that is told `num_items_in_batch` is told the same part of it, so that what it divides by that number and what it
adds besides (a penalty on weights, say) both come to what they are for the whole minibatch.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from odc_engine.trainers.counts import Counts

Over = Literal["nothing", "samples", "labels", "next_labels", "tokens"]
EVERY: tuple[Over, ...] = get_args(Over)
APART = 5.0  # times as far off as the best, from which on another is not it
SAME, SLIGHT = 1e-9, 0.01  # between weights: rounding, and what matters little where rounding hides which is right


def weight(over: Over, part: Counts, whole: Counts) -> float:
    """What a microbatch's loss counts for in the whole minibatch's."""
    if over == "nothing":
        return 1.0
    total = float(getattr(whole, over))
    return float(getattr(part, over)) / total if total else 0.0


@dataclass(frozen=True, slots=True)
class BatchLoss:
    """Some samples in one batch, and their loss: `constant + per_item / num_items_in_batch`."""

    counts: Counts
    constant: float
    per_item: float = 0.0

    def at(self, items: float) -> float:
        return self.constant + (self.per_item / items if self.per_item else 0.0)


@dataclass(frozen=True, slots=True)
class Trials:
    """The same samples in one batch, and cut into several in more than one way."""

    whole: BatchLoss
    cuts: tuple[tuple[BatchLoss, ...], ...]
    items: float = 1.0  # num_items_in_batch of the whole, where there is one

    def error(self, over: Over) -> float:
        """How far the parts are from the whole at worst, relative to it, if the loss is a mean over that."""
        return max(self._of_cut(over, cut) for cut in self.cuts)

    def _of_cut(self, over: Over, cut: Sequence[BatchLoss]) -> float:
        weights = [weight(over, part.counts, self.whole.counts) for part in cut]
        if not any(weights):
            return float("inf")  # they have none of that
        run = [(w, part) for w, part in zip(weights, cut, strict=True) if w]  # what counts for nothing is left out
        parts = [w * part.at(self.items * w) for w, part in run]
        told = self.whole.at(self.items)
        if not math.isfinite(sum(parts) + told):
            return float("inf")
        scale = max(abs(told), *map(abs, parts))
        return abs(sum(parts) - told) / scale if scale else 0.0

    def apart(self, one: Over, other: Over) -> float:
        """How far weights by the one are from those by the other, at most."""
        return max(
            abs(weight(one, part.counts, self.whole.counts) - weight(other, part.counts, self.whole.counts))
            for cut in self.cuts
            for part in cut
        )

    def fitting(self, bound: float) -> tuple[Over, ...]:
        """What the loss is a mean over. More than one where these samples do not tell them apart; none where it is a
        mean over nothing that is known here, or where more than one comes as close and weighs otherwise."""
        errors: dict[Over, float] = {over: error for over in EVERY if (error := self.error(over)) <= bound}
        best = min(errors.values(), default=0.0)
        near = [over for over in errors if errors[over] <= APART * best + bound / 100]
        if self.whole.per_item and near:  # what is left besides is the same in every batch: any weights are right
            return (self._items(near),)
        if not near:
            return ()
        first = min(near, key=lambda over: errors[over])
        if any(self.apart(first, over) > SLIGHT for over in near):
            return ()
        return tuple(over for over in near if self.apart(first, over) <= SAME)

    def _items(self, near: Sequence[Over]) -> Over:
        """What the items are, where that is among them: a microbatch is told its own number of them."""
        named = (over for over in near if over != "nothing" and getattr(self.whole.counts, over) == self.items)
        return next(named, near[0])

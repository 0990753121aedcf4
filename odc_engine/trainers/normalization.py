"""Find what a loss is divided by, from its values, so that microbatches get the right weights.

The loss of a whole minibatch is to be the sum of weighted losses of its microbatches, however it was split. If the loss
is a mean over samples, a microbatch's weight is its share of the samples; if it is a mean over labels, its share of
those. A loss that takes `num_items_in_batch` gets the same share of it, so that both its part divided by that number
and what it adds besides (a weight penalty, say) sum to their values for the whole minibatch.
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
    """Return a microbatch's weight in the whole minibatch's loss."""
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
    """The same samples in one batch, and split into several in more than one way."""

    whole: BatchLoss
    cuts: tuple[tuple[BatchLoss, ...], ...]
    items: float = 1.0  # num_items_in_batch of the whole, where there is one

    def error(self, over: Over) -> float:
        """Return the largest relative difference between the parts and the whole, if the loss is a mean over `over`."""
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
        """Return the largest difference between the weights of two candidates."""
        return max(
            abs(weight(one, part.counts, self.whole.counts) - weight(other, part.counts, self.whole.counts))
            for cut in self.cuts
            for part in cut
        )

    def fitting(self, bound: float) -> tuple[Over, ...]:
        """Return what the loss is a mean over: several if these samples do not distinguish them, none if nothing
        known fits, or if several fit equally well and give other weights."""
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
        """Return the candidate whose count the items are, if any: a microbatch is passed its own number of them."""
        named = (over for over in near if over != "nothing" and getattr(self.whole.counts, over) == self.items)
        return next(named, near[0])

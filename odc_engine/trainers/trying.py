"""A few samples in one batch and in several: what a trainer's loss makes of them."""

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from odc_engine.trainers.counts import counts_of
from odc_engine.trainers.normalization import BatchLoss, Trials

Loss = Callable[[Any, float | None], float]  # of a batch, told so many items
Collate = Callable[[list[Any]], Any]
FEW = 3  # samples: of two, no cut leaves two together
TOGETHER = "let each sample have a loss of its own, as LayerNorm has in place of BatchNorm"


class Unlike(Exception):
    """Why samples cannot be tried in several batches."""


def batches_of(samples: Sequence[Any], collate: Collate) -> Callable[[Sequence[int]], Any]:
    """What makes a batch of some of the samples, the same one again and again."""

    def made(places: Sequence[int]) -> Any:
        return collate([copy.deepcopy(samples[i]) for i in places])

    every = range(len(samples))
    if alike(made(every), whole := made(every)):
        return made
    if not _has_rows(whole, len(samples)):
        raise Unlike("a collate function that draws, whose batches have no row for each sample")
    return lambda places: _rows(whole, places)


def alike(one: Any, other: Any) -> bool:
    """Whether two batches are the same."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.shape == other.shape and torch.equal(one, other)
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(alike(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(alike, one, other))
    return True


def _has_rows(batch: Any, count: int) -> bool:
    return isinstance(batch, Mapping) and all(
        isinstance(value, Tensor) and value.dim() > 0 and len(value) == count for value in batch.values()
    )


def _rows(batch: Any, places: Sequence[int]) -> Any:
    return {name: value[list(places)].clone() for name, value in batch.items()}


def cuts_of(count: int) -> list[list[list[int]]]:
    """All in two ways: the first apart from the others, and the last."""
    every = list(range(count))
    return [[every[:1], every[1:]], [every[:-1], every[-1:]]] if count > 2 else [[every[:1], every[1:]]]


def tried(make: Callable[[Sequence[int]], Any], count: int, loss: Loss, items: float | None) -> Trials | None:
    """`items`: of all of them. None where the loss is something else of the items than what it divides by."""
    whole = _tried(make, list(range(count)), loss, items)
    if items is not None and not _told(whole, loss(make(range(count)), 5 * items), 5 * items):
        return None
    cuts = tuple(tuple(_part(make, part, loss, items) for part in cut) for cut in cuts_of(count))
    return Trials(whole, cuts, items or 1.0)


def _part(make: Callable[[Sequence[int]], Any], places: Sequence[int], loss: Loss, items: float | None) -> BatchLoss:
    """Of samples that have just been in a batch with others."""
    try:
        return _tried(make, places, loss, items)
    except (ValueError, IndexError) as error:
        told = f"of {len(places)} alone it fails ({str(error).splitlines()[0]})"
        raise Unlike(f"a loss that depends on which samples are in a batch together: {told}; {TOGETHER}") from error


def _tried(make: Callable[[Sequence[int]], Any], places: Sequence[int], loss: Loss, items: float | None) -> BatchLoss:
    counts = counts_of(make(places), len(places))
    once = loss(make(places), items)
    if items is None:
        return BatchLoss(counts, once)
    half = loss(make(places), 2 * items)
    if abs(once - half) <= 1e-6 * abs(once):
        return BatchLoss(counts, once)
    per_item = (once - half) * 2 * items
    return BatchLoss(counts, once - per_item / items, per_item)


def _told(whole: BatchLoss, value: float, items: float) -> bool:
    expected = whole.at(items)
    return abs(value - expected) <= 1e-2 * max(abs(value), abs(expected), 1e-30)

"""A DataLoader whose every item is one rank's part of a minibatch, for trainers that step once per item.

So all ranks step together, whatever each runs in between.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset, Sampler

from odc_engine.sampler import BalancedBatches

Collate = Callable[[list[Any]], Any]


Places = tuple[int, ...]  # in the dataset


@dataclass(frozen=True, slots=True)
class Portion:
    """A microbatch to be loaded. One with weight 0 replaces an empty one."""

    places: Places
    share: float  # of the minibatch's samples, times the number of devices
    usual: tuple[tuple[Places, ...], ...] = ()  # of each device, the microbatches that its own loader would give it

    @property
    def samples(self) -> int:
        return len(self.places) if self.share else 0


Loaded = tuple[Any, Portion]  # what the trainer's own collate function made of a portion


def freely_balanced(lengths: Sequence[int], **asked: Any) -> BalancedBatches:
    """Return batches planned with a microbatch count of its own for each rank."""
    return BalancedBatches(lengths, sync="on-demand", **asked)


class MinibatchSampler(Sampler[list[Portion]]):
    """Yields a batch for each minibatch: this rank's portions. `padded`: a portion's samples are padded to its
    longest."""

    def __init__(self, batches: BalancedBatches, padded: bool) -> None:
        self.batches, self.padded = batches, padded

    def set_epoch(self, epoch: int) -> None:
        """Pass the epoch on: a loader that skips batches sets it on its sampler's sampler."""
        self.batches.set_epoch(epoch)

    def __len__(self) -> int:
        return self.batches.minibatches_per_epoch

    def __iter__(self) -> Iterator[list[Portion]]:
        for share in self.batches.minibatches():
            yield self._portions(share.microbatches, share.samples)

    def _portions(self, microbatches: Sequence[tuple[int, ...]], samples: int) -> list[Portion]:
        filled = [part for part in microbatches if part]
        if self.padded:
            filled = padded_parts([i for part in filled for i in part], self.batches.lengths, self.batches.max_tokens)
        return [Portion(part, len(part) * self.batches.devices / samples) for part in filled] or [Portion((0,), 0.0)]


def padded_parts(places: Sequence[int], lengths: NDArray[np.int64], max_tokens: int) -> list[Places]:
    """Split samples into microbatches of at most `max_tokens`, padding included, of similar lengths together."""
    parts: list[list[int]] = []
    longest = 0
    for place in sorted(places, key=lambda i: -lengths[i]):
        if not parts or (len(parts[-1]) + 1) * longest > max_tokens:
            parts.append([])
            longest = int(lengths[place])
        parts[-1].append(place)
    return [tuple(part) for part in parts]


class Minibatches(Protocol):
    """A batch sampler whose batches are one rank's portions of a minibatch."""

    def set_epoch(self, epoch: int) -> None: ...

    def __iter__(self) -> Iterator[list[Portion]]: ...


class MinibatchLoader(DataLoader[Any]):
    """Loads with another loader's dataset, collate function and workers."""

    def __init__(self, usual: DataLoader[Any], sampler: Minibatches, seal: Callable[[list[Loaded]], Any]) -> None:
        self.minibatches = sampler
        self.collated = Collated(usual.dataset, usual.collate_fn)
        super().__init__(
            self.collated,
            batch_sampler=cast(Any, sampler),  # its batches are lists of portions, not of places
            collate_fn=seal,
            num_workers=usual.num_workers,
            pin_memory=usual.pin_memory,
            timeout=usual.timeout,
            worker_init_fn=usual.worker_init_fn,
            multiprocessing_context=usual.multiprocessing_context,
            prefetch_factor=usual.prefetch_factor,
            persistent_workers=usual.persistent_workers,
        )

    def set_epoch(self, epoch: int) -> None:
        self.minibatches.set_epoch(epoch)


class Collated(Dataset[Loaded]):
    """A dataset of microbatches, indexed by portions."""

    def __init__(self, dataset: Any, collate: Collate) -> None:
        self._dataset, self.collate = dataset, collate

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, part: Portion) -> Loaded:
        return self.collate(self.samples(part.places)), part

    def samples(self, places: Sequence[int]) -> list[Any]:
        listed = list(places)
        many = getattr(self._dataset, "__getitems__", None)
        return list(many(listed)) if many else [self._dataset[i] for i in listed]

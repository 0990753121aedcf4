"""Draw minibatches in the order of a trainer's own loader, with any sampler, and assign their samples to ranks anew."""

from collections.abc import Iterator, Sequence
from importlib import import_module
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import DataLoader, IterableDataset, Sampler

from odc_engine.sampler import agree
from odc_engine.trainers.exchange import all_told
from odc_engine.trainers.minibatches import Places, Portion, padded_parts
from odc_engine.trainers.slices import padded_slices
from odcsim.balance import check_limit, digest, plan, weigh
from odcsim.errors import InputError
from odcsim.support.values import numbers, whole_numbers

Usual = tuple[tuple[Places, ...], ...]  # of each device, the microbatches that its own loader would give it


class OwnOrder:
    """Yields what each rank's own loader would run until the next optimizer step, minibatch after minibatch.

    Each rank's batch sampler draws, as in stock training, and ranks tell each other: so an epoch has the samples that
    it has there, those that accelerate repeats at its end (`even_batches`) or drops with it, whoever deals to ranks.
    """

    def __init__(self, usual: Any, accumulated: int) -> None:
        self._usual: Any = usual
        self._accumulated = accumulated
        streams = isinstance(usual, DataLoader) and isinstance(self._usual.dataset, IterableDataset)
        if not isinstance(usual, DataLoader) or streams or self._usual.batch_sampler is None:
            fix = "return a torch DataLoader with a batch_size or a batch_sampler, over a dataset with __getitem__"
            told = type(self._usual.dataset if streams else usual).__name__
            raise InputError(f"a loader whose batches are not lists of indices ({told})", fix=fix)
        if type(usual).__name__ == "DataLoaderDispatcher":
            told = "dispatch_batches, with which one rank loads the samples of all"
            raise InputError(told, fix="leave it off, so that each rank loads its own")
        self._batches: Any = self._usual.batch_sampler
        counts = all_told(_count(self._batches))
        self.microbatches: int | None = None if None in counts else max(counts)  # of a rank, in an epoch

    def set_epoch(self, epoch: int) -> None:
        """Tell the loader, as the Trainer does, which also tells what accelerate has wrapped."""
        own: Any
        for own in (self._usual, getattr(self._batches, "batch_sampler", None)):
            if hasattr(own, "set_epoch"):
                own.set_epoch(epoch)

    def __len__(self) -> int:
        if self.microbatches is None:
            raise TypeError("batches without a length")
        return -(-self.microbatches // self._accumulated)

    def __iter__(self) -> Iterator[Usual]:
        """Yield every minibatch, the same on all ranks. Each synchronizes."""
        self._synchronize()
        batches = iter(self._batches)
        while True:
            own = tuple(tuple(int(i) for i in batch) for batch in islice(batches, self._accumulated))
            every: Usual = tuple(all_told(own))
            if not any(every):
                return
            yield every

    def _synchronize(self) -> None:
        """Synchronize random numbers, as a prepared loader does before it draws."""
        if getattr(self._usual, "rng_types", None) is not None:
            synchronize = import_module("accelerate.utils").synchronize_rng_states
            synchronize(self._usual.rng_types, getattr(self._usual, "synchronized_generator", None))


def _count(batches: Any) -> int | None:
    try:
        count: int = len(batches)
    except TypeError:
        return None
    return count


class PlannedSampler(Sampler[list[Portion]]):
    """Yields a batch for each minibatch: this rank's portions of the samples that the trainer's own order gives."""

    def __init__(
        self,
        order: OwnOrder,
        lengths: Sequence[int],
        *,
        devices: int,
        rank: int,
        max_tokens: int,
        balancer: str,
        padded: bool,
        costs: Sequence[float] | None = None,
        equal: bool = False,
    ) -> None:
        self.order, self.devices, self.rank = order, devices, rank
        self.max_tokens, self.balancer, self.padded, self.equal = max_tokens, balancer, padded, equal
        self.lengths: NDArray[np.int64] = whole_numbers("length", lengths, 1)
        check_limit(self.lengths, max_tokens)
        self._weights = weigh(self.lengths) if costs is None else numbers("cost", costs, len(self.lengths))
        agree(digest(self.lengths, self._weights, devices, max_tokens, balancer, padded))

    def set_epoch(self, epoch: int) -> None:
        self.order.set_epoch(epoch)

    def __len__(self) -> int:
        return len(self.order)

    def __iter__(self) -> Iterator[list[Portion]]:
        return map(self.portions, self.order)

    def portions(self, usual: Usual) -> list[Portion]:
        ids = [place for batches in usual for batch in batches for place in batch]
        shared = [Portion(part, len(part) * self.devices / len(ids), usual) for part in self._own(ids)]
        return shared or [Portion((ids[0],), 0.0, usual)]

    def _own(self, ids: list[int]) -> list[Places]:
        """Return this rank's microbatches of those samples."""
        if self.padded and self.equal:
            return padded_slices(ids, self.lengths, self._weights, self.devices, self.max_tokens)[self.rank]
        found = plan(
            self.lengths[ids],
            devices=self.devices,
            max_tokens=self.max_tokens,
            weights=self._weights[ids],
            balancer=self.balancer,
        )
        own = [tuple(ids[i] for i in part) for part in found.devices[self.rank] if part]
        return padded_parts([i for part in own for i in part], self.lengths, self.max_tokens) if self.padded else own

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
from odcsim.balance import plan
from odcsim.balance.library import check_limit, digest, weigh
from odcsim.errors import InputError
from odcsim.support.checked import numbers, whole_numbers

Usual = tuple[tuple[Places, ...], ...]  # of each device, the microbatches that its own loader would give it


class OwnOrder:
    """Yields what each rank's own loader would run until the next optimizer step, minibatch after minibatch.

    A loader that accelerate has prepared draws for all ranks, and splits; what rank 0 draws then holds for all, since
    samplers that use the process's own random numbers differ. Any other loader draws for its own rank.
    """

    def __init__(self, usual: Any, devices: int, accumulated: int) -> None:
        self._usual: Any = usual
        self._devices, self._accumulated = devices, accumulated
        streams = isinstance(usual, DataLoader) and isinstance(self._usual.dataset, IterableDataset)
        if not isinstance(usual, DataLoader) or streams or self._usual.batch_sampler is None:
            fix = "return a torch DataLoader with a batch_size or a batch_sampler, over a dataset with __getitem__"
            told = type(self._usual.dataset if streams else usual).__name__
            raise InputError(f"a loader whose batches are not lists of indices ({told})", fix=fix)
        batches: Any = self._usual.batch_sampler
        self._shard: Any = batches if hasattr(batches, "even_batches") else None
        self._prepared = self._shard is not None or hasattr(usual, "rng_types")
        self._batches: Any = batches if self._shard is None else self._shard.batch_sampler
        self._split = bool(getattr(usual if self._shard is None else self._shard, "split_batches", False))

    def set_epoch(self, epoch: int) -> None:
        sampler: Any = getattr(self._batches, "sampler", None)
        for one in (self._usual, self._batches, sampler):
            if hasattr(one, "set_epoch"):
                one.set_epoch(epoch)

    @property
    def _drawn(self) -> int:
        """Number of batches that one rank draws for a minibatch."""
        return self._accumulated * (self._devices if self._prepared and not self._split else 1)

    def __len__(self) -> int:
        count = len(self._batches)
        return -(-(self._kept(count) if self._prepared else count) // self._drawn)

    def _kept(self, count: int) -> int:
        """Return the number of batches, without an incomplete last round if that is dropped."""
        drops = not self._split and bool(getattr(self._shard, "drop_last", False))
        return count // self._devices * self._devices if drops else count

    def __iter__(self) -> Iterator[Usual]:
        """Yield every minibatch, the same on all ranks. Each synchronizes."""
        self._synchronize()
        batches = iter(self._batches)
        while True:
            own = [tuple(int(i) for i in batch) for batch in islice(batches, self._drawn)]
            every = all_told(own)
            dealt = self._deal(every[0]) if self._prepared else tuple(map(tuple, every))
            if not any(dealt):
                return
            yield dealt

    def _deal(self, batches: list[Places]) -> Usual:
        if self._split:
            return tuple(tuple(_part(batch, rank, self._devices) for batch in batches) for rank in range(self._devices))
        kept = batches[: self._kept(len(batches))]
        return tuple(tuple(kept[rank :: self._devices]) for rank in range(self._devices))

    def _synchronize(self) -> None:
        """Synchronize random numbers, as a prepared loader does before it draws."""
        if getattr(self._usual, "rng_types", None) is not None:
            synchronize = import_module("accelerate.utils").synchronize_rng_states
            synchronize(self._usual.rng_types, getattr(self._usual, "synchronized_generator", None))


def _part(batch: Places, rank: int, devices: int) -> Places:
    size = -(-len(batch) // devices)
    return batch[rank * size : (rank + 1) * size]


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

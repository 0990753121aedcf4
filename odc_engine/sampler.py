"""Balanced microbatches as a `batch_sampler` for PyTorch's DataLoader.

    batches = BalancedBatches(lengths, devices=8, rank=rank, minibatch=4, max_tokens=65536, averaged=True)
    loader = DataLoader(dataset, batch_sampler=batches, collate_fn=collate, num_workers=2)
    for epoch in range(epochs):
        batches.set_epoch(epoch)
        for share, microbatches in batches.over(loader):
            for batch in microbatches:
                (share.token_weight * summed_loss(model, batch)).backward()
            optimizer.step()
            optimizer.zero_grad()

Every rank plans every minibatch itself, from the same lengths and the same shuffle: nothing is sent, no sample is
repeated or dropped, and a minibatch that cannot be planned raises on all ranks.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch.distributed as dist
from numpy.typing import ArrayLike, NDArray
from torch.utils.data import Sampler

from odcsim.balance import check_limit, digest, loss_tokens, plan, runs_with, weigh
from odcsim.errors import InputError
from odcsim.program import sync_named
from odcsim.support.values import numbers, whole_numbers

Batch = TypeVar("Batch")
REMEMBERED = 64  # shares that a loader may read ahead of the loop without planning them twice


@dataclass(frozen=True, slots=True)
class Share:
    """One rank's part of one minibatch."""

    number: int  # of the minibatch in its epoch
    microbatches: tuple[tuple[int, ...], ...]  # indices into the dataset; () runs no sample, and only synchronizes
    weights: tuple[float, ...]  # factor on each microbatch's mean loss
    token_weight: float  # or factor on its summed loss
    tokens: int  # loss tokens of the whole minibatch, for trainers that divide by it themselves
    samples: int  # of the whole minibatch
    digest: str  # of the plan, equal on all ranks


class BalancedBatches(Sampler[list[int]]):
    """Yields this rank's microbatches, minibatch after minibatch. `over` also says where a minibatch ends, and gives
    loss weights.

    `minibatch` counts samples per rank between two optimizer steps; the last minibatch of an epoch may have fewer.
    `loss`: loss tokens of each sample (default: all but the first). `averaged`: whether the framework averages
    gradients over ranks (stock FSDP and DDP, `OnDemand`) or sums them (`OnDemand(model, average=False)`).
    """

    def __init__(
        self,
        lengths: ArrayLike,
        *,
        devices: int,
        rank: int,
        minibatch: int,
        max_tokens: int,
        averaged: bool,
        sync: str = "collective",
        balancer: str = "sorted-slice",
        weights: ArrayLike | None = None,
        speeds: ArrayLike | None = None,
        loss: ArrayLike | None = None,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        if min(minibatch, devices) < 1 or seed < 0:
            raise InputError(f"minibatch {minibatch} on {devices} devices, seed {seed}", fix="they start at 1, 1 and 0")
        self.lengths = whole_numbers("length", lengths, 1)
        self.loss = self.lengths - 1 if loss is None else loss_tokens(loss, self.lengths)
        self.devices, self.rank, self.samples, self.max_tokens = devices, rank, minibatch * devices, max_tokens
        self.averaged, self.sync, self.balancer, self.seed = averaged, sync, balancer, seed
        size = len(self.lengths)
        self.minibatches_per_epoch = size // self.samples if drop_last else -(-size // self.samples)
        self._check()
        self.epoch = self.position = 0
        self.replan(weights, speeds)

    def _check(self) -> None:
        if not 0 <= self.rank < self.devices:
            raise InputError(f"rank {self.rank} of {self.devices}", fix=f"ranks go from 0 to {self.devices - 1}")
        if not self.minibatches_per_epoch:
            told = f"{len(self.lengths)} samples fill no minibatch of {self.samples}"
            raise InputError(told, fix="use fewer devices or a smaller minibatch")
        check_limit(self.lengths, self.max_tokens)
        sync_named(self.sync)
        if not runs_with(self.balancer, self.sync):
            raise InputError(
                f"'{self.balancer}' gives devices different numbers of microbatches, which hangs '{self.sync}'",
                fix="take 'sorted-slice', or sync 'on-demand'",
            )

    def replan(self, weights: ArrayLike | None = None, speeds: ArrayLike | None = None) -> None:
        """Set costs of all samples and speeds of ranks, for iterations that start from now on.

        A loader reads ahead by another number of batches on each rank, so that costs never change within an iteration:
        leave the loop over `over` at the same minibatch on all ranks, replan, and start another iteration, which
        continues there.
        """
        count = len(self.lengths)
        self._weights = weigh(self.lengths) if weights is None else numbers("weight", weights, count)
        self._speeds = speeds
        self._planned: _Epoch | None = None

    def set_epoch(self, epoch: int) -> None:
        """Begin another shuffle, or continue the current epoch where it stopped."""
        if epoch != self.epoch:
            self._go_to(epoch, 0)

    def __iter__(self) -> Iterator[list[int]]:
        epoch, rest = self._now(), range(self.position, self.minibatches_per_epoch)
        return (list(part) for number in rest for part in epoch.share(number).microbatches)

    def __len__(self) -> int:
        """Return how many microbatches this rank has left in the epoch. It plans all of them."""
        rest = range(self.position, self.minibatches_per_epoch)
        return sum(len(self._now().share(number).microbatches) for number in rest)

    def minibatches(self) -> Iterator[Share]:
        """Yield this rank's share of each remaining minibatch. A share that was yielded counts as done in the state."""
        epoch = self._now()
        for number in range(self.position, self.minibatches_per_epoch):
            share = epoch.share(number)
            ended = number + 1 == self.minibatches_per_epoch
            self._go_to(*((epoch.number + 1, 0) if ended else (epoch.number, number + 1)))
            yield share

    def over(self, loader: Iterable[Batch]) -> Iterator[tuple[Share, Iterator[Batch]]]:
        """Yield each share with its microbatches as `loader` loads them."""
        if getattr(loader, "batch_sampler", self) is not self:
            raise InputError("this loader has another batch_sampler", fix="give it this sampler as batch_sampler")
        loaded = iter(loader)
        for share in self.minibatches():
            own = _next(loaded, len(share.microbatches))
            yield share, own
            for _ in own:  # skip what the loop did not read, so that the next minibatch starts at its first batch
                pass

    def state_dict(self) -> dict[str, Any]:
        """Return the position: after the last minibatch that was yielded."""
        return {"epoch": self.epoch, "minibatch": self.position, "digest": self._digest()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue at another sampler's position in the same data. Costs, speeds and balancer may differ."""
        if state["digest"] != (own := self._digest()):
            raise InputError(
                f"state {state['digest']} of another sampler than {own}",
                fix="give the same lengths, devices, minibatch and seed",
            )
        self._go_to(state["epoch"], state["minibatch"])

    def _digest(self) -> str:
        return digest(self.lengths, self.devices, self.samples, self.minibatches_per_epoch, self.seed)

    def _go_to(self, epoch: int, position: int) -> None:
        if epoch != self.epoch:
            self._planned = None
        self.epoch, self.position = epoch, position

    def _now(self) -> "_Epoch":
        if self._planned is None:
            self._planned = _Epoch(self, self.epoch, self._weights, self._speeds)
        return self._planned


class _Epoch:
    """One shuffle of the samples, planned with fixed costs."""

    def __init__(
        self, batches: BalancedBatches, number: int, weights: NDArray[np.float64], speeds: ArrayLike | None
    ) -> None:
        self.number, self._batches, self._weights, self._speeds = number, batches, weights, speeds
        self._order = np.random.default_rng((batches.seed, number)).permutation(len(batches.lengths))
        self._known: dict[int, Share] = {}

    def share(self, number: int) -> Share:
        if number not in self._known:
            self._known[number] = self._plan(number)
            if len(self._known) > REMEMBERED:
                del self._known[next(iter(self._known))]
        return self._known[number]

    def _plan(self, number: int) -> Share:
        b = self._batches
        ids = self._order[number * b.samples : (number + 1) * b.samples]
        found = plan(
            b.lengths[ids],
            devices=b.devices,
            max_tokens=b.max_tokens,
            weights=self._weights[ids],
            loss=b.loss[ids],
            balancer=b.balancer,
            speeds=self._speeds,
        )
        listed = ids.tolist()
        microbatches = tuple(tuple(listed[i] for i in part) for part in found.devices[b.rank])
        weights = found.mean_weights(averaged=b.averaged)[b.rank]
        token = found.token_weight(averaged=b.averaged)
        return Share(number, microbatches, weights, token, found.tokens, len(listed), digest(found.digest, listed))


def _next(loaded: Iterator[Batch], count: int) -> Iterator[Batch]:
    for _ in range(count):
        try:
            batch = next(loaded)
        except StopIteration:
            fix = "give it this sampler as batch_sampler"
            raise InputError("the loader ended inside a minibatch", fix=fix) from None
        yield batch


def agree(digest: str) -> None:
    """Synchronize, and raise on every rank if any two have different plans."""
    told: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(told, digest)
    if len(set(told)) > 1:
        raise InputError(
            f"devices planned differently: {', '.join(told)}",
            fix="give all of them the same lengths, costs, speeds and seed",
        )

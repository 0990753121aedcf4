"""What a balancer is: a function, what others have to know of it, what it is given and what it deals out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from odcsim.errors import InputError
from odcsim.program import Sync
from odcsim.schedule import NOTHING, Assignment, Flat, Microbatches, Schedule, flattened

Floats = NDArray[np.float64]
Slots = Sequence[Sequence[Sequence[int]]]  # device -> microbatch -> samples, by their numbers in the work


@dataclass(frozen=True, slots=True)
class Work:
    """One minibatch to balance. Balancers by cost are given samples from the heaviest down, the others as they came."""

    tokens: NDArray[np.int64]  # of each sample
    weights: Floats  # of each sample: seconds of compute
    devices: int
    max_tokens: int  # of a microbatch
    scenarios: Floats | None = None  # [scenario, sample]: seconds if the cost model is wrong
    speeds: Floats | None = None  # of each device, where they differ
    constant: float = 0.0  # seconds that a microbatch takes whatever it holds
    seconds: Callable[[float], float] = float  # that a microbatch of so much weight takes
    order: NDArray[np.int64] | None = None  # from the heaviest down, where somebody has sorted already
    each: int = 0  # samples of a microbatch, of who counts them


@dataclass(frozen=True, slots=True)
class Deal:
    """Who runs what: the microbatches of each device, nested or flat, and what only some balancers know."""

    slots: Slots | Flat
    queue: Sequence[Sequence[int]] | Flat = ()  # microbatches that devices take at run time, in this order
    rival: Slots | Flat = ()  # alternative deal, used where simulation shows that it is faster if devices meet


@dataclass(frozen=True, slots=True)
class FlatDeal:
    """A deal by positions in the minibatch."""

    flat: Flat
    waiting: Flat  # the queue
    rival: Flat | None = None

    @property
    def devices(self) -> Assignment:
        return self.flat.nested()

    @property
    def queue(self) -> Microbatches:
        return self.waiting.nested()[0]


@dataclass(frozen=True, slots=True)
class Balancer:
    """All that is known of one balancer: whoever lists, offers, runs or refuses balancers asks here, not by name."""

    name: str
    function: Callable[[Work], Deal]
    help: str  # a line for the command line
    by_cost: bool = True  # else it looks at positions and lengths alone
    free_counts: bool = False  # devices may differ in microbatch counts: they must not meet inside a minibatch
    scenarios: bool = False  # it looks at what samples cost if the cost model is wrong
    speeds: bool = False  # it knows devices of unlike speeds
    weighs_transfers: bool = False  # it asks what a microbatch takes beside its samples, which the sharding changes
    queue: bool = False  # it leaves samples to a queue that devices share
    pads: Callable[[Schedule, int], Schedule] | None = None  # what is run beside samples, up to the limit
    even: bool = True  # it evens out work; one that does not is a baseline, and nobody's best row
    published: bool = False  # the paper's: the one to name where another is no faster
    stands_for: Callable[[Sync], bool] = lambda _: False  # where nobody beats it by much: a quick search tries no other
    advised_for: Callable[[Sync], bool] = lambda _: False  # where it is the one to take unless another is well ahead

    def suits(self, sync: Sync) -> bool:
        """Whether devices come to their end with it: where their counts differ, they must not meet inside."""
        return sync.queues if self.queue else not (sync.meets and self.free_counts)

    def assign(self, work: Work) -> FlatDeal:
        """What the balancer makes of a minibatch: every sample once, no microbatch over the limit."""
        check(work)
        numbers = np.arange(len(work.tokens))
        if self.by_cost:
            # Sorted first, so that plans depend on what the samples are and not on where they stand in the minibatch.
            order = work.order
            numbers = heaviest_first(work.weights, work.tokens, work.scenarios) if order is None else order
            scenarios = None if work.scenarios is None else work.scenarios[:, numbers]
            tokens, weights = work.tokens[numbers], work.weights[numbers]
            work = replace(work, tokens=tokens, weights=weights, scenarios=scenarios, order=None)
        deal = self.function(work)
        rival = flat_of(deal.rival).numbered(numbers) if isinstance(deal.rival, Flat) or deal.rival else None
        queue = deal.queue if isinstance(deal.queue, Flat) else flattened((deal.queue,)) if deal.queue else NOTHING
        waiting = queue.numbered(numbers) if len(queue.sizes) else NOTHING
        return FlatDeal(flat_of(deal.slots).numbered(numbers), waiting, rival)


def heaviest_first(weights: Floats, tokens: NDArray[np.int64], scenarios: Floats | None = None) -> NDArray[np.int64]:
    """The order of samples: of like weight the longest first, and of like length by scenarios, where those differ."""
    ties = () if scenarios is None else tuple(-scenarios)
    return np.lexsort((*ties, -tokens, -weights))


def flat_of(slots: Slots | Flat) -> Flat:
    return slots if isinstance(slots, Flat) else flattened(slots)


def check(work: Work) -> None:
    """Refuse what nobody could balance, by name."""
    if work.devices < 1:
        raise InputError(f"{work.devices} devices", fix="give at least 1")
    if not len(work.tokens):
        raise InputError("a minibatch without samples", fix="give at least 1 sample")
    longest = int(work.tokens.argmax())
    if work.tokens[longest] > work.max_tokens:
        raise InputError(
            f"{work.tokens[longest]} tokens, over the limit of {work.max_tokens} per microbatch",
            where=f"sample {longest} of the minibatch",
            fix=f"raise --max-tokens to {work.tokens[longest]} or leave the sample out",
        )
    wrong = ~(np.isfinite(work.weights) & (work.weights >= 0))
    if wrong.any():
        sample = int(wrong.argmax())
        raise InputError(
            f"a weight of {work.weights[sample]}",
            where=f"sample {sample} of the minibatch",
            fix="give seconds of compute, finite and from 0",
        )

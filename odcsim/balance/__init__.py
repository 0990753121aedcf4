"""Balancers: which device runs which samples of one minibatch, in which microbatches.

Weights are seconds of compute: balancing token counts instead leaves most of the waiting in place, because attention
grows with the square of a sample's length.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from odcsim.balance.arrival import BATCHES, FILLED, PACKED, PADDED
from odcsim.balance.balancer import Balancer, Work
from odcsim.balance.rules import BALANCERS as BALANCERS
from odcsim.errors import InputError, nearest
from odcsim.program import sync_named
from odcsim.schedule import Assignment, Microbatches

if TYPE_CHECKING:
    from odcsim.balance.library import Plan, check_limit, digest, loss_tokens, plan, weigh
    from odcsim.fitting.learning import LearnedCosts

__all__ = [
    "ALL",
    "NAMES",
    "POOL",
    "Assignment",
    "LearnedCosts",
    "Plan",
    "balance",
    "check_limit",
    "digest",
    "loss_tokens",
    "plan",
    "pooled",
    "runs_with",
    "weigh",
]

STOCK = (BATCHES, PADDED, PACKED, FILLED)  # what a trainer does where nobody balances
IN_ROWS = (PACKED.name, FILLED.name)  # of which a minibatch counts rows that are packed before training
_BY_NAME = {balancer.name: balancer for balancer in (*BALANCERS, *STOCK)}
POOL = next(b.name for b in BALANCERS if b.queue)  # the one that leaves samples to a queue
ALL = tuple(b.name for b in BALANCERS)
NAMES = tuple(b.name for b in BALANCERS if not b.queue)  # of those whose plans leave nothing open


def named(name: str) -> Balancer:
    """The balancer of that name; `neighbours.named` knows the rules of other trainers, too."""
    if name not in _BY_NAME:
        raise InputError(f"unknown balancer '{name}'", fix=nearest(name, list(_BY_NAME)))
    return _BY_NAME[name]


def balance(
    name: str,
    lengths: NDArray[np.int64],
    weights: NDArray[np.float64],
    devices: int,
    max_tokens: int,
    *,
    scenarios: NDArray[np.float64] | None = None,
    speeds: NDArray[np.float64] | None = None,
) -> Assignment:
    """The named balancer's assignment of one minibatch: every sample once, no microbatch over `max_tokens`.

    `lengths` are tokens, `weights` the seconds of compute of each sample. Every device gets the same number of
    microbatches (the last ones empty where samples are too few for that) except under the balancers with free counts,
    where a device may even get none.

    `scenarios` [scenario, sample] are the seconds if the cost model is wrong, which lb-robust alone looks at; where
    none are given, it takes the part of the weights that grows with the square of the length to be uncertain.
    `speeds`, for lb-mini, are what each device does in a second, in any unit.
    """
    balancer = named(name)
    if balancer.queue:
        raise InputError(f"{name} leaves samples to a queue", fix="call pooled()")
    if speeds is not None and not balancer.speeds:
        known = " and ".join(f"'{b.name}'" for b in BALANCERS if b.speeds)
        raise InputError(f"'{name}' with speeds of devices", fix=f"only {known} gives fast devices more to run")
    return balancer.assign(Work(lengths, weights, devices, max_tokens, scenarios, speeds)).devices


def pooled(
    lengths: NDArray[np.int64], weights: NDArray[np.float64], devices: int, max_tokens: int, constant: float = 0.0
) -> tuple[Assignment, Microbatches]:
    """What `pool` assigns, and its queue: the microbatches that devices take at run time, in this order.

    `constant`: seconds that a microbatch takes whatever it holds.
    """
    deal = named(POOL).assign(Work(lengths, weights, devices, max_tokens, constant=constant))
    return deal.devices, deal.queue


def runs_with(name: str, sync: str) -> bool:
    """Whether the balancer suits the sync: where counts are free, devices must not meet inside a minibatch."""
    return named(name).suits(sync_named(sync))


def standing_for(sync: str) -> tuple[str, ...]:
    """The balancers that a quick search tries under the sync: nobody beats the best of them by much.

    The advised one first, where it is among them; the others as they are offered.
    """
    facts = sync_named(sync)
    standing = [b for b in BALANCERS if b.stands_for(facts)]
    return tuple(b.name for b in sorted(standing, key=lambda b: not b.advised_for(facts)))


def advised(sync: str) -> str:
    """The balancer to take under the sync unless another is well ahead."""
    return next(b.name for b in BALANCERS if b.advised_for(sync_named(sync)))


_HOME = {"LearnedCosts": "fitting.learning"}
_HOME |= dict.fromkeys(("Plan", "check_limit", "digest", "loss_tokens", "plan", "weigh"), "balance.library")


def __getattr__(name: str) -> Any:
    """What builds on the balancers loads when first used."""
    if name in _HOME:
        return getattr(import_module(f"odcsim.{_HOME[name]}"), name)
    raise AttributeError(f"module 'odcsim.balance' has no attribute '{name}'")

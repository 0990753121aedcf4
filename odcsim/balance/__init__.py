"""Balancers: which device runs which samples of one minibatch, in which microbatches.

Weights are seconds of compute: balancing token counts instead leaves most of the waiting in place, because attention
grows with the square of a sample's length.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from odcsim.balance.lb_micro import lb_micro
from odcsim.balance.lb_mini import lb_mini
from odcsim.balance.lb_robust import lb_robust
from odcsim.balance.lb_tight import lb_tight
from odcsim.balance.pool import pool
from odcsim.balance.search.scenarios import guessed
from odcsim.balance.simple import local_sort, native
from odcsim.balance.sorted_slice import sorted_slice
from odcsim.errors import InputError, nearest

if TYPE_CHECKING:
    from odcsim.balance.learned import LearnedCosts
    from odcsim.balance.library import Plan, plan

__all__ = [
    "ALL",
    "NAMES",
    "POOL",
    "SPLIT",
    "Assignment",
    "LearnedCosts",
    "Plan",
    "balance",
    "plan",
    "pooled",
    "runs_with",
]

Microbatches = tuple[tuple[int, ...], ...]  # positions in the minibatch
Assignment = tuple[Microbatches, ...]  # of each device

_BY_POSITION = {"native": native, "local-sort": local_sort}
_BY_COST = {"lb-micro": lb_micro, "lb-mini": lb_mini, "sorted-slice": sorted_slice}
POOL = "pool"  # the one that leaves samples to a queue
_FREE_COUNTS = ("lb-mini", "lb-robust", "lb-tight", POOL)
NAMES: tuple[str, ...] = (*_BY_POSITION, *_BY_COST, "lb-robust", "lb-tight")
ALL: tuple[str, ...] = (*NAMES, POOL)
SPLIT = "split"  # not among them: it is simulated where somebody asks for it, and nothing runs it


def balance(
    name: str,
    lengths: NDArray[np.int64],
    weights: NDArray[np.float64],
    devices: int,
    max_tokens: int,
    *,
    scenarios: NDArray[np.float64] | None = None,
) -> Assignment:
    """The named balancer's assignment of one minibatch: every sample once, no microbatch over `max_tokens`.

    `lengths` are tokens, `weights` the seconds of compute of each sample. Every device gets the same number of
    microbatches (the last ones empty where samples are too few for that) except under the balancers with free counts,
    where a device may even get none.

    `scenarios` [scenario, sample] are the seconds if the cost model is wrong, which lb-robust alone looks at; where
    none are given, it takes the part of the weights that grows with the square of the length to be uncertain.
    """
    _check(name, lengths, weights, devices, max_tokens)
    if name == POOL:
        raise InputError("pool leaves samples to a queue", fix="call pooled()")
    if name in _BY_POSITION:
        return _frozen(_BY_POSITION[name](lengths.tolist(), devices), list(range(len(lengths))))
    # Sorted first, so that plans depend on what the samples are and not on where they stand in the minibatch.
    ties = () if scenarios is None else tuple(-scenarios)
    order = np.lexsort((*ties, -lengths, -weights))
    tokens, heaviest = lengths[order], weights[order]
    if name == "lb-robust":
        unsure = guessed(heaviest, tokens) if scenarios is None else scenarios[:, order]
        slots = lb_robust(heaviest, tokens, unsure, devices, max_tokens)
    elif name == "lb-tight":
        slots = lb_tight(heaviest, tokens, devices, max_tokens)
    else:
        slots = _BY_COST[name](heaviest.tolist(), tokens.tolist(), devices, max_tokens)
    return _frozen(slots, order.tolist())


def pooled(
    lengths: NDArray[np.int64], weights: NDArray[np.float64], devices: int, max_tokens: int, constant: float = 0.0
) -> tuple[Assignment, Microbatches]:
    """What `pool` assigns, and its queue: the microbatches that devices take at run time, in this order.

    `constant`: seconds that a microbatch takes whatever it holds.
    """
    _check(POOL, lengths, weights, devices, max_tokens)
    order = np.lexsort((-lengths, -weights))
    slots, queue = pool(weights[order], lengths[order], devices, max_tokens, constant)
    [entries] = _frozen([queue], order.tolist())
    return _frozen(slots, order.tolist()), entries


def runs_with(name: str, sync: str) -> bool:
    """Whether the balancer suits the sync: where counts are free, devices must not meet inside a minibatch."""
    _known(name)
    return name not in _FREE_COUNTS or sync == "on-demand"


_HOME = {"LearnedCosts": "learned", "Plan": "library", "plan": "library"}


def __getattr__(name: str) -> Any:
    """What builds on the balancers loads when first used."""
    if name in _HOME:
        return getattr(import_module(f"odcsim.balance.{_HOME[name]}"), name)
    raise AttributeError(f"module 'odcsim.balance' has no attribute '{name}'")


def _frozen(slots: list[list[list[int]]], positions: list[int]) -> Assignment:
    at = positions.__getitem__
    return tuple([tuple([tuple(map(at, part)) for part in device]) for device in slots])


def _known(name: str) -> None:
    if name not in ALL:
        raise InputError(f"unknown balancer '{name}'", fix=nearest(name, list(ALL)))


def _check(name: str, lengths: NDArray[np.int64], weights: NDArray[np.float64], devices: int, max_tokens: int) -> None:
    _known(name)
    if devices < 1:
        raise InputError(f"{devices} devices", fix="give at least 1")
    if not len(lengths):
        raise InputError("a minibatch without samples", fix="give at least 1 sample")
    longest = int(lengths.argmax())
    if lengths[longest] > max_tokens:
        raise InputError(
            f"{lengths[longest]} tokens, over the limit of {max_tokens} per microbatch",
            where=f"sample {longest} of the minibatch",
            fix=f"raise --max-tokens to {lengths[longest]} or leave the sample out",
        )
    wrong = ~(np.isfinite(weights) & (weights >= 0))
    if wrong.any():
        sample = int(wrong.argmax())
        raise InputError(
            f"a weight of {weights[sample]}",
            where=f"sample {sample} of the minibatch",
            fix="give seconds of compute, finite and from 0",
        )

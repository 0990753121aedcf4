"""The assignments that look at no cost: what a training run does before anybody balances it."""

import numpy as np
from numpy.typing import NDArray

from odcsim.balance.balancer import Balancer, Deal, Work
from odcsim.flat import Flat


def native(work: Work) -> Deal:
    """The right one as the baseline of an untouched data loader: sample i to device i mod N, one per microbatch."""
    return Deal(_alike(_in_turn(len(work.tokens), work.devices), len(work.tokens)))


def local_sort(work: Work) -> Deal:
    """The right one where samples must stay on their device: as native, but every device runs its longest sample first.

    Long samples then tend to meet long ones, which saves a collective run some of its waiting.
    """
    samples = len(work.tokens)
    held = _in_turn(samples, work.devices)
    longest_first = (-np.append(work.tokens, 0)[held]).argsort(axis=1, kind="stable")
    return Deal(_alike(np.take_along_axis(held, longest_first, axis=1), samples))


def _in_turn(samples: int, devices: int) -> NDArray[np.int64]:
    """The samples of each device [device, turn]; the number past the last one stands for none."""
    turns = -(-samples // devices)
    return np.minimum(np.arange(turns * devices), samples).reshape(turns, devices).T


def _alike(held: NDArray[np.int64], samples: int) -> Flat:
    """Where samples do not divide by devices, the devices with fewer end on an empty microbatch: every step is met."""
    there = (held < samples).ravel()
    return Flat(np.full(len(held), held.shape[1]), there.astype(np.int64), held.ravel()[there])


NATIVE = Balancer("native", native, "one sample per microbatch, as they come", by_cost=False, even=False)
LOCAL_SORT = Balancer(
    "local-sort", local_sort, "as native, the longest first on each device", by_cost=False, even=False
)

"""pool: large samples are planned, the smallest wait in one queue for whichever device is free. On-demand sync only."""

import numpy as np
from numpy.typing import NDArray

from odcsim.balance.balancer import Balancer, Deal, Work
from odcsim.balance.fewest import pack_all
from odcsim.balance.longest_first import longest_first
from odcsim.balance.trades import hold
from odcsim.flat import Flat

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]
SHARE = 0.2  # of the work waits in the queue: enough to level devices that are off by a tenth
GRAIN = 0.01  # of a device's load is in an entry at least: smaller ones would level nothing more
WORTH = 4  # times what a microbatch costs by itself are in an entry at least


def pool(work: Work) -> Deal:
    """The right one where costs are not quite as planned: samples that take longer, devices that are slow.

    What devices run, and the queue. Who is late takes less of it, so all end within about its last entries. What that
    costs is the queue's microbatches, a constant each: with true costs other balancers are ahead.
    """
    weights, tokens, devices = work.weights, work.tokens, work.devices
    if weights[0] == weights[-1]:  # all alike: nothing to level, and entries that only come out uneven
        return Deal(pack_all(hold(longest_first(weights, devices), devices), weights, tokens, work.max_tokens))
    first = max(1, len(weights) - int((weights[::-1].cumsum() <= SHARE * weights.sum()).sum()))
    heavy = weights[:first]
    slots = pack_all(hold(longest_first(heavy, devices), devices), heavy, tokens[:first], work.max_tokens)
    grain = max(GRAIN * weights.sum() / devices, WORTH * work.constant)
    queue = entries(weights[first:], tokens[first:], devices, work.max_tokens, grain)
    return Deal(slots, queue.numbered(np.arange(first, len(weights))))


def entries(weights: Floats, tokens: Whole, devices: int, max_tokens: int, grain: float) -> Flat:
    """The queue, heaviest first. An entry holds half of what would be a device's share of all that is left, or `grain`.

    So there are few of them while much is left, and small ones to level with at the end (guided self-scheduling,
    Polychronopoulos and Kuck 1987, with the half of factoring, Hummel et al. 1992).
    """
    listed = weights.tolist()
    left, shares = sum(listed), 2 * devices
    starts: list[int] = []
    room, space = 0.0, 0  # of the entry that is open
    for i, (weight, size) in enumerate(zip(listed, tokens.tolist(), strict=True)):
        if weight > room or size > space:
            starts.append(i)
            room, space = max(left / shares, grain), max_tokens
        room -= weight
        space -= size
        left -= weight
    ends = np.array([*starts[1:], len(listed)][: len(starts)], dtype=np.int64)
    filled = Flat(np.array([len(starts)]), ends - np.array(starts, dtype=np.int64), np.arange(len(listed)))
    return filled.ordered((-filled.of_sums(weights)).argsort(kind="stable"))


BALANCER = Balancer(
    "pool",
    pool,
    "small samples wait in a queue for whoever is free",
    free_counts=True,
    weighs_transfers=True,
    queue=True,
)

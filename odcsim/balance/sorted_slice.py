"""sorted-slice: microbatches of the whole minibatch, sorted, so that those of like cost meet in one step."""

import numpy as np

from odcsim.balance.balancer import Balancer, Deal, Slots, Work, flat_of
from odcsim.balance.lb_micro import lb_micro
from odcsim.balance.lightest import lightest_with_room
from odcsim.balance.trades import ordered
from odcsim.flat import Flat


def sorted_slice(work: Work) -> Deal:
    """The right one for syncs that meet in every layer: same samples and gradients as lb-micro, and less waiting.

    Where there is little to sort (one microbatch holds all that a device has) lb-micro's trades bring more: whichever
    waits less is dealt. How passes begin and end is not in that estimate, nor that one sample may be long and another
    microbatch full: where it favours sorting, who has the seconds of every step may still deal lb-micro's.
    """
    ours, theirs = _sorted(work), lb_micro(work).slots
    return Deal(theirs) if lockstep(theirs, work) < lockstep(ours, work) else Deal(ours, rival=theirs)


def lockstep(slots: Slots | Flat, work: Work) -> float:
    """Seconds where all wait in each step for its heaviest microbatch."""
    flat = flat_of(slots)
    loads = np.zeros((len(flat.counts), int(flat.counts.max())))
    loads[np.arange(loads.shape[1]) < flat.counts[:, None]] = flat.of_sums(work.weights)
    return sum([work.seconds(heaviest) for heaviest in loads.max(axis=0).tolist()])


def _sorted(work: Work) -> Flat:
    """Steps run from the heaviest down. Inside a step the heaviest microbatch goes to the device with the least so far:
    that is no help to a step that all wait for, but evens out the totals for devices that meet only at the end.
    """
    weights, tokens, devices = work.weights, work.tokens, work.devices
    count = -(-int(tokens.sum()) // (work.max_tokens * devices))
    while (packed := lightest_with_room(weights, tokens, work.max_tokens, count * devices)) is None:
        count += 1
    part, loads = packed
    first = np.full(len(loads), -1)  # sample, which tells parts of one load apart
    first[part[::-1]] = np.arange(len(part))[::-1]
    heaviest, totals = np.lexsort((first, -loads)), np.zeros(devices)
    cell = np.empty(len(loads), dtype=np.int64)
    for step, here in enumerate(heaviest.reshape(count, devices)):
        lightest = totals.argsort(kind="stable")
        cell[here] = lightest * count + step
        totals[lightest] += loads[here]
    order = ordered(cell[part], len(loads))
    return Flat(np.full(devices, count), np.bincount(cell[part], minlength=len(loads)), order)


BALANCER = Balancer(
    "sorted-slice",
    sorted_slice,
    "microbatches of like cost meet: the better one for every sync",
    weighs_transfers=True,
    stands_for=lambda sync: sync.meets,
    advised_for=lambda sync: sync.meets,
)

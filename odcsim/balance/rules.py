"""The balancers: each a function of a minibatch's work, and its row. To add one, add both."""

from typing import Any

import numpy as np

from odcsim.balance.balancer import Balancer, Deal, Slots, Work, flat_of
from odcsim.balance.pack import lightest_with_room, pack_balanced, pack_fewest
from odcsim.balance.partition import (
    Floats,
    Ints,
    Shares,
    as_array,
    differencing,
    differencing_equal,
    differencing_many,
    earliest,
    longest_first,
    order_of,
)  # fmt: skip
from odcsim.balance.refine import STEPS, even_out, guess, in_bounds, relieve, sums_of
from odcsim.schedule import Flat
from odcsim.support.budget import memoize

MOST = 2**18  # samples of all splits that are remembered, some tens of megabytes
CROWD = 512  # devices from which on differencing is quicker in arrays
SEVERAL, ONE_BY_ONE = 48, 128  # devices of unlike speeds from which on several are relieved at once; up to which one
SHARE = 0.2  # of pool's work waits in the queue: enough to level devices that are off by a tenth
GRAIN = 0.01  # of a device's load is in an entry at least: smaller ones would level nothing more
WORTH = 4  # times what a microbatch costs by itself are in an entry at least


def native(work: Work) -> Deal:
    """The right one as the baseline of an untouched data loader: sample i to device i mod N, one per microbatch."""
    return Deal(_in_turn(work, longest=False))


def local_sort(work: Work) -> Deal:
    """The right one where samples must stay on their device: as native, but every device runs its longest sample first.

    Long samples then tend to meet long ones, which saves a collective run some of its waiting.
    """
    return Deal(_in_turn(work, longest=True))


def _in_turn(work: Work, *, longest: bool) -> Flat:
    """A sample in each microbatch, the longest of a device first or as they come. Where samples do not divide by
    devices, the devices with fewer end on an empty microbatch: every step is met."""
    samples, turns = len(work.tokens), -(-len(work.tokens) // work.devices)
    shares = np.minimum(np.arange(turns * work.devices), samples).reshape(turns, work.devices).T
    if longest:
        order = (-np.append(work.tokens, 0)[shares]).argsort(axis=1, kind="stable")
        shares = np.take_along_axis(shares, order, axis=1)
    there = (shares < samples).ravel()
    return Flat(np.full(work.devices, turns), there.astype(np.int64), shares.ravel()[there])


def _key(*values: object) -> tuple[Any, ...]:
    return tuple(value.tobytes() if isinstance(value, np.ndarray) else value for value in values)


# Splits that are asked for again: by another balancer, at another limit, for another network. For reading alone.
_once = memoize(MOST, lambda _, *given: len(given[0]), _key)


@_once
def equal_counts(weights: Floats, devices: int) -> Shares:
    """The samples of each device: as many as any other (within one), loads as even as that and trades allow."""
    return even_out(differencing_equal(weights, devices), weights)


@_once
def free_counts(weights: Floats, devices: int) -> Shares:
    """The samples of each device: free counts, or equal ones where those spread less or peak lower."""
    if devices < CROWD or devices >= len(weights):
        free = as_array(differencing(weights.tolist(), devices), len(weights))
    else:
        free = differencing_many(weights, devices)
    free, equal = even_out(free, weights), equal_counts(weights, devices)
    loads, others = sums_of(free, weights), sums_of(equal, weights)
    return free if loads.max() <= others.max() and np.ptp(loads) <= np.ptp(others) else equal


def lb_micro(work: Work) -> Deal:
    """The right one to know what plain load balancing brings to a collective run; sorted-slice is the stronger there.

    It evens out the devices' totals and leaves to chance which microbatches meet in one step.
    """
    return Deal(_pack_equal(work.weights, work.tokens, work.devices, work.max_tokens))


@_once
def _pack_equal(weights: Floats, tokens: Ints, devices: int, max_tokens: int) -> Flat:
    return pack_balanced(equal_counts(weights, devices), weights, tokens, max_tokens, alike=True)


def lb_mini(work: Work) -> Deal:
    """The right one wherever devices meet once per minibatch; most of its gain comes at 2 to 4 samples per device.

    Where devices are slow or mixed, every weight is divided by the speed of its device, and the latest is done early.
    """
    if work.speeds is None:
        shares = free_counts(work.weights, work.devices)
        return Deal(pack_balanced(shares, work.weights, work.tokens, work.max_tokens))
    scaled, slow = work.weights[None] / (work.weights.sum() or 1.0), work.speeds.sum() / work.speeds
    shares = earliest(work.weights, work.speeds)
    for _ in range(3 if work.devices >= SEVERAL else 0):  # begun anew, many find partners again
        shares = relieve(shares, scaled, slow)
    if work.devices <= ONE_BY_ONE:
        # Some may take more than they give.
        shares = np.pad(shares, ((0, 0), (0, 2)), constant_values=len(work.weights))
        shares = relieve(shares, scaled, slow, most=1, rounds=STEPS + work.devices // 2)
    return Deal(pack_fewest(shares, work.weights, work.tokens, work.max_tokens))


def sorted_slice(work: Work) -> Deal:
    """The right one for syncs that meet in every layer: same samples and gradients as lb-micro, and less waiting.

    Microbatches of the whole minibatch are sorted, so that those of like cost meet. Where there is little to sort (one
    microbatch holds all that a device has) lb-micro's trades bring more: whichever waits less is dealt. How passes
    begin and end is not in that estimate, nor that one sample may be long and another microbatch full: where it favours
    sorting, who has the seconds of every step may still deal lb-micro's.
    """
    weights, tokens, devices = work.weights, work.tokens, work.devices
    count = -(-int(tokens.sum()) // (work.max_tokens * devices))
    while (parts := lightest_with_room(weights, tokens, work.max_tokens, count * devices)) is None:
        count += 1
    part, loads = parts
    first = np.full(len(loads), -1)  # sample, which tells parts of one load apart
    first[part[::-1]] = np.arange(len(part))[::-1]
    heaviest, totals = np.lexsort((first, -loads)), np.zeros(devices)
    cell = np.empty(len(loads), dtype=np.int64)
    # Steps run from the heaviest down. Inside a step the heaviest microbatch goes to the device with the least so far:
    # that is no help to a step that all wait for, but evens out the totals for devices that meet only at the end.
    for step, here in enumerate(heaviest.reshape(count, devices)):
        lightest = totals.argsort(kind="stable")
        cell[here] = lightest * count + step
        totals[lightest] += loads[here]
    own = cell[part]
    ours = Flat(np.full(devices, count), np.bincount(own, minlength=len(loads)), order_of(own, len(loads)))
    theirs = lb_micro(work).slots
    return Deal(theirs) if lockstep(theirs, work) < lockstep(ours, work) else Deal(ours, rival=theirs)


def lockstep(slots: Slots | Flat, work: Work) -> float:
    """Seconds where all wait in each step for its heaviest microbatch."""
    flat = flat_of(slots)
    loads = np.zeros((len(flat.counts), int(flat.counts.max())))
    loads[np.arange(loads.shape[1]) < flat.counts[:, None]] = flat.of_sums(work.weights)
    return sum([work.seconds(heaviest) for heaviest in loads.max(axis=0).tolist()])


def lb_robust(work: Work) -> Deal:
    """The right one under on-demand unless you measured your costs: nobody's fit of the quadratic part is exact.

    LPT, then trades that lower the worst load over all scenarios. It gives up some tenths of a percent where the model
    is right, to lose no more where it is wrong by a fifth; plans that fit tightly by the model lose several percent.
    """
    weights, devices = work.weights, work.devices
    unsure = guess(weights, work.tokens) if work.scenarios is None else work.scenarios
    shares = relieve(longest_first(weights, devices), in_bounds(unsure, devices))
    return Deal(pack_fewest(shares, weights, work.tokens, work.max_tokens))


def pool(work: Work) -> Deal:
    """The right one where costs are not quite as planned: samples that take longer, devices that are slow.

    What devices run, and the queue, its heaviest entries first. Who is late takes less of it, so all end within about
    its last entries. What that costs is the queue's microbatches, a constant each: with true costs other balancers are
    ahead.
    """
    weights, tokens, devices = work.weights, work.tokens, work.devices
    if weights[0] == weights[-1]:  # all alike: nothing to level, and entries that only come out uneven
        return Deal(pack_fewest(longest_first(weights, devices), weights, tokens, work.max_tokens))
    first = max(1, len(weights) - int((weights[::-1].cumsum() <= SHARE * weights.sum()).sum()))
    heavy = weights[:first]
    slots = pack_fewest(longest_first(heavy, devices), heavy, tokens[:first], work.max_tokens)
    # An entry holds half of what would be a device's share of all that is left, or `grain`. So there are few of them
    # while much is left, and small ones to level with at the end (guided self-scheduling, Polychronopoulos and Kuck
    # 1987, with the half of factoring, Hummel et al. 1992).
    grain = max(GRAIN * weights.sum() / devices, WORTH * work.constant)
    light = weights[first:].tolist()
    left = sum(light)
    starts: list[int] = []
    room, space = 0.0, 0  # of the entry that is open
    for i, (weight, size) in enumerate(zip(light, tokens[first:].tolist(), strict=True)):
        if weight > room or size > space:
            starts.append(i)
            room, space = max(left / (2 * devices), grain), work.max_tokens
        room -= weight
        space -= size
        left -= weight
    bounds = np.array([*starts, len(light)], dtype=np.int64)
    queue = Flat(np.array([len(starts)]), bounds[1:] - bounds[:-1], np.arange(first, len(weights)))
    return Deal(slots, queue.ordered((-queue.of_sums(weights)).argsort(kind="stable")))


# In the order in which they are offered. Whatever is listed of them anywhere is made from these.
BALANCERS = (
    Balancer("native", native, "one sample per microbatch, as they come", by_cost=False, even=False),
    Balancer("local-sort", local_sort, "as native, the longest first on each device", by_cost=False, even=False),
    Balancer("lb-micro", lb_micro, "even totals, as many samples on each device: the published rival", published=True,
             stands_for=lambda sync: sync.meets and sync.push_every_microbatch),
    Balancer("lb-mini", lb_mini, "even totals: the published one", free_counts=True, speeds=True, published=True,
             stands_for=lambda sync: not sync.meets),
    Balancer("sorted-slice", sorted_slice, "microbatches of like cost meet: the better one for every sync",
             weighs_transfers=True, stands_for=lambda sync: sync.meets, advised_for=lambda sync: sync.meets),
    Balancer("lb-robust", lb_robust, "even totals also where costs are off: unless they were measured",
             free_counts=True, scenarios=True, advised_for=lambda sync: not sync.meets),
    Balancer("pool", pool, "small samples wait in a queue for whoever is free", free_counts=True,
             weighs_transfers=True, queue=True),
)  # fmt: skip

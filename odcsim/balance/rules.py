"""The balancers: each a function of a minibatch's work, and its row. To add one, add both."""

from typing import Any

import numpy as np

from odcsim.balance.balancer import Balancer, Deal, Slots, Work, flat_of
from odcsim.balance.pack import lightest_with_room, pack_balanced, pack_fewest
from odcsim.balance.partition import (
    Floats,
    Held,
    Whole,
    differencing,
    differencing_equal,
    differencing_many,
    earliest,
    laid,
    longest_first,
    ordered,
)  # fmt: skip
from odcsim.balance.refine import STEPS, added_up, even_out, guessed, in_bounds, relieve
from odcsim.flat import Flat
from odcsim.support.remembered import remembered

MOST = 2**18  # samples of all splits that are remembered, some tens of megabytes
CROWD = 512  # devices from which on differencing is quicker in arrays
SEVERAL, ONE_BY_ONE = (
    48,
    128,
)  # devices of unlike speeds from which on several are relieved at once, and up to which one
SHARE = 0.2  # of pool's work waits in the queue: enough to level devices that are off by a tenth
GRAIN = 0.01  # of a device's load is in an entry at least: smaller ones would level nothing more
WORTH = 4  # times what a microbatch costs by itself are in an entry at least


def native(work: Work) -> Deal:
    """The right one as the baseline of an untouched data loader: sample i to device i mod N, one per microbatch."""
    return Deal(_alike(_in_turn(len(work.tokens), work.devices), len(work.tokens)))


def local_sort(work: Work) -> Deal:
    """The right one where samples must stay on their device: as native, but every device runs its longest sample first.

    Long samples then tend to meet long ones, which saves a collective run some of its waiting.
    """
    samples = len(work.tokens)
    held = _in_turn(samples, work.devices)
    order = (-np.append(work.tokens, 0)[held]).argsort(axis=1, kind="stable")
    return Deal(_alike(np.take_along_axis(held, order, axis=1), samples))


def _in_turn(samples: int, devices: int) -> Held:
    turns = -(-samples // devices)
    return np.minimum(np.arange(turns * devices), samples).reshape(turns, devices).T


def _alike(held: Held, samples: int) -> Flat:
    """Where samples do not divide by devices, the devices with fewer end on an empty microbatch: every step is met."""
    there = (held < samples).ravel()
    return Flat(np.full(len(held), held.shape[1]), there.astype(np.int64), held.ravel()[there])


def _key(*values: object) -> tuple[Any, ...]:
    return tuple(value.tobytes() if isinstance(value, np.ndarray) else value for value in values)


# Splits that are asked for again: by another balancer, at another limit, for another network. For reading alone.
_once = remembered(MOST, lambda _, *given: len(given[0]), _key)


@_once
def equal_counts(weights: Floats, devices: int) -> Held:
    """The samples of each device: as many as any other (within one), loads as even as that and trades allow."""
    return even_out(differencing_equal(weights, devices), weights)


@_once
def free_counts(weights: Floats, devices: int) -> Held:
    """The samples of each device: free counts, or equal ones where those spread less or peak lower."""
    if devices < CROWD or devices >= len(weights):
        free = laid(differencing(weights.tolist(), devices), len(weights))
    else:
        free = differencing_many(weights, devices)
    free, equal = even_out(free, weights), equal_counts(weights, devices)
    loads, others = added_up(free, weights), added_up(equal, weights)
    return free if loads.max() <= others.max() and np.ptp(loads) <= np.ptp(others) else equal


def lb_micro(work: Work) -> Deal:
    """The right one to know what plain load balancing brings to a collective run; sorted-slice is the stronger there.

    It evens out the devices' totals and leaves to chance which microbatches meet in one step.
    """
    return Deal(_packed(work.weights, work.tokens, work.devices, work.max_tokens))


@_once
def _packed(weights: Floats, tokens: Whole, devices: int, max_tokens: int) -> Flat:
    return pack_balanced(equal_counts(weights, devices), weights, tokens, max_tokens, alike=True)


def lb_mini(work: Work) -> Deal:
    """The right one wherever devices meet once per minibatch; most of its gain comes at 2 to 4 samples per device.

    Where devices are slow or mixed, every weight is divided by the speed of its device, and the latest is done early.
    """
    if work.speeds is None:
        held = free_counts(work.weights, work.devices)
        return Deal(pack_balanced(held, work.weights, work.tokens, work.max_tokens))
    scaled, slow = work.weights[None] / (work.weights.sum() or 1.0), work.speeds.sum() / work.speeds
    held = earliest(work.weights, work.speeds)
    for _ in range(3 if work.devices >= SEVERAL else 0):  # begun anew, many find partners again
        held = relieve(held, scaled, slow)
    if work.devices <= ONE_BY_ONE:
        held = np.pad(held, ((0, 0), (0, 2)), constant_values=len(work.weights))  # some may take more than they give
        held = relieve(held, scaled, slow, most=1, rounds=STEPS + work.devices // 2)
    return Deal(pack_fewest(held, work.weights, work.tokens, work.max_tokens))


def sorted_slice(work: Work) -> Deal:
    """The right one for syncs that meet in every layer: same samples and gradients as lb-micro, and less waiting.

    Microbatches of the whole minibatch are sorted, so that those of like cost meet. Where there is little to sort (one
    microbatch holds all that a device has) lb-micro's trades bring more: whichever waits less is dealt. How passes
    begin and end is not in that estimate, nor that one sample may be long and another microbatch full: where it favours
    sorting, who has the seconds of every step may still deal lb-micro's.
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


def lb_robust(work: Work) -> Deal:
    """The right one under on-demand unless you measured your costs: nobody's fit of the quadratic part is exact.

    LPT, then trades that lower the worst load over all scenarios. It gives up some tenths of a percent where the model
    is right, to lose no more where it is wrong by a fifth; plans that fit tightly by the model lose several percent.
    """
    weights, devices = work.weights, work.devices
    unsure = guessed(weights, work.tokens) if work.scenarios is None else work.scenarios
    held = relieve(longest_first(weights, devices), in_bounds(unsure, devices))
    return Deal(pack_fewest(held, weights, work.tokens, work.max_tokens))


def pool(work: Work) -> Deal:
    """The right one where costs are not quite as planned: samples that take longer, devices that are slow.

    What devices run, and the queue. Who is late takes less of it, so all end within about its last entries. What that
    costs is the queue's microbatches, a constant each: with true costs other balancers are ahead.
    """
    weights, tokens, devices = work.weights, work.tokens, work.devices
    if weights[0] == weights[-1]:  # all alike: nothing to level, and entries that only come out uneven
        return Deal(pack_fewest(longest_first(weights, devices), weights, tokens, work.max_tokens))
    first = max(1, len(weights) - int((weights[::-1].cumsum() <= SHARE * weights.sum()).sum()))
    heavy = weights[:first]
    slots = pack_fewest(longest_first(heavy, devices), heavy, tokens[:first], work.max_tokens)
    grain = max(GRAIN * weights.sum() / devices, WORTH * work.constant)
    queue = _entries(weights[first:], tokens[first:], devices, work.max_tokens, grain)
    return Deal(slots, queue.numbered(np.arange(first, len(weights))))


def _entries(weights: Floats, tokens: Whole, devices: int, max_tokens: int, grain: float) -> Flat:
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

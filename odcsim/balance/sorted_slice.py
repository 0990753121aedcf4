"""sorted-slice: microbatches of the whole minibatch, sorted, so that those of like cost meet in one step."""

from heapq import heappop, heappush
from itertools import zip_longest

import numpy as np

from odcsim.balance.lb_micro import lb_micro
from odcsim.heuristics.balancer import Balancer, Deal, Slots, Work
from odcsim.heuristics.longest_first import lowest_so_far
from odcsim.heuristics.packing import Microbatch, fewest


def sorted_slice(work: Work) -> Deal:
    """The right one for syncs that meet in every layer: same samples and gradients as lb-micro, and less waiting.

    Where there is little to sort (one microbatch holds all that a device has) lb-micro's trades bring more: whichever
    waits less is dealt. How passes begin and end is not in that estimate, nor that one sample may be long and another
    microbatch full: where it favours sorting, who has the seconds of every step may still deal lb-micro's.
    """
    ours, theirs = _sorted(work), lb_micro(work).slots
    return Deal(theirs) if lockstep(theirs, work) < lockstep(ours, work) else Deal(ours, rival=theirs)


def lockstep(slots: Slots, work: Work) -> float:
    """Seconds where all wait in each step for its heaviest microbatch."""
    weights = work.weights.tolist()
    steps = (max([sum([weights[i] for i in part]) for part in step]) for step in zip_longest(*slots, fillvalue=()))
    return sum([work.seconds(heaviest) for heaviest in steps])


def _sorted(work: Work) -> list[list[Microbatch]]:
    """Steps run from the heaviest down. Inside a step the heaviest microbatch goes to the device with the least so far:
    that is no help to a step that all wait for, but evens out the totals for devices that meet only at the end.
    """
    weights, tokens = work.weights.tolist(), work.tokens.tolist()
    devices, max_tokens = work.devices, work.max_tokens
    count = max(1, fewest(list(range(len(weights))), tokens, max_tokens * devices))
    while (packed := _lightest_with_room(weights, tokens, max_tokens, count * devices)) is None:
        count += 1
    packed.sort(key=lambda part: (-part[0], part[1]))
    totals = [(0.0, device) for device in range(devices)]
    slots: list[list[Microbatch]] = [[] for _ in range(devices)]
    for start in range(0, len(packed), devices):
        totals.sort()
        for place, (load, samples) in enumerate(packed[start : start + devices]):
            total, device = totals[place]
            slots[device].append(samples)
            totals[place] = (total + load, device)
    return slots


def _lightest_with_room(
    weights: list[float], tokens: list[int], max_tokens: int, parts: int
) -> list[tuple[float, Microbatch]] | None:
    """Each sample, heaviest first, into the lightest part that has room for it; None where one finds no room.

    Differencing balances a little closer but looks at no limit: it needs more parts, which costs more than it gains.
    """
    packed: list[Microbatch] = [[] for _ in range(parts)]
    heap = [(0.0, 0, part) for part in range(parts)]
    done: list[tuple[float, int, int]] = []  # without room even for the shortest sample to come: not asked any more
    shortest = lowest_so_far(np.array(tokens)[::-1])[::-1].tolist()
    for i, (weight, length) in enumerate(zip(weights, tokens, strict=True)):
        full: list[tuple[float, int, int]] = []
        while heap and heap[0][1] + length > max_tokens:
            entry = heappop(heap)
            (done if entry[1] + shortest[i] > max_tokens else full).append(entry)
        if not heap:
            return None
        load, used, part = heappop(heap)
        packed[part].append(i)
        for entry in (*full, (load + weight, used + length, part)):
            heappush(heap, entry)
    return [(load, packed[part]) for load, _, part in (*heap, *done)]


BALANCER = Balancer(
    "sorted-slice",
    sorted_slice,
    "microbatches of like cost meet: the better one for every sync",
    weighs_transfers=True,
    stands_for=("collective", "deferred"),
    advised_for=("collective", "deferred"),
)

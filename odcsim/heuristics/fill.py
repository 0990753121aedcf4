"""Multifit's shared target, with tight fits: one device after the other is filled up to the target."""

from bisect import bisect_right
from heapq import heapify, heapreplace

SECONDS = 24  # second samples tried for each device


def fill(weights: list[float], devices: int, target: float) -> list[list[int]]:
    """Samples (heaviest first in `weights`) to devices, so that loads come close to `target`, most of them from below.

    The right one where few samples make up a device's load, so that which ones meet decides everything.

    A device takes the heaviest sample left, then the largest that fit, each time as little as leaves the others
    enough. Its second sample is tried at several places between the largest that fits and the smallest: those near
    the largest alone would fit alike, and use up early what fits best. It is full once it wastes no more of the
    target than each of the remaining devices may. What fits nowhere goes where least is.
    """
    left, numbers = weights[::-1], list(range(len(weights) - 1, -1, -1))
    waste = target * devices - sum(weights)
    groups: list[list[int]] = []
    for device in range(devices):
        others = devices - device - 1
        if not left:
            break
        room = target - left.pop()
        group = [numbers.pop()]
        unused, places = _closest(left, room, waste / (others + 1), len(left) - others)
        for place in places:
            group.append(numbers.pop(place))
            del left[place]
        waste -= unused
        groups.append(group)
    groups += [[] for _ in range(devices - len(groups))]
    return _spread(groups, numbers[::-1], weights)


def _closest(left: list[float], room: float, enough: float, most: int) -> tuple[float, list[int]]:
    """Places in `left` (lightest first) of at most `most` samples that fill the room best, and what stays unused."""
    best, places = room, []
    top = bisect_right(left, room) - 1
    for second in range(top, -1, -max(1, (top + 1) // SECONDS)) if most > 0 else ():
        unused, tried = room - left[second], [second]
        while tried[-1] and len(tried) < most:
            place = bisect_right(left, unused, 0, tried[-1]) - 1
            if place < 0:
                break
            unused -= left[place]
            tried.append(place)
        if unused < best:
            best, places = unused, tried
            if best <= enough:
                break
    return best, places


def _spread(groups: list[list[int]], rest: list[int], weights: list[float]) -> list[list[int]]:
    loads = [(sum([weights[i] for i in group]), device) for device, group in enumerate(groups)]
    heapify(loads)
    for sample in rest:
        load, device = loads[0]
        groups[device].append(sample)
        heapreplace(loads, (load + weights[sample], device))
    return groups

"""How trainers that others wrote make microbatches of uneven lengths: what docs/studies/uneven.py prices.

A step is, for each device and microbatch, the tokens of each row: padded ones are as long as they are run.
"""

from collections.abc import Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from odcsim.schedule import Schedule

Ints = NDArray[np.int64]
Rows = list[int]
Step = list[list[Rows]]
SQUARED = 0.001  # what BatchRebalanceSampler of transformers weighs a square of tokens with, beside tokens


def schedule(step: Step) -> Schedule:
    """The step as the simulator takes it."""
    lengths, devices, at = [], [], 0
    for device in step:
        microbatches = []
        for rows in device:
            lengths += rows
            microbatches.append(tuple(range(at, at + len(rows))))
            at += len(rows)
        devices.append(tuple(microbatches))
    return Schedule.of(lengths, devices)


def padded(step: Step, least: int = 0) -> Step:
    """Rows as long as the longest of their microbatch, and at least so long."""
    return [[[max(least, *rows)] * len(rows) for rows in device] for device in step]


def in_turn(lengths: Ints, devices: int, each: int, microbatches: int) -> list[Step]:
    """Batches of so many, as they come, to devices in turn: what accelerate makes of any order."""
    parts = lengths.reshape(-1, microbatches, devices, each).swapaxes(1, 2)
    return [step.tolist() for step in parts]


def grouped(lengths: Ints, batch: int) -> Ints:
    """LengthGroupedSampler of transformers: the longest first in each of many batches, the longest of all in front."""
    many = batch * max(1, min(len(lengths) // (4 * batch), 50))
    parts = [np.sort(lengths[i : i + many])[::-1] for i in range(0, len(lengths), many)]
    first = int(np.argmax([part[0] for part in parts]))
    parts[0][0], parts[first][0] = parts[first][0], parts[0][0]
    return np.concatenate(parts)


def rebalanced(lengths: Ints, devices: int, microbatches: int) -> Step:
    """What BatchRebalanceSampler searches: groups of neighbours in length of which the dearest is as cheap as can be,
    the dearest in the first microbatch of each device."""
    ordered, count = np.sort(lengths)[::-1], devices * microbatches
    inner = np.array(list(combinations(range(1, len(ordered)), count - 1)))
    first = np.hstack([np.zeros((len(inner), 1), dtype=np.int64), inner])
    ends = np.hstack([inner, np.full((len(inner), 1), len(ordered))])
    longest = ordered[first].astype(float)
    costs = (ends - first) * (longest + SQUARED * longest**2)
    best = int(np.argmin(costs.max(axis=1)))
    dearest = np.argsort(-costs[best], kind="stable")
    groups = [ordered[first[best, g] : ends[best, g]].tolist() for g in dearest]
    return [[groups[slot * devices + device] for slot in range(microbatches)] for device in range(devices)]


def longest_first(lengths: Ints, devices: int) -> list[list[int]]:
    """Places of samples by device: each, from the longest down, to the lightest device that has not its number yet."""
    load, places, number = np.zeros(devices), [[] for _ in range(devices)], len(lengths) // devices
    for place in np.argsort(-lengths, kind="stable").tolist():
        open_ = [d for d in range(devices) if len(places[d]) < number]
        device = min(open_, key=lambda d: (load[d], d))
        places[device].append(place)
        load[device] += lengths[place]
    return places


def within(lengths: Sequence[int], budget: int) -> list[Rows]:
    """Samples as they come, in as few parts as hold at most so many tokens each."""
    parts: list[Rows] = [[]]
    for length in lengths:
        if parts[-1] and sum(parts[-1]) + length > budget:
            parts.append([])
        parts[-1].append(length)
    return parts


def in_parts(lengths: Sequence[int], count: int) -> list[Rows]:
    """Samples as they come, in so many parts of about as many tokens."""
    ends = np.cumsum(lengths) - np.asarray(lengths) / 2
    part = np.minimum((ends * count / sum(lengths)).astype(int), count - 1)
    for i in range(len(part)):  # none is empty
        part[i] = min(max(part[i], count - (len(part) - i)), i)
    part = np.maximum.accumulate(part)
    return [[length for length, at in zip(lengths, part, strict=True) if at == p] for p in range(count)]


def first_fit(lengths: Ints, budget: int) -> list[Rows]:
    """The longest first, each into the first row with room."""
    rows: list[Rows] = []
    for length in np.sort(lengths)[::-1].tolist():
        room = next((row for row in rows if sum(row) + length <= budget), None)
        if room is None:
            rows.append([length])
        else:
            room.append(length)
    return rows

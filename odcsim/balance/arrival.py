"""What trainers do that do not balance: samples in the order in which they come, so many or a packed row at a time."""

from dataclasses import replace

import numpy as np

from odcsim.balance.balancer import Balancer, Deal, Work
from odcsim.balance.rules import native
from odcsim.errors import InputError
from odcsim.schedule import Flat, Schedule


def batches(work: Work) -> Deal:
    """What `accelerate` deals: batches of as many samples, which come to devices in turn, step after step."""
    count, each = len(work.tokens), work.each or 1
    if count % (work.devices * each):
        fix = "give a number of samples that they divide"
        raise InputError(f"{count} samples in batches of {each} on {work.devices} devices", fix=fix)
    steps = count // (work.devices * each)
    samples = np.arange(count).reshape(steps, work.devices, each).swapaxes(0, 1).ravel()
    return Deal(Flat(np.full(work.devices, steps), np.full(work.devices * steps, each), samples))


def pad(schedule: Schedule, _: int) -> Schedule:
    """Every sample as long as the longest of its microbatch."""
    flat = schedule.flat
    each = np.repeat(np.arange(len(flat.sizes)), flat.sizes)
    longest = np.zeros(len(flat.sizes), dtype=np.int64)
    np.maximum.at(longest, each, schedule.sizes[flat.samples])
    lengths = schedule.sizes.copy()
    lengths[flat.samples] = longest[each]
    return _of_lengths(schedule, lengths)


def fill(schedule: Schedule, limit: int) -> Schedule:
    """Every microbatch as long as the limit: what is missing stands behind its last sample."""
    flat = schedule.flat
    last = flat.samples[flat.sizes.cumsum() - 1]
    lengths = schedule.sizes.copy()
    lengths[last] += limit - flat.of_sums(schedule.sizes).astype(np.int64)
    return _of_lengths(schedule, lengths)


def _of_lengths(schedule: Schedule, lengths: "np.ndarray[tuple[int], np.dtype[np.int64]]") -> Schedule:
    return Schedule(tuple(lengths.tolist()), schedule.flat, samples=schedule.samples, loss=schedule.loss)


BATCHES = Balancer("batches", batches, "as many samples in each microbatch, as they come", by_cost=False, even=False)
PADDED = replace(BATCHES, name="padded", pads=pad, help="the same, padded to the longest of a microbatch")
PACKED = Balancer(
    "packed",
    native,
    "rows that are packed before training, one per microbatch, as they come",
    by_cost=False,
    even=False,
)
FILLED = replace(PACKED, name="filled", pads=fill, help="the same, each filled up to the limit")

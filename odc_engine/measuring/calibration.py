"""Schedules made to be measured: what they hold varies in every way that a fit has to tell apart."""

import numpy as np

from odcsim.model import Model
from odcsim.schedule import Header, Schedule, ScheduleFile

LEAST = 8  # tokens of a sample
FULL = (1, 3 / 4, 1 / 2, 1 / 3, 1 / 4, 1 / 8, 1 / 16, 1 / 32)  # of the fullest microbatch
SPLITS = (1, 4, 16)  # samples that share a microbatch's tokens: as many squares, as half and a quarter of the root
IN_A_MINIBATCH = 3

Lengths = tuple[int, ...]


def packings(most: int) -> tuple[Lengths, ...]:
    """Microbatches of up to `most` tokens. Tokens, sum of squares and samples vary independently of each other."""
    found: dict[Lengths, None] = {}
    for part in FULL:
        for samples in SPLITS:
            each = int(most * part) // samples
            if each >= LEAST:
                found[(each,) * samples] = None
    return tuple(found)


def mixed(model: Model, devices: int, most: int, seed: int, every: int = 1) -> ScheduleFile:
    """Each packing, or one of `every` so many, once on every device: each in an order of its own, as a real run would
    have them."""
    rng = np.random.default_rng(seed)
    chosen = packings(most)[::every]
    orders = [rng.permutation(len(chosen)) for _ in range(devices)]
    minibatches = -(-len(chosen) // IN_A_MINIBATCH)
    dealt = [[[chosen[i] for i in order[k::minibatches]] for order in orders] for k in range(minibatches)]
    return _file(model, most, seed, dealt)


def short(model: Model, devices: int) -> ScheduleFile:
    """A few microbatches whose content does not matter, since compute is emulated."""
    one: Lengths = (LEAST,)
    return _file(model, LEAST, 0, [[[one] * IN_A_MINIBATCH] * devices] * 3)


def _file(model: Model, most: int, seed: int, minibatches: list[list[list[Lengths]]]) -> ScheduleFile:
    header = Header("calibration", model.name, "none: made to be measured", most, len(minibatches[0]), seed)
    return ScheduleFile(header, tuple(_schedule(devices) for devices in minibatches)).sealed()


def _schedule(devices: list[list[Lengths]]) -> Schedule:
    lengths: list[int] = []
    assignment = []
    for microbatches in devices:
        own = []
        for held in microbatches:
            own.append(tuple(range(len(lengths), len(lengths) + len(held))))
            lengths += held
        assignment.append(tuple(own))
    return Schedule.of(lengths, assignment)

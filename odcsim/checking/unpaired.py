"""Microbatches without any image where another device's has one: one device skips a vision tower that the other runs.

Collectives pair by their order, so that from there on each device's transfers meet other ones of its peers.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from odcsim.checking.batches import Batch

PATCHED = (
    "a trainer that runs its vision tower on a dummy image there pairs them, and so does one with the tower in the "
    "root unit, frozen or under set_reduce_scatter_unused_params(True)"
)


@dataclass(frozen=True, slots=True)
class Unpaired:
    """`device` has no image in the `microbatch` in which `other` has one."""

    minibatch: int
    microbatch: int
    device: int
    other: int

    def __str__(self) -> str:
        return f"microbatch {self.microbatch} of device {self.device} has no image where device {self.other} has one"


def unpaired(batches: Sequence[Batch]) -> list[Unpaired]:
    """In the order in which they run."""
    return [one for number, batch in enumerate(batches) for one in _of(number, batch)]


def _of(number: int, batch: Batch) -> Iterator[Unpaired]:
    for microbatch, seen in enumerate(zip_longest(*_seen(batch))):
        if True in seen:
            yield from (Unpaired(number, microbatch, d, seen.index(True)) for d, has in enumerate(seen) if has is False)


def _seen(batch: Batch) -> list[list[bool]]:
    """Whether there is an image in each device's microbatches."""
    has = batch.images or {}
    return [[any(has.get(i, False) for i in part) for part in device] for device in batch.devices]


def way_out(batches: Sequence[Batch], found: Sequence[Unpaired]) -> str:
    """What pairs them: another order of what each device has, another deal, or nothing but on-demand."""
    places = sorted({one.minibatch for one in found})
    if all(len({sum(device) for device in _seen(batches[place])}) == 1 for place in places):
        return "run on-demand, or let every device begin with its microbatches that have images"
    for place in places:
        batch = batches[place]
        samples = sum((batch.images or {}).values())
        if samples < len(batch.devices):
            few = f"of minibatch {place} too few samples have images ({samples}) for {len(batch.devices)} devices"
            return f"run on-demand, since {few}"
    return "run on-demand, or deal so that in each microbatch all devices have an image or none has"

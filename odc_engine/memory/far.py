"""An arena some of whose devices no address reaches: what belongs to those is fetched and sent.

Near devices' parts move as in any other arena. Each device has a slot at every owner, near or far, and nobody else
writes to it. The first gradients of a minibatch are sent over what is in the slot; later ones are added to what the
slot holds, which is fetched for it: that takes no more memory, and gives the same bits as adding in place. Nothing
waits for what was sent but the next one to the same slots, and the minibatch's end: it travels while the device
computes on.

Under hybrid sharding gathers and pushes stay among near devices, in atomic sums as well as in slots. Between nodes goes
what has to, once: each counterpart adds up in its own arena what its node has pushed for an owner, who fetches the
sum; and after publishing a device fetches each counterpart's shard for the whole of its node.

A network reaches an arena and nothing else, so bytes pass through spare room in it: one place for each lane, since the
transfers of a lane follow one another. There is room for what all others have of a unit, so that all of it is on
its way at once, and is waited for once.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from odc_engine.backends.base import FarMemory
from odc_engine.memory.arena import NOTES, Arena, UnitShape, aligned
from odcsim.errors import InputError


class FarArena(Arena):
    """Where pushes go over a network, slots only: it adds nothing to what is there."""

    def __init__(
        self, memory: FarMemory, units: Sequence[UnitShape], accumulate: str, per_node: int | None = None
    ) -> None:
        self._remote = memory
        self._largest = max((aligned(u.gather * u.dtype.itemsize) for u in units), default=0)
        self._longest = max((aligned(4 * u.push) for u in units), default=0)
        super().__init__(memory, units, accumulate, per_node)
        ring = [(memory.rank + i) % memory.size for i in range(1, memory.size)]
        self._far = [device for device in ring if device not in self._owners]
        gathered, sums = self._rooms()
        fetched, sent = self._spare, self._spare + gathered
        held = sent + self._longest
        self._fetched = self._bytes(memory.rank, fetched, gathered)
        self._sent = self._bytes(memory.rank, sent, self._longest).view(torch.float32)
        self._held = self._bytes(memory.rank, held, sums).view(torch.float32)
        self._notes_of = self._bytes(memory.rank, held + sums, NOTES)
        self._given: set[int] = set()  # units that far owners have got something of in this minibatch
        self._on_the_way: set[int] = set()  # and those of which it may not have arrived

    def _check_reach(self) -> None:
        near, size, k = self._remote.every_near, self.memory.size, self.per_node
        if self.nodes == 1 and not self._remote.all_near and self.accumulate != "slots":
            beyond = [d for d in range(size) if d not in self.memory.near]
            told = f"devices {', '.join(map(str, beyond))}" if beyond else "other devices' peers"
            raise InputError(
                f"{told} are beyond a network, which adds nothing to a sum",
                fix="use --accumulate slots, or --sharding hybrid",
            )
        if self.nodes > 1 and (torn := _torn(near, k)):
            told = f"device {torn[0]} has no address of all {k} devices of its node"
            whole = max(n for n in range(1, size) if size % n == 0 and not _torn(near, n))  # 1 at least
            raise InputError(f"nodes of {k}: {told}", fix=f"use --devices-per-node {whole}")

    def _spare_size(self) -> int:
        return sum(self._rooms()) + self._longest + NOTES + super()._spare_size()

    def _rooms(self) -> tuple[int, int]:
        """Bytes for shards that are gathered from far devices, and for sums that are fetched."""
        if self.nodes > 1:
            return 0, self._longest * (self.nodes - 1)
        return self._largest * (self.memory.size - 1), self._longest

    def gather(self, unit: int, out: Tensor) -> None:
        super().gather(unit, out)
        shape = self.units[unit]
        size, n = shape.gather * shape.dtype.itemsize, shape.gather
        if not self._far or not n:
            return
        shards = self._fetched[: size * len(self._far)].view(shape.dtype).view(-1, n)
        at = self._weights_at(unit, self._far[0])[0]  # in everybody's arena
        places = [(device, at, shard.view(torch.uint8)) for device, shard in zip(self._far, shards, strict=True)]
        self._remote.fetch_all(places)
        # The far ones come in the order of a ring, so they are two runs of devices at most.
        above = self.memory.size - self.memory.near.stop
        for first, stop in ((0, above), (above, len(self._far))):
            if first < stop:
                into = out[self._far[first] * n : (self._far[stop - 1] + 1) * n]
                into.copy_(shards[first:stop].view(-1))

    def push(self, unit: int, gradients: Tensor) -> None:
        super().push(unit, gradients)
        n = self.units[unit].push
        if not self._far or not n:
            return
        if unit in self._on_the_way:
            self._arrive()
        for device in self._far:
            part = self._sent[:n].copy_(gradients[device * n : (device + 1) * n])
            if unit in self._given:
                held = self._held[:n]
                self._remote.fetch(device, self._slot_start(unit, self.memory.rank), held.view(torch.uint8))
                part.add_(held)
            self._send(unit, device, part)
        self._given.add(unit)
        self._on_the_way.add(unit)

    def _send(self, unit: int, device: int, part: Tensor) -> None:
        self._remote.send(device, self._slot_start(unit, self.memory.rank), part.view(torch.uint8))

    def _arrive(self) -> None:
        self._remote.arrive()
        self._on_the_way.clear()

    def complete(self) -> None:
        """What this device has not pushed is nothing: its slots hold the last minibatch's gradients."""
        super().complete()
        for unit, shape in enumerate(self.units):
            if shape.push and unit not in self._given:
                for device in self._far:
                    self._send(unit, device, self._sent[: shape.push].zero_())
        self._given.clear()
        if self._far:
            self._arrive()

    def meet(self) -> None:
        """Twice where there are nodes: what goes between them is one sum, of a node's writers in their order."""
        super().meet()
        if not (counterparts := self._counterparts()):
            return
        for unit in range(len(self.units)):
            for owner in counterparts:
                total = self.slot(self.memory.rank, unit, 0, owner)
                for writer in range(1, self._slots):
                    total.add_(self.slot(self.memory.rank, unit, writer, owner))
        super().meet()

    def sum_nodes(self) -> None:
        others = self._counterparts()
        for unit, shape in enumerate(self.units):
            if not others or not shape.push:
                continue
            sums = self._held[: shape.push * len(others)].view(-1, shape.push)
            at = self._slot_start(unit, 0, self.memory.rank)
            places = [(device, at, each.view(torch.uint8)) for device, each in zip(others, sums, strict=True)]
            self._remote.fetch_all(places)
            total = self.slot(self.memory.rank, unit, 0)
            for each in sums:
                total.add_(each)

    def _take_in(self, unit: int) -> None:
        places = []
        for device in self._counterparts() if self.units[unit].gather else ():
            start, size = self._weights_at(unit, device)
            places.append((device, start, self._bytes(self.memory.rank, start, size)))
        self._remote.fetch_all(places)
        self.clear(unit)

    def every_note(self, count: int) -> Tensor:
        rows = []
        for device in range(self.memory.size):
            if device in self.memory.near:
                rows.append(self.notes(device, count))
            else:
                self._remote.fetch(device, self._notes, self._notes_of[:count])
                rows.append(self._notes_of[:count].clone())
        return torch.stack(rows)


def _torn(near: Sequence[range], per_node: int) -> list[int]:
    """Devices that have no address of some device of their node."""
    firsts = [device // per_node * per_node for device in range(len(near))]
    return [d for d, first in enumerate(firsts) if not set(range(first, first + per_node)) <= set(near[d])]

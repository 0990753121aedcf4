"""An arena in which some ranks have no address here: their bytes are fetched and sent over a network.

Near devices' parts move as in any other arena. Each device has a slot at every owner, near or far, and nobody else
writes to it. The first gradients of a minibatch are sent over what is in the slot; later ones are added to what the
slot holds, which is fetched for it: that takes no more memory, and gives the same bits as adding in place. All owners'
parts of a unit are under way at once. Nothing waits for them but the next push and the minibatch's end: they travel
while the device computes on.

Under hybrid sharding gathers and pushes stay among near devices, in atomic sums as well as in slots. Between nodes goes
what has to, once: each counterpart adds up in its own arena what its node has pushed for an owner, who fetches the
sum; and after publishing a device fetches each counterpart's shard for the whole of its node.

A network reaches an arena and nothing else, so bytes pass through spare room in it: one place for each lane, since the
transfers of a lane follow one another. There is room for what all others have of a unit, so that all of it is on
its way at once, and is waited for once; of the largest units as much of everybody's part as fits (`spare.ROOM`), round
after round.
"""

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from odc_engine.backends.base import FarMemory
from odc_engine.memory.arena import ALIGN, NOTES, Arena, add, aligned
from odc_engine.memory.spare import room_for
from odcsim.errors import InputError


class FarArena(Arena):
    """Fetch and send the parts of far ranks. Slots only: a network cannot add to a sum."""

    memory: FarMemory

    def _allocate(self, nbytes: int) -> None:
        """With room behind the arena: for shards gathered from far ranks, for sums and for notes. Which ranks are far
        is not known yet."""
        others = self.memory.size - 1
        largest = max((aligned(unit.gather * unit.dtype.itemsize) for unit in self.units), default=0)
        longest = max((aligned(4 * unit.push) for unit in self.units), default=0)
        shards = room_for(largest, others) if self.nodes == 1 else 0
        sums = room_for(longest, others if self.nodes == 1 else self.nodes - 1)
        super()._allocate(nbytes + shards + sums + NOTES * others)
        self._check_reach()
        room = self._bytes(self.memory.rank, nbytes, shards + sums + NOTES * others)
        self._shard_room, self._note_room = room[:shards], room[shards + sums :]
        self._sum_room = room[shards : shards + sums].view(torch.float32)
        near = self.memory.near
        self._beyond = [*range(near.stop, self.memory.size), *range(near.start)]  # in the order of a ring
        self._far = self._beyond if self.nodes == 1 else []  # owners whose parts are gathered and pushed over a network
        self._sent: set[int] = set()  # units that far owners have got something of in this minibatch
        self._on_the_way = False  # sums that may not have arrived, and so are in their room yet

    def _check_reach(self) -> None:
        near, size, k = self.memory.every_near, self.memory.size, self.per_node
        if self.nodes == 1 and not self.memory.all_near and self.accumulate != "slots":
            beyond = [d for d in range(size) if d not in self.memory.near]
            who = f"devices {', '.join(map(str, beyond))}" if beyond else "other devices' peers"
            problem = f"{who} are reached over a network, which cannot add to a sum"
            raise InputError(problem, fix="use --accumulate slots, or --sharding hybrid")
        if self.nodes > 1 and (torn := _torn(near, k)):
            problem = f"nodes of {k}: device {torn[0]} has no address of all {k} devices of its node"
            whole = max(n for n in range(1, size) if size % n == 0 and not _torn(near, n))  # 1 at least
            raise InputError(problem, fix=f"use --devices-per-node {whole}")

    def gather(self, unit: int, out: Tensor) -> None:
        if not self._far:
            super().gather(unit, out)
            return
        shape, near = self.units[unit], self.memory.near
        super().gather(unit, out[near.start * shape.gather : near.stop * shape.gather])
        whole, above = out.view(self.memory.size, shape.gather), self.memory.size - near.stop
        for piece, shards in _rounds(self._shard_room.view(shape.dtype), shape.gather, len(self._far)):
            start = self._weights[unit] + shape.dtype.itemsize * piece.start
            self.memory.fetch_all(_places(self._far, start, shards))
            if above:  # they come first
                whole[near.stop :, piece].copy_(shards[:above])
            if near.start:
                whole[: near.start, piece].copy_(shards[above:])

    def push(self, unit: int, gradients: Tensor) -> None:
        if not self._far:
            super().push(unit, gradients)
            return
        n, near, first = self.units[unit].push, self.memory.near, unit not in self._sent
        super().push(unit, gradients[near.start * n : near.stop * n])
        parts = gradients.view(self.memory.size, n)
        for piece, sums in _rounds(self._sum_room, n, len(self._far)):
            self._arrive()
            places = _places(self._far, self._slot_start(unit, self.memory.rank, 0) + 4 * piece.start, sums)
            if not first:
                self.memory.fetch_all(places)
            for device, total in zip(self._far, sums, strict=True):
                if first:
                    total.copy_(parts[device, piece])
                else:
                    add(total, parts[device, piece])
            self.memory.send_all(places)
            self._on_the_way = True
        self._sent.add(unit)

    def _arrive(self) -> None:
        """Wait until what was sent has arrived, before its memory is used again."""
        if self._on_the_way:
            self.memory.arrive()
            self._on_the_way = False

    def complete(self) -> None:
        """Send zeros to far owners that got nothing: otherwise its slots hold the last minibatch's gradients."""
        super().complete()
        self._arrive()
        missing = [unit for unit, shape in enumerate(self.units) if shape.push and unit not in self._sent]
        if self._far and missing:  # all are sent the same zeros
            self._sum_room[: max(self.units[unit].push for unit in missing)].zero_()
            for unit in missing:
                start = self._slot_start(unit, self.memory.rank, 0)
                for piece, zeros in _rounds(self._sum_room, self.units[unit].push, 1):
                    every = zeros.expand(len(self._far), -1)
                    self.memory.send_all(_places(self._far, start + 4 * piece.start, every))
            self.memory.arrive()
        self._sent.clear()

    def offer_sums(self) -> bool:
        """Add up each counterpart's slots, in the order of writers: one sum of a node crosses the network. Nobody
        fetches it before all have met."""
        for unit in range(len(self.units)):
            for owner in self._counterparts:
                total = self.slot(self.memory.rank, unit, 0, owner)
                for writer in range(1, self._slots):
                    total.add_(self.slot(self.memory.rank, unit, writer, owner))
        return bool(self._counterparts)

    def sum_nodes(self) -> None:
        others = self._counterparts
        for unit, shape in enumerate(self.units):
            total = self.slot(self.memory.rank, unit, 0)
            for piece, sums in _rounds(self._sum_room, shape.push, len(others)) if others else ():
                start = self._slot_start(unit, 0, self.memory.rank) + 4 * piece.start
                self.memory.fetch_all(_places(others, start, sums))
                for each in sums:
                    total[piece].add_(each)

    def _fetch_unit(self, unit: int) -> None:
        places = [(device, *self._weights_at(unit, device)) for device in self._counterparts if self.units[unit].gather]
        self.memory.fetch_all([(device, at, self._bytes(self.memory.rank, at, size)) for device, at, size in places])
        self.clear(unit)

    def every_note(self, count: int) -> Tensor:
        rows = self._note_room[: len(self._beyond) * count].view(len(self._beyond), count)
        self.memory.fetch_all(_places(self._beyond, self._notes, rows))
        theirs = dict(zip(self._beyond, rows, strict=True))
        return torch.stack([theirs[d] if d in theirs else self.notes(d, count) for d in range(self.memory.size)])


def _places(devices: Sequence[int], start: int, rows: Iterable[Tensor]) -> list[tuple[int, int, Tensor]]:
    """Return the same place in the arenas of these ranks, and the bytes here for each."""
    return [(device, start, row.view(torch.uint8)) for device, row in zip(devices, rows, strict=True)]


def _rounds(room: Tensor, n: int, devices: int) -> Iterator[tuple[slice, Tensor]]:
    """Parts of so many elements: all of them end to end, or pieces, of which the room has one for each device at once.
    Which piece it is, and its place for each."""
    step = len(room) // devices
    step = step if step >= n else step // ALIGN * ALIGN or step
    for start in range(0, n, max(1, step)):
        piece = slice(start, min(start + step, n))
        size = piece.stop - start
        yield piece, room[: size * devices].view(devices, size)


def _torn(near: Sequence[range], per_node: int) -> list[int]:
    """Return the ranks without an address of some rank of their node."""
    nodes = [range(first, first + per_node) for first in range(0, len(near), per_node)]
    return [device for device, run in enumerate(near) if not set(nodes[device // per_node]) <= set(run)]

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
from odc_engine.memory.arena import ALIGN, NOTES, Arena, UnitShape, aligned
from odc_engine.memory.spare import room_for
from odcsim.errors import InputError


class FarArena(Arena):
    """Fetch and send the parts of far ranks. Slots only: a network cannot add to a sum."""

    def __init__(
        self, memory: FarMemory, units: Sequence[UnitShape], accumulate: str, per_node: int | None = None
    ) -> None:
        self._remote = memory
        self._largest = max((aligned(u.gather * u.dtype.itemsize) for u in units), default=0)
        self._longest = max((aligned(4 * u.push) for u in units), default=0)
        super().__init__(memory, units, accumulate, per_node)
        ring = [(memory.rank + i) % memory.size for i in range(1, memory.size)]
        self._far = [device for device in ring if device not in self._owners]
        gathered, sums, notes = self._rooms()
        self._fetched = self._bytes(memory.rank, self._spare, gathered)
        self._sums = self._bytes(memory.rank, self._spare + gathered, sums).view(torch.float32)
        self._notes_of = self._bytes(memory.rank, self._spare + gathered + sums, notes)
        self._given: set[int] = set()  # units that far owners have got something of in this minibatch
        self._on_the_way = False  # sums that may not have arrived, and so are in their room yet

    def _check_reach(self) -> None:
        near, size, k = self._remote.every_near, self.memory.size, self.per_node
        if self.nodes == 1 and not self._remote.all_near and self.accumulate != "slots":
            beyond = [d for d in range(size) if d not in self.memory.near]
            told = f"devices {', '.join(map(str, beyond))}" if beyond else "other devices' peers"
            raise InputError(
                f"{told} are reached over a network, which cannot add to a sum",
                fix="use --accumulate slots, or --sharding hybrid",
            )
        if self.nodes > 1 and (torn := _torn(near, k)):
            told = f"device {torn[0]} has no address of all {k} devices of its node"
            whole = max(n for n in range(1, size) if size % n == 0 and not _torn(near, n))  # 1 at least
            raise InputError(f"nodes of {k}: {told}", fix=f"use --devices-per-node {whole}")

    def _spare_size(self) -> int:
        return sum(self._rooms()) + super()._spare_size()

    def _rooms(self) -> tuple[int, int, int]:
        """Return bytes for shards gathered from far ranks, for sums and for notes. Which ranks are far is not known
        yet."""
        others = self.memory.size - 1
        if self.nodes > 1:
            return 0, room_for(self._longest, self.nodes - 1), NOTES * others
        return room_for(self._largest, others), room_for(self._longest, others), NOTES * others

    def gather(self, unit: int, out: Tensor) -> None:
        super().gather(unit, out)
        shape = self.units[unit]
        if not self._far or not shape.gather:
            return
        at, whole = self._weights_at(unit, self._far[0])[0], out.view(self.memory.size, shape.gather)
        # The far ones come in the order of a ring, so they are two runs of devices at most.
        above = self.memory.size - self.memory.near.stop
        for piece, shards in _rounds(self._fetched.view(shape.dtype), shape.gather, len(self._far)):
            start = at + shape.dtype.itemsize * piece.start  # in everybody's arena
            pairs = zip(self._far, shards, strict=True)
            self._remote.fetch_all([(device, start, shard.view(torch.uint8)) for device, shard in pairs])
            for first, stop in ((0, above), (above, len(self._far))):
                if first < stop:
                    whole[self._far[first] : self._far[stop - 1] + 1, piece].copy_(shards[first:stop])

    def push(self, unit: int, gradients: Tensor) -> None:
        super().push(unit, gradients)
        n = self.units[unit].push
        for piece, sums in _rounds(self._sums, n, len(self._far)) if self._far else ():
            self._arrive()
            places = self._at_owners(unit, piece, sums)
            if unit in self._given:
                self._remote.fetch_all(places)
            for device, total in zip(self._far, sums, strict=True):
                part = gradients[device * n : (device + 1) * n][piece]
                if unit in self._given:
                    _add(total, part)
                else:
                    total.copy_(part)
            self._send(places)
        self._given.add(unit)

    def _at_owners(self, unit: int, piece: slice, sums: Iterable[Tensor]) -> list[tuple[int, int, Tensor]]:
        """Return where a piece of this rank's slot lies at every far owner, and its values there."""
        start = self._slot_start(unit, self.memory.rank) + 4 * piece.start
        return [(device, start, each.view(torch.uint8)) for device, each in zip(self._far, sums, strict=True)]

    def _send(self, places: Sequence[tuple[int, int, Tensor]]) -> None:
        self._remote.send_all(places)
        self._on_the_way = True

    def _arrive(self) -> None:
        """Wait until what was sent has arrived, before its memory is used again."""
        if self._on_the_way:
            self._remote.arrive()
            self._on_the_way = False

    def complete(self) -> None:
        """Send zeros to far owners that got nothing: otherwise its slots hold the last minibatch's gradients."""
        super().complete()
        self._arrive()
        missing = [unit for unit, shape in enumerate(self.units) if shape.push and unit not in self._given]
        if self._far and missing:  # all are sent the same zeros
            zeros = self._sums[: max(self.units[unit].push for unit in missing)].zero_()
            for unit in missing:
                for piece, _ in _rounds(self._sums, self.units[unit].push, 1):
                    same = [zeros[: piece.stop - piece.start]] * len(self._far)
                    self._send(self._at_owners(unit, piece, same))
            self._arrive()
        self._given.clear()

    def offer_sums(self) -> bool:
        """Add up each counterpart's slots, in the order of writers: one sum of a node crosses the network. Nobody
        fetches it before all have met."""
        counterparts = self._counterparts()
        for unit in range(len(self.units)):
            for owner in counterparts:
                total = self.slot(self.memory.rank, unit, 0, owner)
                for writer in range(1, self._slots):
                    total.add_(self.slot(self.memory.rank, unit, writer, owner))
        return bool(counterparts)

    def sum_nodes(self) -> None:
        others = self._counterparts()
        for unit, shape in enumerate(self.units):
            total = self.slot(self.memory.rank, unit, 0)
            for piece, sums in _rounds(self._sums, shape.push, len(others)) if others else ():
                at = self._slot_start(unit, 0, self.memory.rank) + 4 * piece.start
                places = [(device, at, each.view(torch.uint8)) for device, each in zip(others, sums, strict=True)]
                self._remote.fetch_all(places)
                for each in sums:
                    total[piece].add_(each)

    def _take_in(self, unit: int) -> None:
        places = []
        for device in self._counterparts() if self.units[unit].gather else ():
            start, size = self._weights_at(unit, device)
            places.append((device, start, self._bytes(self.memory.rank, start, size)))
        self._remote.fetch_all(places)
        self.clear(unit)

    def every_note(self, count: int) -> Tensor:
        beyond = [device for device in range(self.memory.size) if device not in self.memory.near]
        rows = self._notes_of[: len(beyond) * count].view(-1, count)
        theirs = dict(zip(beyond, rows, strict=True)) if beyond else {}
        self._remote.fetch_all([(device, self._notes, each) for device, each in theirs.items()])
        return torch.stack([theirs[d] if d in theirs else self.notes(d, count) for d in range(self.memory.size)])


def _rounds(room: Tensor, n: int, devices: int) -> Iterator[tuple[slice, Tensor]]:
    """Parts of so many elements: all of them end to end, or pieces, of which the room has one for each device at once.
    Which piece it is, and its place for each."""
    step = len(room) // devices
    step = step if step >= n else step // ALIGN * ALIGN or step
    for start in range(0, n, max(1, step)):
        piece = slice(start, min(start + step, n))
        size = piece.stop - start
        yield piece, room[: size * devices].view(devices, size)


def _add(total: Tensor, part: Tensor) -> None:
    """Add, converting another dtype first on a CPU: adding it at once runs seven times slower."""
    total.add_(part.to(total.dtype) if total.device.type == "cpu" else part)


def _torn(near: Sequence[range], per_node: int) -> list[int]:
    """Return the ranks without an address of some rank of their node."""
    firsts = [device // per_node * per_node for device in range(len(near))]
    return [d for d, first in enumerate(firsts) if not set(range(first, first + per_node)) <= set(near[d])]

"""A rank's arena: its weights, which peers gather, and its sums of gradients, to which peers push.

Written once for every transport, which provides peers' memory as tensors, and locks.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from odc_engine.backends.base import MAIN, Lockable, PeerMemory
from odc_engine.backends.links import SLOTS
from odc_engine.memory.brought import Brought
from odcsim.errors import InputError

CHUNK = 1 << 20  # bytes that one lock covers, and that one conversion to fp32 takes: small enough for a core's cache
ALIGN = 64
NOTES = 1 << 16  # bytes at the end with which a device tells peers which parameters it used


@dataclass(frozen=True, slots=True)
class UnitShape:
    """One FSDP unit's shards: how many elements a rank publishes, and of how many it owns the gradient."""

    name: str
    gather: int
    push: int
    dtype: torch.dtype  # of what is published


@dataclass(frozen=True, slots=True, eq=False)
class _Chunk:
    """What one lock covers: a part of the gradients, the sum to which it is added, and that sum's place in its
    arena."""

    device: int
    part: slice
    into: Tensor
    start: int
    stop: int

    def add(self, gradients: Tensor) -> None:
        piece = gradients[self.part]
        # Another dtype is converted by itself first: adding bf16 to fp32 at once runs seven times slower.
        self.into.add_(piece if piece.dtype == torch.float32 else piece.to(torch.float32))


class Arena:
    """Typed views of the arenas of all near ranks: weights, then gradients, unit after unit, in the same layout.

    With hybrid sharding (several nodes of `per_node` ranks) a rank also holds copies of the shards of its counterparts,
    the ranks with its local rank on other nodes, of weights and of gradients. So gathers and pushes find everything
    inside the node. `sum_nodes` and `fetch` exchange between nodes. With hierarchical transfers, `begin` and `bring`
    replace `fetch`: units are fetched one by one, overlapped with training.

    `locked` keeps one sum per unit, to which every rank adds under a lock. `slots` keeps one sum per writer, added up
    in rank order at the end: the same bits in every run, for as many times the memory as there are ranks.
    """

    def __init__(
        self, memory: PeerMemory, units: Sequence[UnitShape], accumulate: str, per_node: int | None = None
    ) -> None:
        self.memory, self.units, self.accumulate = memory, tuple(units), accumulate
        self.per_node = per_node or memory.size
        if memory.size % self.per_node:
            raise InputError(f"nodes of {per_node} for {memory.size} devices", fix="give a divisor of the devices")
        self.nodes = memory.size // self.per_node
        self._check_adding()
        self._slots = self.per_node if accumulate == "slots" else 1
        self._weights: list[int] = []
        self._grads: list[int] = []
        end = 0
        for unit in self.units:
            self._weights.append(end)
            end += aligned(unit.gather * unit.dtype.itemsize) * self.nodes
        for unit in self.units:
            self._grads.append(end)
            end += self._slot_size(unit) * self._slots * self.nodes
        self._notes, self._flags = end, aligned(end + NOTES)
        self._row = aligned(4 * self.per_node)
        self._spare = self._flags + self._row * len(self.units)
        memory.allocate(self._spare + self._spare_size())
        self._check_adding()  # a far memory knows only now whom it has addresses of
        self._check_reach()
        self._brought = self._told_by_node()
        # Whose shards are gathered and pushed to by addresses: all, where a node holds a part for each.
        self._owners = range(memory.size) if self.nodes > 1 else memory.near
        # Slicing and reinterpreting take as long as moving 100 KB, so no transfer does them anew.
        self._shards = [
            [self.weights(self._stand_in(owner), unit, owner) for owner in self._owners]
            for unit in range(len(self.units))
        ]
        self._chunks = [self._chunked(unit) for unit in range(len(self.units))]

    def _chunked(self, unit: int) -> list[_Chunk]:
        """Return the chunks to which this rank adds, its own sum first, so that ranks do not all start at the same
        one."""
        n, found, owners = self.units[unit].push, [], self._owners
        for i in range(len(owners)):
            owner = owners[(self.memory.rank - owners.start + i) % len(owners)]
            device = self._stand_in(owner)
            into, place = self.slot(device, unit, self.memory.rank, owner), self._slot_start(unit, 0, owner)
            for start in range(0, n, CHUNK // 4):
                stop = min(n, start + CHUNK // 4)
                part = slice(owner * n + start, owner * n + stop)
                found.append(_Chunk(device, part, into[start:stop], place + 4 * start, place + 4 * stop))
        return found

    def _told_by_node(self) -> Brought:
        first = self.memory.rank // self.per_node * self.per_node
        node = range(first, first + self.per_node) if self.nodes > 1 else range(self.memory.rank, self.memory.rank + 1)
        size = self._row * len(self.units)
        rows = [self._bytes(device, self._flags, size).view(torch.int32) for device in node]
        tables = [each.view(len(self.units), self._row // 4)[:, : len(node)] for each in rows]
        return Brought(self.memory, tables, node.start)

    def _check_adding(self) -> None:
        if self.accumulate != "slots" and (why := self.memory.why_not_add):
            raise InputError(why, fix=SLOTS)

    def _check_reach(self) -> None:
        """Raise InputError, on all ranks, if the transport does not reach all memory that it has to."""

    def _spare_size(self) -> int:
        """Return how many bytes behind the arena the transport needs for itself."""
        return 0

    def _stand_in(self, device: int) -> int:
        """Return the rank that holds another rank's shards in this node: the one with its local rank."""
        return self.memory.rank // self.per_node * self.per_node + device % self.per_node

    def _counterparts(self) -> list[int]:
        """Return the ranks of other nodes with this local rank."""
        place = self.memory.rank % self.per_node
        return [d for d in range(place, self.memory.size, self.per_node) if d != self.memory.rank]

    def weights(self, device: int, unit: int, owner: int | None = None) -> Tensor:
        """Return the weights of a unit that a rank has published, or its copy of what its counterpart `owner`
        published."""
        start, size = self._weights_at(unit, device if owner is None else owner)
        return self._bytes(device, start, size).view(self.units[unit].dtype)

    def _weights_at(self, unit: int, owner: int) -> tuple[int, int]:
        """Return where an arena holds the weights that an owner with its local rank published, and how many bytes."""
        size = self.units[unit].gather * self.units[unit].dtype.itemsize
        return self._weights[unit] + aligned(size) * (owner // self.per_node), size

    def slot(self, device: int, unit: int, writer: int, owner: int | None = None) -> Tensor:
        """Return the sum to which a writer in the rank's node adds gradients that the rank or a counterpart owns."""
        start = self._slot_start(unit, writer, device if owner is None else owner)
        return self._bytes(device, start, 4 * self.units[unit].push).view(torch.float32)

    def _slot_start(self, unit: int, writer: int, owner: int = 0) -> int:
        number = owner // self.per_node * self._slots + (writer % self.per_node if self._slots > 1 else 0)
        return self._grads[unit] + self._slot_size(self.units[unit]) * number

    @staticmethod
    def _slot_size(unit: UnitShape) -> int:
        return aligned(4 * unit.push)

    def notes(self, device: int, count: int) -> Tensor:
        """Return one byte for each of `count` parameters that a rank may have used."""
        if count > NOTES:
            raise InputError(f"{count} parameters", fix=f"at most {NOTES} are supported")
        return self._bytes(device, self._notes, count)

    def every_note(self, count: int) -> Tensor:
        """Return the notes of all ranks, one row each."""
        return torch.stack([self.notes(device, count) for device in range(self.memory.size)])

    def _bytes(self, device: int, start: int, size: int) -> Tensor:
        return self.memory.view(device)[start : start + size]

    def _near_part(self, whole: Tensor, n: int) -> Tensor:
        """Select owners that are reached by address from a tensor with n elements per rank."""
        owners = self._owners
        return whole if len(owners) == self.memory.size else whole[owners.start * n : owners.stop * n]

    def gather(self, unit: int, out: Tensor) -> None:
        """Copy every rank's shard into `out`, from this rank's node."""
        self.memory.check()
        self._brought.wait_for(unit)
        # One call, and a plain memcpy inside, which copy_ is not.
        torch.cat(self._shards[unit], out=self._near_part(out, self.units[unit].gather))

    def push(self, unit: int, gradients: Tensor) -> None:
        """Add each owner's part of a unit's gradients to its sum in this rank's node, in fp32."""
        self.memory.check()
        if self._slots > 1:
            for chunk in self._chunks[unit]:
                chunk.add(gradients)
            return
        busy = [chunk for chunk in self._chunks[unit] if not self._added_at_once(chunk, gradients)]
        for chunk in busy:  # others held these when it was their turn
            with self._locks.lock(chunk.device, chunk.start, chunk.stop):
                chunk.add(gradients)

    def _added_at_once(self, chunk: _Chunk, gradients: Tensor) -> bool:
        if not self._locks.try_lock(chunk.device, chunk.start, chunk.stop):
            return False
        try:
            chunk.add(gradients)
        finally:
            self._locks.unlock(chunk.device, chunk.start, chunk.stop)
        return True

    @property
    def _locks(self) -> Lockable:
        if not isinstance(self.memory, Lockable):
            raise InputError("this memory has no locks to add to a sum under", fix="use --accumulate slots")
        return self.memory

    def complete(self) -> None:
        """End the pushes of this minibatch. Called before ranks synchronize."""

    def meet(self) -> None:
        """Synchronize when this rank's pushes are done; return when those of all ranks are."""
        self.memory.meet(MAIN)
        self._brought.check()

    def offer_sums(self) -> bool:
        """Make this node's sums ready for their owners on other nodes. Returns whether ranks have to meet before
        `sum_nodes`: not here, where counterparts read them as they lie."""
        return False

    def sum_nodes(self) -> None:
        """Add the sums of other nodes to this rank's gradients. Only after a synchronization.

        It adds in the order of nodes, and of writers in slots: the same bits in every run.
        """
        self.memory.check()
        for unit in range(len(self.units)):
            total = self.slot(self.memory.rank, unit, 0)
            for device in self._counterparts():
                for writer in range(self._slots):
                    total.add_(self.slot(device, unit, writer, self.memory.rank))

    def fetch(self) -> None:
        """Copy what counterparts have published into this node, and forget the gradients, which are not read any more.

        Only after all ranks have published, and while none gathers.
        """
        self.memory.check()
        for unit in range(len(self.units)):
            self._take_in(unit)

    def _take_in(self, unit: int) -> None:
        for device in self._counterparts():
            self.weights(self.memory.rank, unit, device).copy_(self.weights(device, unit))
        self.clear(unit)

    def begin(self) -> None:
        """Mark all units as not fetched yet, after all ranks have published: gathers wait until their node has
        fetched them."""
        self._brought.begin()

    def bring(self, unit: int) -> None:
        """Fetch one unit, as `fetch` does for all. Other ranks gather meanwhile, and push once they have this unit."""
        self.memory.check()
        self._take_in(unit)
        self._brought.tell(unit)

    def gradients(self, unit: int) -> Tensor:
        """Return the sum of all pushes to this rank, in place. Only after pushes are done."""
        total = self.slot(self.memory.rank, unit, 0)
        for writer in range(1, self._slots):
            total.add_(self.slot(self.memory.rank, unit, writer))
        return total

    def clear(self, unit: int) -> None:
        """Forget the gradients. Only while no rank pushes or sums nodes."""
        for owner in (self.memory.rank, *self._counterparts()):
            for writer in range(self._slots):
                self.slot(self.memory.rank, unit, writer, owner).zero_()


def aligned(n: int) -> int:
    """Round up to the next aligned offset."""
    return -(-n // ALIGN) * ALIGN

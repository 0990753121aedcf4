"""A rank's arena: its weights, which peers gather, and its sums of gradients, to which peers push.

Written once for every transport, which provides peers' memory as tensors, and locks.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from odc_engine.backends.base import MAIN, Lockable, PeerMemory
from odc_engine.backends.links import SLOTS
from odc_engine.backends.patience import Patience
from odc_engine.errors import PeerLost
from odcsim.errors import InputError

CHUNK = 1 << 20  # bytes that one lock covers, and that one conversion to fp32 takes: small enough for a core's cache
ALIGN = 64
NOTES = 1 << 16  # bytes at the end with which a device tells peers which parameters it used
RETRY = 50e-6  # seconds from one look at what the node has fetched to the next ...
AT_ONCE = 50  # ... after so many without a pause


@dataclass(frozen=True, slots=True)
class UnitShape:
    """One FSDP unit's shards: how many elements a rank publishes, and of how many it owns the gradient."""

    name: str
    gather: int
    push: int
    dtype: torch.dtype  # of what is published


class Arena:
    """Typed views of the arenas of all near ranks: weights, then gradients, unit after unit, in the same layout.

    With hybrid sharding (several nodes of `per_node` ranks) a rank also holds copies of the shards of its counterparts,
    the ranks with its local rank on other nodes, of weights and of gradients. So gathers and pushes find everything
    inside the node. `sum_nodes` and `fetch` exchange between nodes. With hierarchical transfers, `begin` and `bring`
    replace `fetch`: units are fetched one by one, overlapped with training, and a gather waits until its node has all
    parts of the unit.

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
        first = memory.rank // self.per_node * self.per_node
        local = range(memory.rank - first, memory.size, self.per_node)
        self._counterparts = [device for device in local if device != memory.rank]
        self._slots = self.per_node if accumulate == "slots" else 1
        self._weights: list[int] = []  # where each unit begins, and so on
        self._sums: list[int] = []
        end = 0
        for unit in self.units:
            self._weights.append(end)
            end += aligned(unit.gather * unit.dtype.itemsize) * self.nodes
        for unit in self.units:
            self._sums.append(end)
            end += aligned(4 * unit.push) * self._slots * self.nodes
        self._notes, fetches = end, aligned(end + NOTES)
        row = aligned(4 * self.per_node)
        self._refuse_adding()
        self._allocate(fetches + row * len(self.units))
        # Whose shards are gathered and pushed to by addresses: all, where a node holds a part for each.
        self._owners = range(memory.size) if self.nodes > 1 else memory.near
        # With who holds their part in this node: the rank with the owner's local rank.
        self._holders = [(first + owner % self.per_node, owner) for owner in self._owners]
        # Slicing and reinterpreting take as long as moving 100 KB, so no transfer does them anew.
        self._shards = [[self.weights(at, unit, of) for at, of in self._holders] for unit in range(len(self.units))]
        # Which publication a rank of the node has fetched last (none before the first): a row for each unit, a column
        # for each of these ranks, once in the arena of each.
        node = range(first, first + self.per_node)
        self._fetchers = node if self.nodes > 1 else range(memory.rank, memory.rank + 1)
        flags = [self._bytes(device, fetches, row * len(self.units)).view(torch.int32) for device in self._fetchers]
        self._fetches = [each.view(len(self.units), row // 4)[:, : len(self._fetchers)] for each in flags]
        self._column = memory.rank - self._fetchers.start
        self._fetches[self._column].zero_()
        self._publication = 0
        self._prepare()

    def _allocate(self, nbytes: int) -> None:
        """Make the arenas, or raise InputError on all ranks."""
        self.memory.allocate(nbytes)
        self._refuse_adding()  # a far memory knows only now whom it has addresses of

    def _refuse_adding(self) -> None:
        if self.accumulate != "slots" and (why := self.memory.why_not_add):
            raise InputError(why, fix=SLOTS)

    def _prepare(self) -> None:
        """Cut each unit into chunks, those of the own sum first, so that ranks do not all start at the same one."""
        self._locks = self.memory if isinstance(self.memory, Lockable) else None
        rank, near = self.memory.rank, self._owners.start
        order = self._holders[rank - near :] + self._holders[: rank - near]
        # The part of the gradients, the sum to which it is added, and that sum's place: in whose arena, from where to
        # where. That is what one lock covers.
        self._chunks: list[list[tuple[slice, Tensor, tuple[int, int, int]]]] = [[] for _ in self.units]
        for unit, shape in enumerate(self.units):
            for holder, owner in order:
                total, at = self.slot(holder, unit, rank, owner), self._slot_start(unit, 0, owner)
                begin = (owner - near) * shape.push
                for start in range(0, shape.push, CHUNK // 4):
                    stop = min(shape.push, start + CHUNK // 4)
                    part, place = slice(begin + start, begin + stop), (holder, at + 4 * start, at + 4 * stop)
                    self._chunks[unit].append((part, total[start:stop], place))

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

    def _slot_start(self, unit: int, writer: int, owner: int) -> int:
        number = owner // self.per_node * self._slots + (writer % self.per_node if self._slots > 1 else 0)
        return self._sums[unit] + aligned(4 * self.units[unit].push) * number

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

    def gather(self, unit: int, out: Tensor) -> None:
        """Copy every rank's shard into `out`, from this rank's node."""
        self.memory.check()
        if self._publication:
            self._wait_for_node(unit)
        # One call, and a plain memcpy inside, which copy_ is not.
        torch.cat(self._shards[unit], out=out)

    def push(self, unit: int, gradients: Tensor) -> None:
        """Add each owner's part of a unit's gradients to its sum in this rank's node, in fp32."""
        self.memory.check()
        if self._slots > 1:
            for part, total, _ in self._chunks[unit]:
                add(total, gradients[part])
            return
        if (locks := self._locks) is None:
            raise InputError("this memory has no locks to add to a sum under", fix="use --accumulate slots")
        busy = []
        for part, total, place in self._chunks[unit]:
            if not locks.try_lock(*place):
                busy.append((part, total, place))
                continue
            try:
                add(total, gradients[part])
            finally:
                locks.unlock(*place)
        for part, total, place in busy:  # others held these when it was their turn
            with locks.lock(*place):
                add(total, gradients[part])

    def complete(self) -> None:
        """End the pushes of this minibatch. Called before ranks synchronize."""

    def meet(self) -> None:
        """Synchronize when this rank's pushes are done; return when those of all ranks are."""
        self.memory.meet(MAIN)

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
            for device in self._counterparts:
                for writer in range(self._slots):
                    total.add_(self.slot(device, unit, writer, self.memory.rank))

    def fetch(self) -> None:
        """Copy what counterparts have published into this node, and forget the gradients, which are not read any more.

        Only after all ranks have published, and while none gathers.
        """
        self.memory.check()
        for unit in range(len(self.units)):
            self._fetch_unit(unit)

    def _fetch_unit(self, unit: int) -> None:
        for device in self._counterparts:
            self.weights(self.memory.rank, unit, device).copy_(self.weights(device, unit))
        self.clear(unit)

    def begin(self) -> None:
        """Mark all units as not fetched yet, after all ranks have published: gathers wait until their node has
        fetched them."""
        self._publication += 1

    def bring(self, unit: int) -> None:
        """Fetch one unit, as `fetch` does for all. Other ranks gather meanwhile, and push once they have this unit."""
        self.memory.check()
        self._fetch_unit(unit)
        self._tell_node(unit)

    def _tell_node(self, unit: int) -> None:
        """Tell the node that this rank has fetched its part of a unit."""
        for fetches in self._fetches:
            fetches[unit, self._column] = self._publication

    def _wait_for_node(self, unit: int) -> None:
        """Wait until the node has all parts of a unit. Raises PeerLost."""
        patience, looks, last = Patience(), 0, self._fetches[self._column][unit]
        while late := (last < self._publication).nonzero().flatten().tolist():
            self.memory.check()
            if over := patience.over(self.memory, [self._fetchers[column] for column in late]):
                raise self._late(late, over)
            looks += 1
            if looks > AT_ONCE:
                time.sleep(RETRY)

    def _late(self, columns: Sequence[int], over: float) -> PeerLost:
        devices = [self._fetchers[column] for column in columns]
        return self.memory.silent(devices, f"fetched nothing from other nodes within {over:g} s")

    def gradients(self, unit: int) -> Tensor:
        """Return the sum of all pushes to this rank, in place. Only after pushes are done."""
        total = self.slot(self.memory.rank, unit, 0)
        for writer in range(1, self._slots):
            total.add_(self.slot(self.memory.rank, unit, writer))
        return total

    def clear(self, unit: int) -> None:
        """Forget the gradients, also those of counterparts. Only while no rank pushes or sums nodes."""
        size = aligned(4 * self.units[unit].push) * self._slots * self.nodes
        self._bytes(self.memory.rank, self._sums[unit], size).zero_()


def aligned(n: int) -> int:
    """Round up to the next aligned offset."""
    return -(-n // ALIGN) * ALIGN


def add(total: Tensor, part: Tensor) -> None:
    """Add to a sum in fp32. On a CPU another dtype is converted by itself first: adding bf16 to fp32 at once runs seven
    times slower."""
    total.add_(part if part.dtype == torch.float32 or total.is_cuda else part.to(torch.float32))

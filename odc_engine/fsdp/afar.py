"""What one mesh of shards over several machines costs: bytes that pass the network, told once, with the way out.

Every device gathers every other machine's shards in forward and, unless they stay, in backward, and pushes gradients in
fp32: over what is in its slot at first, and from the second microbatch on it fetches the slot to add to it. Replicas
that are each on one machine exchange one sum of their gradients once a minibatch.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from odc_engine.backends.base import FarMemory, PeerMemory
from odc_engine.fsdp.units import Unit


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes that a device fetches from other machines and sends there for a microbatch."""

    gathered: int
    pushed: int

    def fetched(self, microbatches: int) -> int:
        """Of a minibatch."""
        return microbatches * self.gathered + max(0, microbatches - 1) * self.pushed

    def sent(self, microbatches: int) -> int:
        """Of a minibatch. Who has none says so by zeros."""
        return max(1, microbatches) * self.pushed


def traffic(model: nn.Module, units: Sequence[Unit], others: int) -> Traffic:
    """Of a device that has so many devices on other machines."""
    shards = sum(_gathers(unit, model) * unit.shape.gather * unit.shape.dtype.itemsize for unit in units)
    return Traffic(others * shards, others * 4 * sum(unit.shape.push for unit in units))


def _gathers(unit: Unit, model: nn.Module) -> int:
    """Of a microbatch."""
    return 2 if unit.group.reshards_after_forward(root=unit.module is model) else 1


def between_replicas(units: Sequence[Unit], size: int, machines: int) -> int:
    """Bytes that a device passes on in a ring for a minibatch, where each machine has a replica."""
    shard = 4 * size * sum(unit.shape.push for unit in units) // (size // machines)
    return 2 * (machines - 1) * shard // machines


def costs(memory: PeerMemory, model: nn.Module, units: Sequence[Unit]) -> list[str]:
    """In lines, for who has not chosen the memory. None where all devices are near."""
    if not isinstance(memory, FarMemory) or memory.all_near:
        return []
    machines = list(dict.fromkeys(memory.every_near))
    each = traffic(model, units, memory.size - len(memory.near))
    own = sum(4 * unit.shape.push for unit in units)
    lines = [
        f"odc_engine: one mesh of shards lies over {len(machines)} machines. Of each device "
        f"{_told(each.gathered + each.pushed)} pass the network for a minibatch's first microbatch and "
        f"{_told(each.gathered + 2 * each.pushed)} for each later one; its sums take {_told(own * memory.size)}, "
        f"{memory.size} times its gradients."
    ]
    here = {len(near) for near in machines}
    if len(here) > 1 or here == {1}:
        return [*lines, "odc_engine: as many devices on each machine, and more than one, could be replicas instead."]
    size, kind = (len(machines), here.pop()), memory.device.type
    passed = _told(between_replicas(units, memory.size, len(machines)))
    return [
        *lines,
        f"odc_engine: with a replica on each machine it would be {passed} for a whole minibatch. Give fully_shard this "
        "mesh:",
        f'odc_engine: mesh = init_device_mesh("{kind}", {size}, mesh_dim_names=("replicate", "shard"))',
    ]


def tell(memory: PeerMemory, model: nn.Module, units: Sequence[Unit]) -> None:
    """By one device."""
    if memory.rank == 0:
        for line in costs(memory, model, units):
            print(line, file=sys.stderr, flush=True)


def _told(nbytes: float) -> str:
    return f"{nbytes / 1e9:.3g} GB" if nbytes >= 1e8 else f"{nbytes / 1e6:.3g} MB"

"""Estimate the network traffic of full sharding across several machines, and suggest hybrid sharding once.

Every rank gathers the shards of all other machines in forward and, if the unit is resharded after forward, again in
backward. It pushes gradients in fp32: the first microbatch overwrites its slot on the owner, and each later one reads
the slot to add to it. With one replica per machine, replicas exchange one sum of gradients per minibatch instead.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from odc_engine.backends.base import FarMemory, PeerMemory
from odc_engine.fsdp.units import Unit


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes that a rank reads from and writes to other machines per microbatch."""

    gathered: int
    pushed: int

    def fetched(self, microbatches: int) -> int:
        """Bytes read for a minibatch of so many microbatches."""
        return microbatches * self.gathered + max(0, microbatches - 1) * self.pushed

    def sent(self, microbatches: int) -> int:
        """Bytes written for a minibatch of so many microbatches. A rank without microbatches writes zeros."""
        return max(1, microbatches) * self.pushed


def traffic(model: nn.Module, units: Sequence[Unit], others: int) -> Traffic:
    """Return the traffic of a rank that has `others` ranks on other machines."""
    shards = sum(_gathers(unit, model) * unit.shape.gather * unit.shape.dtype.itemsize for unit in units)
    return Traffic(others * shards, others * 4 * sum(unit.shape.push for unit in units))


def _gathers(unit: Unit, model: nn.Module) -> int:
    """Count a unit's gathers per microbatch."""
    return 2 if unit.group.reshards_after_forward(root=unit.module is model) else 1


def between_replicas(units: Sequence[Unit], size: int, machines: int) -> int:
    """Return the bytes that a rank sends per minibatch in a ring all-reduce among one replica per machine."""
    shard = 4 * size * sum(unit.shape.push for unit in units) // (size // machines)
    return 2 * (machines - 1) * shard // machines


def costs(memory: PeerMemory, model: nn.Module, units: Sequence[Unit]) -> list[str]:
    """Return lines to print if the user has not chosen the memory; none if all ranks are on one machine."""
    if not isinstance(memory, FarMemory) or memory.all_near:
        return []
    machines = list(dict.fromkeys(memory.every_near))
    each = traffic(model, units, memory.size - len(memory.near))
    own = sum(4 * unit.shape.push for unit in units)
    lines = [
        f"odc_engine: the model is sharded across {len(machines)} machines. Each device moves "
        f"{_told(each.gathered + each.pushed)} over the network for a minibatch's first microbatch and "
        f"{_told(each.gathered + 2 * each.pushed)} for each later one; its gradient sums take "
        f"{_told(own * memory.size)}, {memory.size} times its gradients."
    ]
    here = {len(near) for near in machines}
    if len(here) > 1 or here == {1}:
        return [*lines, "odc_engine: hybrid sharding (HSDP) needs equally many devices, at least 2, on each machine."]
    size, kind = (len(machines), here.pop()), memory.device.type
    passed = _told(between_replicas(units, memory.size, len(machines)))
    return [
        *lines,
        f"odc_engine: with a replica on each machine (HSDP) it would be {passed} per minibatch. Give fully_shard this "
        "mesh:",
        f'odc_engine: mesh = init_device_mesh("{kind}", {size}, mesh_dim_names=("replicate", "shard"))',
    ]


def tell(memory: PeerMemory, model: nn.Module, units: Sequence[Unit]) -> None:
    """Print the lines, on one rank."""
    if memory.rank == 0:
        for line in costs(memory, model, units):
            print(line, file=sys.stderr, flush=True)


def _told(nbytes: float) -> str:
    return f"{nbytes / 1e9:.3g} GB" if nbytes >= 1e8 else f"{nbytes / 1e6:.3g} MB"

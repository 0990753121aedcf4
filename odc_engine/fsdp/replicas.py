"""FSDP2's hybrid sharding: a mesh of replicas, each of which is sharded over devices of its own.

FSDP2 reduces over replicas inside backward, where devices of unequal counts would wait for each other. Here gathers and
pushes stay inside a replica, and replicas exchange what they have summed when a minibatch is settled, which is a
meeting in any case.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from odc_engine.fsdp.groups import Group
from odcsim.errors import InputError


class Replicas:
    """Those of this device's shards, by FSDP2's own collectives."""

    def __init__(self, groups: Sequence[Group], device: torch.device) -> None:
        every = {tuple(dist.get_process_group_ranks(group.replicas)) if group.replicas else () for group in groups}
        if len(every) > 1:
            raise InputError("units are replicated over different devices", fix="give every fully_shard the same mesh")
        self._group = groups[0].replicas if groups else None
        self._device = device
        self.count, self.number = (1, 0) if self._group is None else (self._group.size(), self._group.rank())

    def refuse_queue(self) -> None:
        if self.count > 1:
            raise InputError("a queue of microbatches over replicas", fix="use a one-dimensional mesh")

    def every(self, rows: Tensor) -> Tensor:
        """The rows of all replicas' devices."""
        if self._group is None:
            return rows
        mine = rows.to(self._device).contiguous()
        found = [torch.empty_like(mine) for _ in range(self.count)]
        dist.all_gather(found, mine, group=self._group)
        return torch.cat(found).to(rows.device)

    def sum(self, total: Tensor) -> Tensor:
        """The same bits on all of them: whoever steps with it keeps replicas equal."""
        if self._group is None:
            return total
        summed = total.clone()
        dist.all_reduce(summed, group=self._group)
        return summed


def refuse_replicas(groups: Sequence[Group]) -> None:
    for group in groups:
        if group.replicas is not None:
            raise InputError(
                f"unit {group.name} is replicated, and FSDP2 reduces over replicas inside backward",
                fix="use OnDemand, or a one-dimensional mesh",
            )

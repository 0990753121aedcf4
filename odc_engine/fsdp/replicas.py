"""HSDP: a mesh of replicas, each sharded over ranks of its own.

FSDP2 reduces over replicas inside backward, where ranks with unequal microbatch counts would wait for each other. Here
gathers and pushes stay inside a replica, and replicas all-reduce their sums in settle(), which synchronizes anyway.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from odc_engine.backends.base import MAIN, Counting, Host
from odc_engine.backends.collectives import agreed, watched
from odc_engine.errors import PeerLost
from odc_engine.fsdp.units import Mesh
from odc_engine.memory.arenas import host_of
from odcsim.errors import InputError

Ranks = TypeVar("Ranks", bound=Counting)


class Replicas:
    """The replicas of this rank's shards, which FSDP2's own collectives reach. With tensor parallelism also the
    ranks that hold other parts of the same layers: they must agree, and exchange nothing else."""

    def __init__(self, meshes: Sequence[Mesh], device: torch.device, timeout: float) -> None:
        self._group = _same([mesh.replicas for mesh in meshes], "replicated")
        self._beside = _same([mesh.beside for mesh in meshes if mesh.beside is not None], "tensor parallel")
        self._device = device
        self.count = 1 if self._group is None else self._group.size()
        self._hosts: dict[dist.ProcessGroup, Host] = {}
        with ExitStack() as opened:
            for group in (self._group, self._beside):
                if group is not None:
                    host = partial(host_of, group, timeout)
                    self._hosts[group] = agreed_by_all(meshes, opened, host)
            opened.pop_all()

    @property
    def any(self) -> bool:
        return self._group is not None

    @property
    def speaks(self) -> bool:
        """Whether this rank prints messages for its replicas and its tensor-parallel ranks."""
        return not any(group is not None and group.rank() for group in (self._group, self._beside))

    def refuse_queue(self) -> None:
        if self._group is not None or self._beside is not None:
            raise InputError(
                "a queue of microbatches over replicas or tensor parallel", fix="use a mesh of shards alone"
            )

    def refuse_retry(self) -> None:
        if self._beside is not None:
            problem = "retry() under tensor parallel: devices beside this one would wait in the layer that it left"
            raise InputError(problem, fix="use smaller microbatches")

    def every(self, rows: Tensor) -> Tensor:
        """Return the rows of all replicas' ranks, and of the tensor-parallel ranks beside them."""
        for group, host in self._hosts.items():
            mine = rows.to(self._device).contiguous()
            found = [torch.empty_like(mine) for _ in range(group.size())]
            host.meet(MAIN)  # it names who does not come, which a collective would wait for
            watched(dist.all_gather(found, mine, group=group, async_op=True), host)
            rows = torch.cat(found).to(rows.device)
        return rows

    def sum(self, total: Tensor) -> Tensor:
        """Sum over replicas. The result has the same bits on all, so that an optimizer step keeps replicas equal."""
        if self._group is None:
            return total
        summed = total.clone()
        watched(dist.all_reduce(summed, group=self._group, async_op=True), self._hosts[self._group])
        return summed

    def begin(self) -> None:
        """Begin, unless OnDemand could not be made on one of them: then none begins."""
        for host in self._hosts.values():
            host.meet(MAIN)

    def __enter__(self) -> "Replicas":
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        for host in self._hosts.values():
            host.__exit__(kind, error, trace)

    def hearing(self, move: Callable[[], None]) -> Callable[[], None]:
        """Tell these ranks if this one loses a peer in a transfer: whatever its loop does then, they wait in vain."""
        if not self._hosts:
            return move

        def told() -> None:
            try:
                move()
            except PeerLost as error:
                self.fail(error)
                raise

        return told

    def fail(self, error: BaseException) -> None:
        """Tell these ranks that this one comes to no other meeting."""
        for host in self._hosts.values():
            host.fail(error)

    def close(self) -> None:
        for host in self._hosts.values():
            host.close()


def agreed_by_all(meshes: Sequence[Mesh], opened: ExitStack, make: Callable[[], Ranks]) -> Ranks:
    """Return, opened, what is made if it could be made on all ranks of the mesh, be it over some of them: the others
    would wait for those in the next collective."""

    def attempt() -> Ranks:
        opened.enter_context(made := make())
        return made

    reached = [group for mesh in meshes for group in (mesh.devices, mesh.replicas, mesh.beside)]
    groups = [group for group in dict.fromkeys(reached) if group is not None]
    for group in groups if len(groups) > 1 else ():
        attempt = partial(agreed, group, attempt)
    return attempt()


def _same(groups: Sequence[dist.ProcessGroup | None], how: str) -> dist.ProcessGroup | None:
    every = {tuple(dist.get_process_group_ranks(group)) if group else () for group in groups}
    if len(every) > 1:
        raise InputError(f"units are {how} over different devices", fix="give every fully_shard the same mesh")
    return groups[0] if groups else None

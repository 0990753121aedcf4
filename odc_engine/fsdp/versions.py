"""Detect changed weights: version counters find most changes at no cost, and comparing bits finds all."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

from odc_engine.fsdp.units import Unit, pack

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class WeightVersions:
    """The versions of weights at construction. `steps`: optimizers with state that have stepped since."""

    def __init__(self, units: Sequence[Unit]) -> None:
        self._units = units
        self._sharded = [_sharded(unit) for unit in units]
        self._whole = [_whole(unit) for unit in units]
        self._stepped, self.steps = False, 0

    def step(self, optimizer: Optimizer, *, unchanged: bool) -> None:
        """Note a step. `unchanged`: weights have the same bits as before, whatever their versions are."""
        self.steps += bool(optimizer.state)
        if unchanged:
            self._sharded = [_sharded(unit) for unit in self._units]
        else:
            self._stepped = True

    def changed(self, unit: Unit) -> bool:
        return self._stepped or self._sharded[unit.index] != _sharded(unit)

    def changed_whole(self, unit: Unit) -> Iterator[str]:
        """Return the parameters whose whole copy was changed by other code than FSDP2's gathers."""
        for piece, noted, now in zip(unit.pieces, self._whole[unit.index], _whole(unit), strict=True):
            if now != noted:
                yield piece.name


def _sharded(unit: Unit) -> list[tuple[int, int, int]]:
    """Return versions of the DTensor and of its local tensor: an operation counts in one of them only. Loading by
    assignment replaces the DTensor."""
    return [(id(p := piece.parameter), p._version, piece.local._version) for piece in unit.pieces]


def _whole(unit: Unit) -> list[int]:
    return [piece.managed.whole._version for piece in unit.pieces]


def packed(unit: Unit, like: Tensor) -> Tensor:
    """Return a unit's current shard, packed."""
    out = torch.empty_like(like)
    pack(unit, out)
    return out


def bits(*tensors: Tensor) -> Iterator[Tensor]:
    return (each.view(_BITS[each.itemsize]) for each in tensors)


def equal(one: Tensor, other: Tensor) -> bool:
    return torch.equal(*bits(one, other))


def no_rate(optimizer: Optimizer) -> bool:
    """Whether the optimizer steps with learning rate 0."""
    return all("lr" in group and float(group["lr"]) == 0 for group in optimizer.param_groups)

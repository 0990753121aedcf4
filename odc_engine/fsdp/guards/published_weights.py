"""Whether the weights are those that were published. Peers read what was laid out, FSDP2 what is in the parameters."""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor
from torch.autograd.graph import increment_version
from torch.optim.optimizer import Optimizer

from odc_engine.fsdp.optimizers.steps import no_rate
from odc_engine.fsdp.remedies import Ways
from odc_engine.fsdp.units import Unit, pack, refuse_cast
from odcsim.errors import InputError

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Fresh:
    """Versions tell of most changes and cost nothing. Some go past them: of `.data`, by a collective into a shard, by a
    fused optimizer. So what FSDP2 hands over is held against what was laid out, too, bit by bit."""

    def __init__(self, units: Sequence[Unit], ways: Ways) -> None:
        self._units, self._ways = units, ways
        self._versions: list[list[tuple[int, int, int]]] = [[] for _ in units]
        self._whole: list[list[int]] = [[] for _ in units]
        self.stepped = False  # an optimizer has, since they were published
        self.steps = 0  # of optimizers with a state, before anything was settled
        self._unlike: list[tuple[Tensor, Unit]] = []  # on a GPU, where a look would wait for it

    def note(self) -> None:
        """They have been published. A backward pass over the former ones is an error, as after any change in place."""
        increment_version([piece.managed.whole for unit in self._units for piece in unit.pieces])
        self._versions = [_versions(unit) for unit in self._units]
        self._whole = [_whole(unit) for unit in self._units]
        self.stepped, self.steps = False, 0
        self._unlike.clear()

    def step(self, optimizer: Optimizer, published: Callable[[int], Tensor], *, settled: bool) -> bool:
        """An optimizer has stepped. Whether with nothing, at a rate of nothing, as torch.distributed.checkpoint has one
        do that has no state yet: then all weights are what was published, whatever their versions say."""
        self.steps += not settled and bool(optimizer.state)
        empty = not settled and no_rate(optimizer)
        if empty and all(_equal(packed(unit, own := published(unit.index)), own) for unit in self._units):
            self._versions = [_versions(unit) for unit in self._units]
        else:
            self.stepped = True
        return empty

    def check(self, unit: Unit) -> None:
        for piece in unit.pieces:
            refuse_cast(piece.managed)
        if self.stepped or self._versions[unit.index] != _versions(unit):
            raise self._changed(unit)
        self.check_whole(unit)

    def check_whole(self, unit: Unit) -> None:
        """What a forward pass changes of them is its device's alone, and gone with the whole copy."""
        for piece, noted, now in zip(unit.pieces, self._whole[unit.index], _whole(unit), strict=True):
            if now != noted:
                problem = f"a forward pass changes {piece.name}, of which each device has a copy for a while"
                raise InputError(problem, fix="change it between settle() and publish(), or make it a buffer")

    def compare(self, unit: Unit, mine: Tensor, published: Tensor) -> None:
        """`mine`: the unit's shard as it is now."""
        if mine.is_cuda:
            own, theirs = _bits(mine, published)
            self._unlike.append(((own != theirs).any(), unit))
        elif not _equal(mine, published):
            raise self._changed(unit)

    def compare_shard(self, unit: Unit, published: Tensor) -> None:
        """Compare a shard that FSDP2 does not hand over, since it has kept the unit whole."""
        self.compare(unit, packed(unit, published), published)

    def _changed(self, unit: Unit) -> InputError:
        return InputError(f"weights of {unit.name} changed since they were published", fix=self._ways.now.publish)

    def look(self) -> None:
        """Refuse what only a look at the GPU could tell, and what the last pass has changed."""
        for unit in self._units:
            self.check_whole(unit)
        unlike, self._unlike = self._unlike, []
        if unlike and torch.stack([flag for flag, _ in unlike]).any():
            raise self._changed(next(unit for flag, unit in unlike if flag))


def packed(unit: Unit, like: Tensor) -> Tensor:
    """A unit's shard as it is now."""
    out = torch.empty_like(like)
    pack(unit, out)
    return out


def _equal(one: Tensor, other: Tensor) -> bool:
    return torch.equal(*_bits(one, other))


def _bits(*tensors: Tensor) -> Iterator[Tensor]:
    return (each.view(_BITS[each.itemsize]) for each in tensors)


def _versions(unit: Unit) -> list[tuple[int, int, int]]:
    """An operation on a DTensor counts in the DTensor alone, one on its local tensor in that alone. Loading by
    assignment puts another DTensor in its place."""
    return [(id(p := piece.parameter), p._version, piece.local._version) for piece in unit.pieces]


def _whole(unit: Unit) -> list[int]:
    """FSDP2's gathers do not count."""
    return [piece.managed.whole._version for piece in unit.pieces]

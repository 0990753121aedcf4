"""Stand-in for `.grad` between a unit's first push and settle(): a gradient that cannot be read yet.

FSDP2 would leave its unused output there, which clipping, steps and logs would take for gradients. A hook that FSDP2
calls after each reduction puts the stand-in in its place. It has a gradient's shape and no data: reading it raises and
names settle(), or settles if an optimizer is attached.
"""

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_map_only

from odc_engine.fsdp.remedies import Remedies
from odc_engine.fsdp.units import Piece, Unit
from odcsim.errors import InputError

SHAPES = set("size dim numel stride element_size is_floating_point is_complex __get__ __len__ __hash__".split())


class StandIn(DTensor):
    """`closed`: its OnDemand is closed, and stock FSDP2 must not add to it either. `look`: settles, until the minibatch
    has ended. `arrived`: the settled gradient."""

    piece: Piece
    remedies: Remedies
    closed: bool
    look: Callable[[], bool] | None
    arrived: DTensor | None

    @staticmethod
    def of(piece: Piece, shard: DTensor, look: Callable[[], bool] | None, remedies: Remedies) -> "StandIn":
        made: Any = shard.detach()
        made.__class__ = StandIn
        made.piece, made.remedies, made.closed, made.look, made.arrived = piece, remedies, False, look, None
        return cast(StandIn, made)

    def read(self) -> DTensor:
        """Return the settled gradient; zeros if no rank used the parameter."""
        if self.arrived is None and self.look is not None and not self.closed and not self.look():
            return self.piece.zeros()
        if self.arrived is None:
            raise self.refusal()
        return self.arrived

    def refusal(self) -> InputError:
        name = self.piece.name
        if self.closed:
            problem = f"the gradient of {name} was on its way when its OnDemand was closed"
            return InputError(problem, fix="drop it with zero_grad()")
        problem = f"the gradient of {name} is on its way to the devices that own it"
        return InputError(problem, fix=self.remedies.look)

    @property
    def _local_tensor(self) -> Tensor:  # type: ignore[override]
        return self.read().to_local()

    def __repr__(self, **_: object) -> str:  # type: ignore[override]
        return f"<the gradient of {self.piece.name}, not settled yet>"

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func.__name__ in SHAPES:
            return torch._C._disabled_torch_function_impl(func, types, args, kwargs or {})
        return cls.__torch_dispatch__(func, types, args, kwargs)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        args, kwargs = tree_map_only(StandIn, StandIn.read, (args, kwargs or {}))
        return func(*args, **kwargs)


class StandIns:
    """Those of one minibatch. `laid`: by unit, of all its trainable parameters. `left`: parameters with gradients of
    the last step, to which stock FSDP2 would add."""

    def __init__(self, units: Sequence[Unit], remedies: Remedies, look: Callable[[], bool] | None) -> None:
        self._units, self.remedies, self.look = units, remedies, look
        self.laid: dict[int, list[StandIn]] = {}
        self.left: list[str] = []
        self._due: dict[int, tuple[Tensor, StandIn]] = {}  # when FSDP2 has added to these `.grad`
        self._touched: list[tuple[str, bool]] = []  # before a push, as `touched` has them

    def _of(self, unit: Unit) -> list[StandIn]:
        if unit.index not in self.laid:
            shards, how = unit.inside.shards(), (self.look, self.remedies)
            self.laid[unit.index] = [StandIn.of(piece, shards[piece.index], *how) for piece in unit.trainable]
        return self.laid[unit.index]

    def lay_all(self, *, over: bool = False) -> None:
        """Mark all gradients as pending, also those to which this rank does not contribute. `over`: also gradients of
        the last step, which may not be read any more, only cleared."""
        for unit in self._units:
            shards = unit.inside.shards()
            for piece, stand_in in zip(unit.trainable, self._of(unit), strict=True):
                former = _not_closed(shards[piece.index].grad)
                if isinstance(former, StandIn | None) or over:
                    self.left += [] if isinstance(former, StandIn | None) else [piece.name]
                    shards[piece.index].grad = stand_in

    def make_way(self, unit: Unit, packed: Sequence[bool]) -> None:
        """Clear `.grad` where FSDP2 is about to add a push's output, and note what the user has done there. `packed`:
        which trainable parameters it adds to."""
        shards = unit.inside.shards()
        for piece in unit.trainable:
            _not_closed(shards[piece.index].grad)
        self._touched += self._changes(unit)
        for piece, stand_in, adds in zip(unit.trainable, self._of(unit), packed, strict=True):
            shards[piece.index].grad = None if adds else stand_in
            if adds:
                self._due[id(shards[piece.index])] = shards[piece.index], stand_in

    def lay(self, parameter: Tensor) -> None:
        """Take the place of what FSDP2 has just added to a parameter's `.grad`."""
        parameter.grad = self._due.pop(id(parameter))[1]

    def lay_due(self) -> None:
        """Take the places in which a pass has left nothing that ended before FSDP2 had added there."""
        for parameter, stand_in in self._due.values():
            parameter.grad = stand_in
        self._due.clear()

    def touched(self) -> list[tuple[str, bool]]:
        """Return parameters whose gradients were dropped or set before settle(), and whether they were dropped."""
        return [*self._touched, *(each for unit in self._units for each in self._changes(unit))]

    def _changes(self, unit: Unit) -> list[tuple[str, bool]]:
        shards = unit.inside.shards()
        laid = self.laid.get(unit.index, [None] * len(unit.trainable))
        now = [shards[piece.index].grad for piece in unit.trainable]
        every = zip(unit.trainable, laid, now, strict=True)
        return [(piece.name, gradient is None) for piece, stand_in, gradient in every if gradient is not stand_in]

    def all_cleared(self) -> bool:
        every = [(unit.inside.shards(), unit.trainable) for unit in self._units]
        there = [1 for shards, pieces in every for piece in pieces if shards[piece.index].grad is not None]
        return not there and not self._due  # else a pass has ended before FSDP2 had added there

    def take_up(self) -> bool:
        """Remove those of a minibatch that has not begun. Returns whether there were any."""
        laid = bool(self.laid)
        self.release()
        for unit in self._units:
            drop_gradients(unit, keep=True)
        return laid

    def arrive(self) -> None:
        """Become the settled gradients."""
        for unit in self._units if self.look is not None else ():
            shards = unit.inside.shards()
            for stand_in in self.laid.get(unit.index, ()):
                found = shards[stand_in.piece.index].grad
                stand_in.arrived = stand_in.piece.zeros() if found is None else cast(DTensor, found)

    def _every(self) -> list[StandIn]:
        return [each for unit in self.laid.values() for each in unit]

    def release(self) -> None:
        """Stop settling when these are read."""
        for stand_in in self._every():
            stand_in.look = None
        self.laid.clear()
        self._due.clear()
        self._touched.clear()
        self.left.clear()

    def close(self, *, pushed: bool) -> None:
        """End all. `pushed`: gradients were pushed, and the sums are incomplete without them."""
        self.lay_due()
        for stand_in in self._every():
            stand_in.closed = True
            if not pushed and stand_in.piece.parameter.grad is stand_in:
                stand_in.piece.parameter.grad = None


def _not_closed(gradient: Tensor | None) -> Tensor | None:
    if isinstance(gradient, StandIn) and gradient.closed:
        raise gradient.refusal()
    return gradient


def drop_gradients(unit: Unit, keep: bool) -> None:
    """Clear `.grad`, to which FSDP2 would add in backward. `keep`: clear only those that never arrived."""
    for shard in unit.inside.shards():
        if not keep or isinstance(shard.grad, StandIn):
            shard.grad = None

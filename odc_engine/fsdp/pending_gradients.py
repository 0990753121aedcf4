"""Stand-in for `.grad` between a unit's first push and settle(): a gradient that cannot be read yet.

FSDP2 would leave zeros there, which clipping, steps and logs would take for gradients. The stand-in has a gradient's
shape and no data: reading it raises and names settle(), or settles if an optimizer is attached. FSDP2 adds to it
without effect.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from odc_engine.fsdp.groups import Managed
from odc_engine.fsdp.remedies import Remedies
from odc_engine.fsdp.units import Unit
from odcsim.errors import InputError

SHAPES = set("size dim numel stride element_size is_floating_point is_complex __get__ __len__ __hash__".split())


class Reader(Protocol):
    """The loop whose gradients are read."""

    @property
    def remedies(self) -> Remedies: ...

    @property
    def look(self) -> Callable[[], bool] | None:
        """Return the call that settles when a gradient is read, and tells whether any rank has gradients."""


class PendingGradient(DTensor):
    """`managed`: its parameter. `closed`: its OnDemand is closed, and stock FSDP2 must not add to it either. `look`:
    settles, until the minibatch has ended. `arrived`: the settled gradient."""

    managed: Managed
    reader: Reader
    closed: bool
    look: Callable[[], bool] | None
    arrived: DTensor | None

    @staticmethod
    def of(managed: Managed, reader: Reader) -> "PendingGradient":
        new: Any = DTensor.__new__
        made: PendingGradient = new(PendingGradient, managed.local, managed.sharded._spec, requires_grad=False)
        made.managed, made.reader, made.closed, made.look, made.arrived = managed, reader, False, reader.look, None
        return made

    def arrive(self) -> None:
        """Become the settled gradient. If no rank used the parameter, it reads as zeros."""
        found = self.managed.sharded.grad
        self.arrived = self._zeros() if found is None else cast(DTensor, found)

    def _zeros(self) -> DTensor:
        return self.managed.like_the_shard(torch.zeros_like(self.managed.local))

    def read(self) -> DTensor:
        if self.arrived is None and self.look is not None and not self.closed and not self.look():
            return self._zeros()
        if self.arrived is None:
            raise self.refusal()
        return self.arrived

    def refusal(self) -> InputError:
        name = self.managed.name
        if self.closed:
            problem = f"the gradient of {name} was on its way when its OnDemand was closed"
            return InputError(problem, fix="drop it with zero_grad()")
        problem = f"the gradient of {name} is on its way to the devices that own it"
        return InputError(problem, fix=self.reader.remedies.look)

    @property  # type: ignore[override]
    def _local_tensor(self) -> "Tensor | _Nothing":
        return _Nothing(self) if self.arrived is None else self.arrived._local_tensor

    @_local_tensor.setter
    def _local_tensor(self, value: object) -> None:
        """Return the gradient that FSDP2 has summed."""

    def to_local(self, **how: Any) -> Tensor:
        return self.read().to_local(**how)

    def full_tensor(self, **how: Any) -> Tensor:
        return self.read().full_tensor(**how)

    def redistribute(self, *where: Any, **how: Any) -> DTensor:
        return self.read().redistribute(*where, **how)

    def __repr__(self, **_: object) -> str:  # type: ignore[override]
        return f"<the gradient of {self.managed.name}, not settled yet>"

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func.__name__ in SHAPES:
            return torch._C._disabled_torch_function_impl(func, types, args, kwargs or {})
        return _with_what_arrived(func, args, kwargs)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return _with_what_arrived(func, args, kwargs)


class _Nothing:
    """What FSDP2 finds where it adds a push's result. Any other access counts as reading the gradient."""

    def __init__(self, gradient: PendingGradient) -> None:
        self._gradient = gradient

    def __getattr__(self, name: str) -> Any:
        return getattr(self._gradient.read()._local_tensor, name)

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return _replacing(_Nothing, lambda each: each._gradient.read()._local_tensor, func, args, kwargs)

    def __iadd__(self, other: Tensor) -> "_Nothing":
        if self._gradient.closed:
            raise self._gradient.refusal()
        return self


def _with_what_arrived(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Any:
    return _replacing(PendingGradient, PendingGradient.read, func, args, kwargs)


def _replacing(
    kind: type[Any],
    by: Callable[[Any], Any],
    func: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None,
) -> Any:
    leaves, spec = tree_flatten((args, kwargs or {}))
    args, kwargs = tree_unflatten([by(each) if isinstance(each, kind) else each for each in leaves], spec)
    return func(*args, **kwargs)


class PendingGradients:
    """The pending gradients of one minibatch, by unit."""

    def __init__(self, units: Sequence[Unit], reader: Reader) -> None:
        self._units, self._reader = units, reader
        self._laid: dict[int, list[PendingGradient]] = {}
        self.left: list[str] = []  # parameters with gradients of the last step, to which stock FSDP2 would add

    def lay(self, unit: Unit, *, over: bool = False) -> None:
        """`over`: also over gradients of the last step. They may not be read any more, only cleared."""
        made = []
        for piece in unit.trainable:
            former = piece.parameter.grad
            if former is None or (over and not isinstance(former, PendingGradient)):
                self.left += [] if former is None else [piece.name]
                piece.parameter.grad = gradient = PendingGradient.of(piece.managed, self._reader)
                made.append(gradient)
        self._laid.setdefault(unit.index, made)

    def lay_all(self, *, over: bool = False) -> None:
        """Mark all gradients as pending, also those to which this rank does not contribute."""
        for unit in self._units:
            self.lay(unit, over=over)
            grads = [piece.parameter.grad for piece in unit.trainable]
            self._laid[unit.index] = [gradient for gradient in grads if isinstance(gradient, PendingGradient)]

    def take_up(self) -> bool:
        """Remove stand-ins of a minibatch that has not begun. Returns whether there were any."""
        laid = any(self._laid.values())
        self.release()
        for unit in self._units:
            drop_gradients(unit, keep=True)
        return laid

    def all_cleared(self) -> bool:
        return all(piece.parameter.grad is None for unit in self._units for piece in unit.trainable)

    def of(self, unit: Unit) -> set[int]:
        return {id(gradient) for gradient in self._laid.get(unit.index, [])}

    def arrive(self) -> None:
        for gradients in self._laid.values():
            for gradient in gradients:
                if gradient.look is not None:
                    gradient.arrive()

    def release(self) -> None:
        """Stop settling when these are read."""
        for gradients in self._laid.values():
            for gradient in gradients:
                gradient.look = None
        self._laid.clear()

    def close(self, *, pushed: bool) -> None:
        """End all stand-ins. `pushed`: gradients were pushed, and the sums are incomplete without them."""
        for gradients in self._laid.values():
            for gradient in gradients:
                gradient.closed = True
                if not pushed and gradient.managed.sharded.grad is gradient:
                    gradient.managed.sharded.grad = None


def drop_gradients(unit: Unit, keep: bool) -> None:
    """Clear `.grad`, to which FSDP2 would add in backward. `keep`: clear only those that never arrived."""
    for piece in unit.pieces:
        if not keep or isinstance(piece.parameter.grad, PendingGradient):
            piece.parameter.grad = None

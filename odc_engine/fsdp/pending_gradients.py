"""What stands in `.grad` between a unit's first push and settle(): a gradient that nobody can read yet.

FSDP2 would leave zeros there, which clipping, steps and logs take for gradients. This one has a gradient's shape and
no data: whoever reads it is told to settle first, or settles by that where an optimizer is attached. FSDP2 alone adds
to it, and what it adds is nothing.
"""

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from odc_engine.fsdp.groups import Managed
from odc_engine.fsdp.remedies import Ways
from odcsim.errors import InputError

SHAPES = set("size dim numel stride element_size is_floating_point is_complex __get__ __len__ __hash__".split())


class Unsettled(DTensor):
    """`parameter_name`: whose it is. `closed`: what took it away is gone, and stock FSDP2 must not add to it either."""

    managed: Managed
    ways: Ways
    closed: bool
    look: Callable[[], None] | None  # what settles where somebody reads it
    arrived: DTensor | None  # what it stood for

    @staticmethod
    def of(managed: Managed, ways: Ways, look: Callable[[], None] | None = None) -> "Unsettled":
        sharded = managed.sharded
        made = cast(Unsettled, cast(Any, DTensor.__new__)(Unsettled, managed.local, sharded._spec, requires_grad=False))
        made.managed, made.ways, made.closed, made.look, made.arrived = managed, ways, False, look, None
        return made

    def arrive(self) -> None:
        """The minibatch is settled. A gradient of nobody reads as zeros."""
        found = self.managed.sharded.grad
        if found is None:
            found = self.managed.like_the_shard(torch.zeros_like(self.managed.local))
        self.arrived = cast(DTensor, found)

    def read(self) -> DTensor:
        if self.arrived is None and self.look is not None and not self.closed:
            self.look()
        if self.arrived is None:
            raise self.refusal()
        return self.arrived

    def refusal(self) -> InputError:
        name = self.managed.name
        if self.closed:
            problem = f"the gradient of {name} was on its way when its OnDemand was closed"
            return InputError(problem, fix="drop it with zero_grad()")
        problem = f"the gradient of {name} is on its way to the devices that own it"
        return InputError(problem, fix=self.ways.now.look)

    @property  # type: ignore[override]
    def _local_tensor(self) -> "Tensor | _Nothing":
        return _Nothing(self) if self.arrived is None else self.arrived._local_tensor

    @_local_tensor.setter
    def _local_tensor(self, value: object) -> None:
        """What FSDP2 has added up."""

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
    """What FSDP2 finds where it adds a push's result to. Others who look for a tensor there have read the gradient."""

    def __init__(self, gradient: Unsettled) -> None:
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
    return _replacing(Unsettled, Unsettled.read, func, args, kwargs)


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

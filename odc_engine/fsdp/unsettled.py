"""What stands in `.grad` between a unit's first push and settle(): a gradient that nobody can read yet.

FSDP2 would leave zeros there, which clipping, steps and logs take for gradients. This one has a gradient's shape and
no data: whoever reads it is told to settle first. FSDP2 alone adds to it, and what it adds is nothing.
"""

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from odc_engine.fsdp.groups import Managed
from odcsim.errors import InputError

SHAPES = set("size dim numel stride element_size is_floating_point is_complex __get__ __len__ __hash__".split())


class Unsettled(DTensor):
    """`parameter_name`: whose it is. `closed`: what took it away is gone, and stock FSDP2 must not add to it either."""

    parameter_name: str
    closed: bool

    @staticmethod
    def of(managed: Managed) -> "Unsettled":
        sharded = managed.sharded
        made = cast(Unsettled, cast(Any, DTensor.__new__)(Unsettled, managed.local, sharded._spec, requires_grad=False))
        made.parameter_name, made.closed = managed.name, False
        return made

    def refusal(self) -> InputError:
        if self.closed:
            problem = f"the gradient of {self.parameter_name} was on its way when its OnDemand was closed"
            return InputError(problem, fix="drop it with zero_grad()")
        problem = f"the gradient of {self.parameter_name} is on its way to the devices that own it"
        return InputError(problem, fix="call settle() before anybody looks at gradients, clips them or steps")

    @property  # type: ignore[override]
    def _local_tensor(self) -> "_Nothing":
        return _Nothing(self)

    @_local_tensor.setter
    def _local_tensor(self, value: object) -> None:
        """What FSDP2 has added up."""

    def to_local(self, *_: object, **__: object) -> Tensor:
        raise self.refusal()

    def full_tensor(self, *_: object, **__: object) -> Tensor:
        raise self.refusal()

    def __repr__(self, **_: object) -> str:  # type: ignore[override]
        return f"<the gradient of {self.parameter_name}, not settled yet>"

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func.__name__ in SHAPES:
            return torch._C._disabled_torch_function_impl(func, types, args, kwargs or {})
        raise _first(args, kwargs).refusal()

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        raise _first(args, kwargs).refusal()


class _Nothing:
    """What FSDP2 finds where it adds a push's result to."""

    def __init__(self, gradient: Unsettled) -> None:
        self._gradient = gradient

    def __iadd__(self, other: Tensor) -> "_Nothing":
        if self._gradient.closed:
            raise self._gradient.refusal()
        return self


def _first(args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Unsettled:
    every = torch.utils._pytree.tree_leaves((args, kwargs))
    return next(each for each in every if isinstance(each, Unsettled))

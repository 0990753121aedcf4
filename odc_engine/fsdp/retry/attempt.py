"""One attempt at a microbatch or a part of it."""

from collections import Counter
from collections.abc import Callable
from typing import TypeVar

from torch import Tensor

from odc_engine.fsdp.remedies import DROP
from odc_engine.fsdp.units import Unit
from odcsim.errors import InputError

Batch = TypeVar("Batch")


class Attempt:
    """`muted`: units whose gradients, of all samples, have already been pushed."""

    def __init__(self, muted: frozenset[int]) -> None:
        self._muted = muted
        self._pushed: Counter[int] = Counter()
        self._forwards: Counter[int] = Counter()
        self._in_forward = False

    def run(self, loss: Callable[[Batch], Tensor], batch: Batch) -> Tensor:
        self._in_forward = True
        try:
            total = loss(batch)
        finally:
            self._in_forward = False
        return backward(total)

    def forward(self, unit: Unit) -> None:
        self._forwards[unit.index] += 1

    def mutes(self, unit: Unit) -> bool:
        """Return whether a push has to be skipped."""
        if self._in_forward:
            raise InputError("a backward pass inside the loss that retry() is given", fix="leave backward to retry()")
        self._pushed[unit.index] += 1
        if unit.index in self._muted and self._pushed[unit.index] > 1:
            raise torn(f"{unit.name} pushes gradients more than once in a microbatch that ran out of memory")
        return unit.index in self._muted

    def used_again(self, unit: Unit) -> bool:
        return max(self._pushed[unit.index], self._forwards[unit.index] / len(unit.group.modules)) > 1


def backward(total: Tensor) -> Tensor:
    if total.requires_grad:
        total.backward()  # type: ignore[no-untyped-call]
    return total.detach()


def torn(problem: str) -> InputError:
    return InputError(problem, fix=DROP)

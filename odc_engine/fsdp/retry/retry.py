"""A microbatch that runs out of memory is halved and goes on; peers see nothing of it.

Gradients leave a device unit by unit, so a pass that fails has pushed those of some units already: whole ones, of the
whole microbatch. They stay. The halves push for the other units alone, and the sums are those of the microbatch
unsplit. That holds where a microbatch has one forward pass, one backward pass, and the same numbers in both attempts:
anything else is refused once a gradient is on its way.
"""

import gc
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn

from odc_engine.fsdp.minibatch import Minibatch
from odc_engine.fsdp.reached_parameters import Used
from odc_engine.fsdp.remedies import DROP
from odc_engine.fsdp.retry.state import State
from odc_engine.fsdp.transfers import Transfers
from odc_engine.fsdp.units import Unit
from odcsim.errors import InputError

Batch = TypeVar("Batch")


class Retried:
    """`broken`: why the minibatch cannot be settled any more."""

    def __init__(
        self, model: nn.Module, units: Sequence[Unit], minibatch: Minibatch, transfers: Transfers, used: Used
    ) -> None:
        self._model, self._units, self._minibatch = model, units, minibatch
        self._transfers, self._used = transfers, used
        self._muted: frozenset[int] = frozenset()
        self._pushed: Counter[int] = Counter()  # by the attempt that runs now
        self._forwards: Counter[int] = Counter()
        self._running, self._forward = False, False
        self.broken: InputError | None = None

    def run(
        self, loss: Callable[[Batch], Tensor], batch: Batch, halve: Callable[[Batch], tuple[Batch, Batch]]
    ) -> Tensor:
        """Forward and backward of a microbatch. Its loss, detached."""
        if not all(unit.group.reduces for unit in self._units):
            raise InputError("retry() while gradients are kept back", fix="set_requires_gradient_sync(True) before it")
        self._running, before = True, self._transfers.given.total()
        try:
            return self._run(loss, batch, halve, frozenset())
        except BaseException as error:
            if self._transfers.torn or self._transfers.given.total() != before:
                self.broken = error if isinstance(error, InputError) else _torn("a microbatch was left half done")
            raise
        finally:
            self._running, self._muted = False, frozenset()

    def _run(
        self,
        loss: Callable[[Batch], Tensor],
        batch: Batch,
        halve: Callable[[Batch], tuple[Batch, Batch]],
        muted: frozenset[int],
    ) -> Tensor:
        """`muted`: units whose gradients of all this batch have gone to their owners."""
        self._muted = muted
        self._pushed.clear()
        self._forwards.clear()
        given, state = self._transfers.given.copy(), State(self._model)
        try:
            return self._attempt(loss, batch)
        except torch.OutOfMemoryError:
            pass  # out of the handler its frames, and the tensors in them, are free
        self._transfers.finish_given()
        new = frozenset(self._transfers.given - given)
        self._refuse(state, pushed=bool(new))
        self._minibatch.start_anew()
        self._used.start_anew()
        _free()
        first, second = (self._run(loss, half, halve, muted | new) for half in halve(batch))
        return first + second

    def _attempt(self, loss: Callable[[Batch], Tensor], batch: Batch) -> Tensor:
        self._forward = True
        try:
            total = loss(batch)
        finally:
            self._forward = False
        return backward(total)

    def use(self, unit: Unit) -> None:
        """FSDP2 wants a unit whole. What was gathered ahead for a pass has been counted then."""
        if self._running and unit.group.phase == "FORWARD" and not unit.group.ahead:
            self._forwards[unit.index] += 1

    def mutes(self, unit: Unit) -> bool:
        """Whether the gradients of a unit are with their owners already."""
        if not self._running:
            return False
        if self._forward:
            raise InputError("a backward pass inside the loss that retry() is given", fix="leave backward to retry()")
        self._pushed[unit.index] += 1
        if unit.index in self._muted and self._pushed[unit.index] > 1:
            raise _torn(f"{unit.name} pushes gradients more than once in a microbatch that ran out of memory")
        return unit.index in self._muted

    def _refuse(self, state: "State", pushed: bool) -> None:
        """Raise where the halves would not bring what is missing."""
        if self._minibatch.deferred:
            raise _torn("out of memory with gradients that earlier microbatches have kept back")
        if (name := state.changed_buffer(self._model)) is not None:
            raise _torn(f"out of memory in a forward pass that changes buffer {name}, which it would change twice")
        if self._transfers.torn:
            raise _torn("out of memory in the middle of a push")
        if pushed and state.drew():
            raise _torn("out of memory when a part of its gradients was on the way, and dropout would draw others")
        for unit in self._units if pushed else ():
            if max(self._pushed[unit.index], self._forwards[unit.index] / len(unit.group.modules)) > 1:
                raise _torn(f"{unit.name} is used more than once in a microbatch that ran out of memory")

    def clear(self) -> None:
        self.broken, self._transfers.torn = None, False


def backward(total: Tensor) -> Tensor:
    if total.requires_grad:
        total.backward()  # type: ignore[no-untyped-call]
    return total.detach()


def _free() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _torn(problem: str) -> InputError:
    return InputError(problem, fix=DROP)

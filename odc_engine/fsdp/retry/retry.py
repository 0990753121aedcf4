"""Halve a microbatch that runs out of memory, and continue; other ranks notice nothing.

Gradients are pushed unit by unit, so a backward that fails has already pushed some units, each with the gradients of
the whole microbatch. These stay. The halves push the other units only, and the sums equal those of the whole
microbatch. This needs one forward and one backward per microbatch, and the same numbers in both attempts: anything else
is refused once a gradient was pushed.
"""

import gc
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from odc_engine.fsdp.loop import Loop
from odc_engine.fsdp.retry.attempt import Attempt, backward, torn
from odc_engine.fsdp.retry.state import State
from odc_engine.fsdp.units import Unit
from odcsim.errors import InputError

Batch = TypeVar("Batch")


class Retry:
    """`_attempt`: the current one, if any."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._attempt: Attempt | None = None

    def run(
        self, loss: Callable[[Batch], Tensor], batch: Batch, halve: Callable[[Batch], tuple[Batch, Batch]]
    ) -> Tensor:
        """Run forward and backward of a microbatch. Returns its loss, detached."""
        if not all(unit.group.reduces for unit in self._loop.units):
            raise InputError(
                "retry() while gradients are not reduced (set_requires_gradient_sync(False))",
                fix="set_requires_gradient_sync(True) before it",
            )
        given = self._loop.minibatch.given
        before = given.count.total()
        try:
            return self._run(loss, batch, halve, frozenset())
        except BaseException as error:
            if given.torn or given.count.total() != before:
                why = error if isinstance(error, InputError) else torn("an earlier microbatch was interrupted")
                self._loop.minibatch.give_up(why)
            raise
        finally:
            self._attempt = None

    def _run(
        self,
        loss: Callable[[Batch], Tensor],
        batch: Batch,
        halve: Callable[[Batch], tuple[Batch, Batch]],
        muted: frozenset[int],
    ) -> Tensor:
        self._attempt = attempt = Attempt(muted)
        given, state = self._loop.minibatch.given, State(self._loop.model)
        before = given.count.copy()
        try:
            return attempt.run(loss, batch)
        except torch.OutOfMemoryError:
            pass  # after the handler, its frames and their tensors are freed
        given.wait_for_all()
        new = frozenset(given.count - before)
        self._refuse(attempt, state, pushed=bool(new))
        self._loop.start_anew()
        _free()
        first, second = (self._run(loss, half, halve, muted | new) for half in halve(batch))
        return first + second

    def use(self, unit: Unit) -> None:
        """Note that FSDP2 needs a unit whole. A prefetched gather was counted when it began."""
        if self._attempt is not None and unit.group.phase == "FORWARD" and not unit.group.ahead:
            self._attempt.forward(unit)

    def mutes(self, unit: Unit) -> bool:
        """Whether the gradients of a unit have already been pushed."""
        return self._attempt is not None and self._attempt.mutes(unit)

    def _refuse(self, attempt: Attempt, state: State, pushed: bool) -> None:
        """Raise if the halves would not give the missing gradients."""
        if self._loop.minibatch.deferred:
            raise torn("out of memory while gradients of earlier microbatches are not reduced yet")
        if (name := state.changed_buffer(self._loop.model)) is not None:
            raise torn(f"out of memory in a forward pass that changes buffer {name}, which it would change twice")
        if self._loop.minibatch.given.torn:
            raise torn("out of memory during a push")
        if pushed and state.drew():
            raise torn(
                "out of memory after some gradients were pushed, and a retry would draw other random numbers (dropout)"
            )
        for unit in self._loop.units if pushed else ():
            if attempt.used_again(unit):
                raise torn(f"{unit.name} is used more than once in a microbatch that ran out of memory")


def alone(loss: Callable[[Batch], Tensor], batch: Batch) -> Tensor:
    """Run on a single rank, where gradients go to `.grad` at once and a push cannot be skipped."""
    return backward(loss(batch))


def _free() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()

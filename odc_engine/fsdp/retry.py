"""Halve a microbatch that runs out of memory, and continue; other ranks notice nothing.

Gradients are pushed unit by unit, so a backward that fails has already pushed some units, each with the gradients of
the whole microbatch. These stay. The halves push the other units only, and the sums equal those of the whole
microbatch. This needs one forward and one backward per microbatch, and the same numbers in both attempts: anything else
is refused once a gradient was pushed.
"""

import gc
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from odc_engine.fsdp.minibatch import Loop
from odc_engine.fsdp.remedies import DROP
from odc_engine.fsdp.units import Unit
from odc_engine.packed import Packed
from odcsim.errors import InputError

Batch = TypeVar("Batch")
WAY_OUT = "shorten samples, use more devices, or give retry() a `halve` of your own"


class Retry:
    """`_running`: whether there is an attempt at a microbatch or a part of it. Of this attempt: `_muted`, units whose
    gradients, of all samples, have been pushed before; how often each pushes and is used in forward."""

    def __init__(self, loop: Loop) -> None:
        self._loop, self._running, self._in_loss = loop, False, False
        self._muted: frozenset[int] = frozenset()
        self._pushes: Counter[int] = Counter()
        self._forwards: Counter[int] = Counter()

    def run(
        self, loss: Callable[[Batch], Tensor], batch: Batch, halve: Callable[[Batch], tuple[Batch, Batch]]
    ) -> Tensor:
        """Run forward and backward of a microbatch. Returns its loss, detached."""
        if not all(unit.inside.reduces for unit in self._loop.units):
            raise InputError(
                "retry() while gradients are not reduced (set_requires_gradient_sync(False))",
                fix="set_requires_gradient_sync(True) before it",
            )
        minibatch = self._loop.minibatch
        before = minibatch.given.total()
        try:
            return self._run(loss, batch, halve, frozenset())
        except BaseException as error:
            if minibatch.torn or minibatch.given.total() != before:
                minibatch.given_up = (
                    error if isinstance(error, InputError) else _torn("an earlier microbatch was interrupted")
                )
            raise
        finally:
            self._running = False

    def _run(
        self,
        loss: Callable[[Batch], Tensor],
        batch: Batch,
        halve: Callable[[Batch], tuple[Batch, Batch]],
        muted: frozenset[int],
    ) -> Tensor:
        model, minibatch = self._loop.model, self._loop.minibatch
        self._running, self._muted, self._pushes, self._forwards = True, muted, Counter(), Counter()
        before, random, buffers = minibatch.given.copy(), random_states(), _buffers(model)
        try:
            self._in_loss = True
            try:
                total = loss(batch)
            finally:
                self._in_loss = False
            return backward(total)
        except torch.OutOfMemoryError:
            pass  # after the handler, its frames and their tensors are freed
        minibatch.wait_for_pushes()
        new = frozenset(minibatch.given - before)
        self._refuse(random, buffers, pushed=bool(new))
        self._loop.start_anew()
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        first, second = (self._run(loss, half, halve, muted | new) for half in halve(batch))
        return first + second

    def use(self, unit: Unit) -> None:
        """Note that FSDP2 needs a unit whole. A prefetched gather was counted when it began."""
        if self._running and unit.inside.phase == "FORWARD" and not unit.inside.ahead:
            self._forwards[unit.index] += 1

    def mutes(self, unit: Unit) -> bool:
        """Return whether a push has to be skipped: the gradients of the unit have already been pushed."""
        if not self._running:
            return False
        if self._in_loss:
            raise InputError("a backward pass inside the loss that retry() is given", fix="leave backward to retry()")
        self._pushes[unit.index] += 1
        if unit.index in self._muted and self._pushes[unit.index] > 1:
            raise _torn(f"{unit.name} pushes gradients more than once in a microbatch that ran out of memory")
        return unit.index in self._muted

    def _refuse(self, random: Sequence[Tensor], buffers: Mapping[str, object], pushed: bool) -> None:
        """Raise if the halves would not give the missing gradients. `random`, `buffers`: before the attempt."""
        if self._loop.minibatch.deferred:
            raise _torn("out of memory while gradients of earlier microbatches are not reduced yet")
        for name, now in _buffers(self._loop.model).items():
            if now != buffers.get(name):
                raise _torn(f"out of memory in a forward pass that changes buffer {name}, which it would change twice")
        if self._loop.minibatch.torn:
            raise _torn("out of memory during a push")
        if pushed and not all(map(torch.equal, random, random_states())):
            raise _torn(
                "out of memory after some gradients were pushed, and a retry would draw other random numbers (dropout)"
            )
        for unit in self._loop.units if pushed else ():
            if max(self._pushes[unit.index], self._forwards[unit.index] / len(unit.inside.modules)) > 1:
                raise _torn(f"{unit.name} is used more than once in a microbatch that ran out of memory")


def backward(total: Tensor) -> Tensor:
    """Run backward of a loss, if it has any. On a single rank gradients go to `.grad` at once."""
    if total.requires_grad:
        total.backward()  # type: ignore[no-untyped-call]
    return total.detach()


def _torn(problem: str) -> InputError:
    return InputError(problem, fix=DROP)


def random_states() -> list[Tensor]:
    return [torch.get_rng_state()] + ([torch.cuda.get_rng_state()] if torch.cuda.is_available() else [])


def _buffers(model: nn.Module) -> dict[str, object]:
    return {name: (id(buffer), buffer._version) for name, buffer in model.named_buffers()}


def halved(batch: Any) -> tuple[Any, Any]:
    """Return two halves of a batch: a tensor's rows, a sequence's entries, those of each value of a dict, or the
    samples of a Packed."""
    if isinstance(batch, Mapping):
        pairs = {key: halved(value) for key, value in batch.items()}
        if len({_length(value) for value in batch.values()}) > 1:
            raise InputError("a microbatch whose values have unequal numbers of rows ran out of memory", fix=WAY_OUT)
        return tuple({key: pair[i] for key, pair in pairs.items()} for i in (0, 1))  # type: ignore[return-value]
    middle = _length(batch) // 2
    if middle < 1:
        raise InputError("a microbatch of one sample ran out of memory", fix=WAY_OUT)
    if not isinstance(batch, Packed):
        return batch[:middle], batch[middle:]
    at = sum(batch.lengths[:middle])
    first = Packed(batch.tokens[:at], batch.targets[:at], batch.weights[:at], batch.lengths[:middle])
    return first, Packed(batch.tokens[at:], batch.targets[at:], batch.weights[at:], batch.lengths[middle:])


def _length(batch: Any) -> int:
    if isinstance(batch, Packed):
        return len(batch.lengths)
    if isinstance(batch, Tensor):
        return len(batch) if batch.dim() else 0
    if isinstance(batch, Sequence) and not isinstance(batch, str):
        return len(batch)
    raise InputError(f"a microbatch that is a {type(batch).__name__} ran out of memory", fix=WAY_OUT)

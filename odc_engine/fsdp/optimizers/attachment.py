"""Attach optimizers, so that a standard training loop works on demand: steps settle before and publish after.

    odc.attach(optimizer)
    for minibatch in data:
        for batch in my_share(minibatch):
            loss(model, batch).backward()
        clip_grad_norm_(model.parameters(), 1.0)   # reading a gradient settles, too
        optimizer.step()
        optimizer.zero_grad()

Gradients stay until zero_grad(), as without the engine, and are not added to those of the next minibatch. zero_grad()
inside a minibatch drops what was pushed: the gradients of a discriminator, say, that its generator's pass has left.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, Protocol, cast

import torch
from torch.optim.optimizer import Optimizer

from odc_engine.fsdp.graph_breaks import uncompiled
from odc_engine.fsdp.groups import in_backward
from odc_engine.fsdp.loop import Loop
from odc_engine.fsdp.optimizers.first_states import aside_of_first_states
from odc_engine.fsdp.pending_gradients import PendingGradient
from odc_engine.fsdp.phase import Phase
from odcsim.errors import InputError


class Meetings(Protocol):
    """The synchronizing calls of an OnDemand."""

    def meet_to_settle(self, *, by_a_look: bool) -> None: ...

    def renew(self, *, keep: bool) -> None:
        """Publish. `keep`: leave `.grad` as it is."""


class Attachment:
    """The attached optimizers, and which of them have stepped."""

    def __init__(self, loop: Loop, meetings: Meetings) -> None:
        self._loop, self._meetings = loop, meetings
        self._optimizers: list[Optimizer] = []
        self._begun: set[int] = set()  # optimizers that have stepped before, and so have their state
        self._opened, self.closed = ExitStack(), False

    def attach(self, optimizers: Sequence[Optimizer]) -> None:
        self._check(optimizers)
        if not self._optimizers:
            loading = cast(Any, self._loop.model).register_load_state_dict_post_hook(self._loaded)
            self._opened.callback(loading.remove)
            self._opened.callback(aside_of_first_states(self._first_state))
            hook = uncompiled(lambda *_: self._after_pass())
            self._opened.callback(self._loop.model.register_forward_hook(hook).remove)
        for optimizer in optimizers:
            self._optimizers.append(optimizer)
            usual = optimizer.zero_grad
            cover = partial(uncompiled(self._zero), usual, optimizer)
            cover.laid_by = self  # type: ignore[attr-defined]
            optimizer.zero_grad = cover  # type: ignore[method-assign]
            self._opened.callback(_uncover, optimizer)
        self._loop.attach(self._look)

    def _check(self, optimizers: Sequence[Optimizer]) -> None:
        for optimizer in optimizers:
            if not hasattr(optimizer, "param_groups"):
                problem = f"an optimizer is attached that is none of torch's ({type(optimizer).__name__})"
                raise InputError(problem, fix="attach a torch.optim.Optimizer, or call settle() and publish() yourself")
            if any(optimizer is each for each in self._optimizers):
                raise InputError("an optimizer is attached twice", fix="attach it once, where it is made")
            if not self._loop.minibatch.parameters.any_in(optimizer):
                raise InputError("an optimizer has none of the model's parameters", fix="attach the model's own")

    def before_step(self, optimizer: Optimizer, closure: object) -> bool:
        """Settle if the optimizer is attached, so that gradients are there."""
        if not any(optimizer is each for each in self._optimizers):
            return False
        if closure is not None:
            raise InputError("step(closure) of an attached optimizer", fix="call backward before step()")
        if not self._settled and (self._pushed or not self._has_gradients(optimizer)):
            self._meetings.meet_to_settle(by_a_look=False)
        return True

    def _has_gradients(self, optimizer: Optimizer) -> bool:
        """Whether it steps with gradients of the last step, or with those that the user has set."""
        own = {id(piece.parameter) for unit in self._loop.units for piece in unit.trainable}
        every = (p.grad for group in optimizer.param_groups for p in group["params"] if id(p) in own)
        return any(gradient is not None and not isinstance(gradient, PendingGradient) for gradient in every)

    def after_step(self, optimizer: Optimizer, *, empty: bool) -> None:
        """Publish after the last attached optimizer's step. `empty`: a step without gradients before settle(), which
        ends no minibatch."""
        if any(optimizer is each for each in self._optimizers):
            self._begun.add(id(optimizer))
            if empty:
                self._meetings.renew(keep=True)
            else:
                self._end_turn(optimizer)

    def _end_turn(self, optimizer: Optimizer) -> None:
        """Publish after the last attached optimizer's step, or the zero_grad() in its place."""
        minibatch = self._loop.minibatch
        minibatch.turns.add(id(optimizer))
        own = {id(each) for each in self._optimizers if minibatch.parameters.any_in(each)}
        if minibatch.turns >= own:  # the parameters of others have been replaced
            self._meetings.renew(keep=True)

    @property
    def _settled(self) -> bool:
        return self._loop.phase is Phase.SETTLED

    @property
    def _pushed(self) -> bool:
        return self._loop.minibatch.pushed

    def _loaded(self, *_: object) -> None:
        """Publish after loading into the whole model. Inside a minibatch, the step that ends it publishes."""
        if not self._settled and not self._pushed:
            self._meetings.renew(keep=True)

    def _first_state(self, optimizer: Optimizer, give: Callable[[], None]) -> None:
        """Create an optimizer's state, which is about to be saved or loaded."""
        own = any(optimizer is each for each in self._optimizers) and id(optimizer) not in self._begun
        laid = own and not self._settled and not self._pushed and self._loop.minibatch.pending.take_up()
        give()
        if laid:
            self._loop.minibatch.pending.lay_all()

    def _zero(self, usual: Callable[..., None], optimizer: Optimizer, set_to_none: bool = True, **how: Any) -> None:
        if self.closed:  # and beneath another's
            usual(set_to_none=set_to_none, **how)
            return
        if not set_to_none:
            problem = "zero_grad(set_to_none=False) is not supported after attach(): missing gradients would be zeros"
            raise InputError(problem, fix="zero_grad()")
        usual(set_to_none=True, **how)
        if self._settled:
            self._end_turn(optimizer)
        elif self._loop.phase is Phase.OPEN:
            self._loop.minibatch.note_cleared()
        if not self._settled and not self._pushed:
            self._loop.minibatch.pending.lay_all()

    def _after_pass(self) -> None:
        """Show shards after an evaluation. FSDP2 leaves the root whole, and whole parameters show no gradients."""
        if not torch.is_grad_enabled():
            for unit in self._loop.units:
                unit.fsdp.reshard()

    def _look(self) -> bool:
        """Settle because somebody reads a pending gradient, unless no rank has any. All ranks must do so, or the next
        synchronization raises."""
        if not in_backward() and not self._settled:
            self._meetings.meet_to_settle(by_a_look=True)
            if not self._settled:
                return False
            self._loop.minibatch.look()
        return True

    def close(self) -> None:
        self.closed = True
        self._optimizers.clear()
        self._opened.close()


def _uncover(optimizer: Optimizer) -> None:
    """Restore the zero_grad of an optimizer, unless another wrapper has been put over ours."""
    top: Any = optimizer.zero_grad
    while isinstance(top, partial) and isinstance(at := getattr(top, "laid_by", None), Attachment) and at.closed:
        top = top.args[0]
    if getattr(top, "__func__", None) is type(optimizer).zero_grad:
        optimizer.__dict__.pop("zero_grad", None)
    else:
        optimizer.zero_grad = top  # type: ignore[method-assign]

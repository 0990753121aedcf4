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
from typing import Any, Protocol

import torch
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from odc_engine.fsdp.agreement import Reason
from odc_engine.fsdp.inside import aside_of_first_states, in_backward, uncompiled
from odc_engine.fsdp.minibatch import REPLACED, Loop, Phase
from odc_engine.fsdp.stand_in import StandIn
from odcsim.errors import InputError


class Meetings(Protocol):
    """The synchronizing calls of an OnDemand."""

    def meet_to_settle(self, reason: Reason) -> None: ...

    def renew(self, *, keep: bool) -> None:
        """Publish. `keep`: leave `.grad` as it is."""


class Attachment:
    """Watches the steps of all optimizers of the model's parameters: none may step with pending gradients, and those of
    attached ones settle and publish."""

    def __init__(self, loop: Loop, meetings: Meetings) -> None:
        self._loop, self._meetings = loop, meetings
        self._optimizers: list[Optimizer] = []
        self._begun: set[int] = set()  # optimizers that have stepped before, and so have their state
        self._opened, self.closed = ExitStack(), False
        self._opened.callback(register_optimizer_step_pre_hook(uncompiled(self._before_step)).remove)
        self._opened.callback(register_optimizer_step_post_hook(uncompiled(self._after_step)).remove)

    def attach(self, optimizers: Sequence[Optimizer]) -> None:
        for optimizer in optimizers:
            if not hasattr(optimizer, "param_groups"):
                problem = f"an optimizer is attached that is none of torch's ({type(optimizer).__name__})"
                raise InputError(problem, fix="attach a torch.optim.Optimizer, or call settle() and publish() yourself")
            if self._has(optimizer):
                raise InputError("an optimizer is attached twice", fix="attach it once, where it is made")
            if not self._loop.has(optimizer):
                raise InputError("an optimizer has none of the model's parameters", fix="attach the model's own")
        if not self._optimizers:
            model: Any = self._loop.model
            self._opened.callback(model.register_load_state_dict_post_hook(self._publish_loaded).remove)
            self._opened.callback(model.register_forward_hook(uncompiled(self._show_shards)).remove)
            self._opened.callback(aside_of_first_states(self._create_state))
        for optimizer in optimizers:
            self._optimizers.append(optimizer)
            cover = partial(uncompiled(self._zero), optimizer.zero_grad, optimizer)
            cover.laid_by = self  # type: ignore[attr-defined]
            optimizer.zero_grad = cover  # type: ignore[method-assign]
            self._opened.callback(_uncover, optimizer)
        self._loop.attach(self._look)

    def _has(self, optimizer: Optimizer) -> bool:
        return any(optimizer is each for each in self._optimizers)

    @property
    def _settled(self) -> bool:
        return self._loop.phase is Phase.SETTLED

    @property
    def _pending(self) -> bool:
        """Whether the minibatch has gradients that are not summed."""
        return not self._settled and self._loop.minibatch.has_gradients

    def _before_step(self, optimizer: Optimizer, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        """Settle if the optimizer is attached, so that gradients are there."""
        minibatch, remake = self._loop.minibatch, self._loop.remedies.remake
        every = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        for parameter in every:
            if id(parameter) in minibatch.wholes:
                raise InputError("an optimizer holds unsharded parameters: it was made after an evaluation", fix=remake)
            if hasattr(parameter, REPLACED):
                raise InputError("an optimizer holds parameters that were replaced in the model", fix=remake)
        if not self._loop.has(optimizer):
            return
        if not self._has(optimizer):
            if not self._settled and minibatch.pushes:
                raise InputError("optimizer.step() before gradients are summed", fix=self._loop.remedies.step)
            return
        if kwargs.get("closure") or next(iter(args[1:]), None):
            raise InputError("step(closure) of an attached optimizer", fix="call backward before step()")
        # Without a minibatch it may step with gradients of the last step, or with those that the user has set.
        theirs = [each.grad for each in every if id(each) in minibatch.parameters]
        own = [gradient for gradient in theirs if not isinstance(gradient, StandIn | None)]
        if not self._settled and (minibatch.has_gradients or not own):
            self._meetings.meet_to_settle(Reason.SETTLES)

    def _after_step(self, optimizer: Optimizer, *_: object) -> None:
        """Publish after the last optimizer's step.

        torch.distributed.checkpoint makes an optimizer without state step with zero gradients at learning rate 0: then
        the weights remain as published, and no minibatch ends.
        """
        loop, minibatch = self._loop, self._loop.minibatch
        if not loop.has(optimizer):
            return
        without_rate = all("lr" in group and float(group["lr"]) == 0 for group in optimizer.param_groups)
        empty = not self._settled and without_rate
        minibatch.steps += bool(optimizer.state)
        if empty and all(map(loop.has_published, loop.units)):
            minibatch.versions = [unit.versions() for unit in loop.units]
        else:
            minibatch.stepped = True
        if self._has(optimizer):
            self._begun.add(id(optimizer))
            if empty:
                self._meetings.renew(keep=True)
            else:
                self._end_turn(optimizer)

    def _end_turn(self, optimizer: Optimizer) -> None:
        """Publish after the last attached optimizer's step, or the zero_grad() in its place."""
        self._loop.minibatch.turns.add(id(optimizer))
        if self._loop.minibatch.turns >= {id(each) for each in self._optimizers if self._loop.has(each)}:
            self._meetings.renew(keep=True)  # the parameters of others have been replaced

    def _publish_loaded(self, *_: object) -> None:
        """Publish after loading into the whole model. Inside a minibatch, the step that ends it publishes."""
        if not self._settled and not self._pending:
            self._meetings.renew(keep=True)

    def _create_state(self, optimizer: Optimizer, create: Callable[[], None]) -> None:
        """Create an optimizer's state, which is about to be saved or loaded."""
        own = self._has(optimizer) and id(optimizer) not in self._begun
        laid = own and not self._settled and not self._pending and self._loop.minibatch.stand_ins.take_up()
        create()
        if laid:
            self._loop.minibatch.stand_ins.lay_all()

    def _zero(self, usual: Callable[..., None], optimizer: Optimizer, set_to_none: bool = True, **how: Any) -> None:
        if self.closed:  # and beneath another's
            usual(set_to_none=set_to_none, **how)
            return
        if not set_to_none:
            problem = "zero_grad(set_to_none=False) is not supported after attach(): missing gradients would be zeros"
            raise InputError(problem, fix="zero_grad()")
        self._loop.minibatch.stand_ins.lay_due()  # to be cleared
        usual(set_to_none=True, **how)
        if self._settled:
            self._end_turn(optimizer)
        elif self._loop.phase is Phase.OPEN:
            self._loop.minibatch.note_cleared()
        if not self._settled and not self._loop.minibatch.has_gradients:
            self._loop.minibatch.stand_ins.lay_all()

    def _show_shards(self, *_: object) -> None:
        """Show shards after an evaluation. FSDP2 leaves the root whole, and whole parameters show no gradients."""
        if not torch.is_grad_enabled():
            for unit in self._loop.units:
                unit.fsdp.reshard()

    def _look(self) -> bool:
        """Settle because somebody reads a pending gradient, unless no rank has any. All ranks must do so, or the next
        synchronization raises."""
        if not in_backward() and not self._settled:
            self._meetings.meet_to_settle(Reason.LOOKS)
            if not self._settled:
                return False
            self._loop.minibatch.looked = True
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

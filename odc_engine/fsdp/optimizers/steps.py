"""Watch all optimizers of the model's parameters: none may step with pending gradients."""

from collections.abc import Callable
from contextlib import ExitStack

from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from odc_engine.fsdp.graph_breaks import uncompiled
from odc_engine.fsdp.known_parameters import was_replaced
from odc_engine.fsdp.loop import Loop
from odcsim.errors import InputError


class Steps:
    """Calls `before` and `after` around each step of an optimizer that has parameters of the units; `before` also
    gets the step's closure."""

    def __init__(
        self, loop: Loop, before: Callable[[Optimizer, object], None], after: Callable[[Optimizer], None]
    ) -> None:
        self._loop, self._before, self._after = loop, before, after
        self._hooks = ExitStack()
        self._hooks.callback(register_optimizer_step_pre_hook(uncompiled(self._pre)).remove)
        self._hooks.callback(register_optimizer_step_post_hook(uncompiled(self._post)).remove)

    def _pre(self, optimizer: Optimizer, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        known, remake = self._loop.minibatch.parameters, self._loop.remedies.remake
        for parameter in (parameter for group in optimizer.param_groups for parameter in group["params"]):
            if known.has_whole(parameter):
                raise InputError("an optimizer holds unsharded parameters: it was made after an evaluation", fix=remake)
            if was_replaced(parameter):
                raise InputError("an optimizer holds parameters that were replaced in the model", fix=remake)
        if known.any_in(optimizer):
            self._before(optimizer, kwargs.get("closure") or next(iter(args[1:]), None))

    def _post(self, optimizer: Optimizer, args: object, kwargs: object) -> None:  # noqa: ARG002
        if self._loop.minibatch.parameters.any_in(optimizer):
            self._after(optimizer)

    def close(self) -> None:
        self._hooks.close()

"""Optimizers of the model's parameters, whoever made them: none steps with gradients that are on their way."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack

from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from odc_engine.fsdp.graph_breaks import uncompiled
from odc_engine.fsdp.remedies import Ways
from odc_engine.fsdp.units import Unit
from odcsim.errors import InputError


class Steps:
    """`before` and `after` are called for each step of an optimizer that has one of the units' parameters; `before` is
    given the step's closure, too."""

    def __init__(
        self,
        units: Sequence[Unit],
        before: Callable[[Optimizer, object], None],
        after: Callable[[Optimizer], None],
        ways: Ways,
    ) -> None:
        self._units, self._before, self._after, self._ways = units, before, after, ways
        self._own: dict[int, object] = {}
        self._whole: set[int] = set()
        self._hooks = ExitStack()
        self._hooks.callback(register_optimizer_step_pre_hook(uncompiled(self._pre)).remove)
        self._hooks.callback(register_optimizer_step_post_hook(uncompiled(self._post)).remove)

    def note(self) -> None:
        """Which parameters there are now: loading by assignment puts others in their place."""
        now = {id(piece.parameter): piece.parameter for unit in self._units for piece in unit.pieces}
        for number, former in self._own.items():
            if number not in now:
                former.odc_replaced = True  # type: ignore[attr-defined]
        self._own = dict(now)
        self._whole = {id(piece.managed.whole) for unit in self._units for piece in unit.pieces}

    def _pre(self, optimizer: Optimizer, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        own, remake = False, self._ways.now.remake
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                own |= id(parameter) in self._own
                if id(parameter) in self._whole:
                    raise InputError("an optimizer holds whole parameters, as an evaluation left them", fix=remake)
                if hasattr(parameter, "odc_replaced"):
                    raise InputError("an optimizer holds parameters that others have replaced", fix=remake)
        if own:
            self._before(optimizer, kwargs.get("closure") or next(iter(args[1:]), None))

    def _post(self, optimizer: Optimizer, args: object, kwargs: object) -> None:  # noqa: ARG002
        if any(id(p) in self._own for group in optimizer.param_groups for p in group["params"]):
            self._after(optimizer)

    def close(self) -> None:
        self._hooks.close()


def no_rate(optimizer: Optimizer) -> bool:
    """Whether it steps with a learning rate of nothing."""
    return all("lr" in group and float(group["lr"]) == 0 for group in optimizer.param_groups)

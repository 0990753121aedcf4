"""Forward and backward passes of a loop, noted on each device and run again by a plain model.

What the whole model is given, and what comes back to its outputs in backward. So the loop's own losses, masks and
weights are part of it, whatever they are.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd import backward
from torch.utils._pytree import tree_leaves, tree_map_only

from odcsim.errors import InputError


@dataclass(slots=True)
class Noted:
    """`gradients`: by places among the outputs."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    random: list[Tensor]
    autocast: bool
    gradients: dict[int, Tensor] = field(default_factory=dict)


class Recording:
    def __init__(self, model: nn.Module) -> None:
        self._every: list[Noted] = []
        apart = cast(Any, torch.compiler.disable)
        before = model.register_forward_pre_hook(apart(self._begin), with_kwargs=True)
        after = model.register_forward_hook(apart(self._end))
        self._hooks = (before, after)

    @property
    def passes(self) -> list[Noted]:
        """Those that backward came back to."""
        return [each for each in self._every if each.gradients]

    def _begin(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if torch.is_grad_enabled():
            args, kwargs = tree_map_only(Tensor, _copied, (args, kwargs))
            autocast = any(torch.is_autocast_enabled(device) for device in ("cpu", "cuda"))
            self._every.append(Noted(args, kwargs, random_states(), autocast))

    def _end(self, _: nn.Module, args: object, output: object) -> None:  # noqa: ARG002
        if not torch.is_grad_enabled():
            return
        for i, leaf in enumerate(tree_leaves(output)):
            if isinstance(leaf, Tensor) and leaf.requires_grad:
                cast(Any, leaf).register_hook(partial(_note, self._every[-1], i))

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()


def _copied(value: Tensor) -> Tensor:
    return value.detach().cpu().clone()


def _note(noted: Noted, place: int, gradient: Tensor) -> None:
    own = _copied(gradient)
    noted.gradients[place] = noted.gradients[place] + own if place in noted.gradients else own


def random_states() -> list[Tensor]:
    return [torch.get_rng_state()] + ([torch.cuda.get_rng_state()] if torch.cuda.is_available() else [])


def replay(plain: nn.Module, passes: Sequence[Noted]) -> dict[str, Tensor | None]:
    """Gradients of all of them, one after the other, in fp64."""
    device = next(plain.parameters()).device
    with torch.enable_grad(), torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        for each in passes:
            torch.set_rng_state(each.random[0])
            if device.type == "cuda":
                torch.cuda.set_rng_state(each.random[1])
            args, kwargs = tree_map_only(Tensor, partial(_given, device=device), (each.args, each.kwargs))
            leaves = tree_leaves(plain(*args, **kwargs))
            outputs = [leaves[place] for place in each.gradients]
            backward(outputs, [_given(g, device=device) for g in each.gradients.values()])
    return {name: parameter.grad for name, parameter in plain.named_parameters()}


def _given(value: Tensor, device: torch.device) -> Tensor:
    return value.to(device, torch.float64) if value.is_floating_point() else value.to(device)


def refuse_empty(passes: Sequence[Noted]) -> None:
    if not passes:
        raise InputError(
            "no backward pass of the model to check", fix="run a minibatch, from its microbatches to settle()"
        )

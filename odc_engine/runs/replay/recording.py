"""Record forward and backward of a loop on each rank, and run them again in a plain model.

Recorded are the model's inputs, and the gradients of its outputs. So the loop's own losses, masks and weights are
included, whatever they are. The loop gets the outputs unchanged.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd import backward
from torch.utils._pytree import tree_map_only

from odc_engine.fsdp.retry import random_states
from odc_engine.runs.replay.outputs import Graph, leaves_of, of_graph
from odcsim.errors import InputError


@dataclass(slots=True)
class Noted:
    """One recorded pass. `gradients`: by position among the outputs. `inner`: outputs from which others are
    computed, so that their gradients contain the others' part."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    random: list[Tensor]
    autocast: bool
    gradients: dict[int, Tensor] = field(default_factory=dict)
    inner: frozenset[int] = frozenset()


class Recording:
    def __init__(self, model: nn.Module) -> None:
        self._every: list[Noted] = []
        apart = cast(Any, torch.compiler.disable)
        before = model.register_forward_pre_hook(apart(self._begin), with_kwargs=True)
        after = model.register_forward_hook(apart(self._end))
        self._hooks = (before, after)

    @property
    def passes(self) -> list[Noted]:
        """Return the passes that backward has reached."""
        return [each for each in self._every if each.gradients]

    def _begin(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if torch.is_grad_enabled():
            args, kwargs = tree_map_only(Tensor, _copied_input, (args, kwargs))
            autocast = any(torch.is_autocast_enabled(device) for device in ("cpu", "cuda"))
            self._every.append(Noted(args, kwargs, random_states(), autocast))

    def _end(self, _: nn.Module, args: object, output: object) -> None:  # noqa: ARG002
        if not torch.is_grad_enabled():
            return
        outputs = of_graph(output)
        graph, noted = Graph(outputs), self._every[-1]
        noted.inner = graph.inner
        for place, own in outputs.items():
            cast(Any, own).register_hook(partial(_note, noted, graph, place))

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()


def _copied(value: Tensor) -> Tensor:
    return value.detach().cpu().clone()


def _copied_input(value: Tensor) -> Tensor:
    return _copied(value).requires_grad_(value.requires_grad)


def _note(noted: Noted, graph: Graph, place: int, gradient: Tensor) -> None:
    if not graph.accumulates():
        return
    own = _copied(gradient)
    noted.gradients[place] = noted.gradients[place] + own if place in noted.gradients else own


def replay(plain: nn.Module, passes: Sequence[Noted]) -> dict[str, Tensor | None]:
    """Return gradients of all passes, run one after the other in the dtype of the plain model's parameters."""
    first = next(plain.parameters())
    device, given = first.device, partial(_given, like=first)
    with torch.enable_grad(), torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        for each in passes:
            torch.set_rng_state(each.random[0])
            if device.type == "cuda":
                torch.cuda.set_rng_state(each.random[1])
            args, kwargs = tree_map_only(Tensor, given, (each.args, each.kwargs))
            _back(list(leaves_of(plain(*args, **kwargs))), each)
    return {name: parameter.grad for name, parameter in plain.named_parameters()}


def _back(leaves: Sequence[Any], noted: Noted) -> None:
    """Set an inner output's gradient instead of adding to it: the recorded one contains the others' part."""
    roots, seeds = [], []
    for place, gradient in noted.gradients.items():
        if (own := leaves[place]).requires_grad:  # not so where it is an input's
            mine = gradient.to(own)
            if place in noted.inner:
                own.register_hook(lambda _, mine=mine: mine)
            roots.append(own)
            seeds.append(mine)
    if roots:
        backward(roots, seeds)


def _given(value: Tensor, like: Tensor) -> Tensor:
    """Return an input that requires grad as the recorded one did, which old checkpoints need, and that may be
    changed in place."""
    own = value.detach().to(like.device, like.dtype if value.is_floating_point() else value.dtype)
    return own.requires_grad_().clone() if value.requires_grad else own


def refuse_empty(passes: Sequence[Noted]) -> None:
    if not passes:
        raise InputError(
            "no backward pass of the model to check", fix="run a minibatch, from its microbatches to settle()"
        )

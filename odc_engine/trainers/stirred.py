"""A model whose last layers answer each token a little otherwise, by what it is: so that no two samples have one loss.

Before the first step losses of all samples may be alike: that of a preference is log 2 of each, as long as a policy is
its own reference. What such losses divide by, their values do not tell.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

HOW_MUCH = 0.3  # of a layer's input
LAST = 4  # layers: all of a deep model would make of a rounding error what is taken for another loss


@contextmanager
def stirred(model: nn.Module) -> Iterator[None]:
    """Of what is trained alone: a reference made of the same weights without adapters stays what it is."""
    with ExitStack() as kept:
        kept.enter_context(torch.compiler.set_stance("force_eager"))  # a compiled one would keep what is added here
        layers = [module for module in model.modules() if isinstance(module, nn.Linear) and _is_trained(module)]
        for layer in layers[-LAST:]:
            kept.callback(layer.register_forward_hook(_stir).remove)
        yield


def _is_trained(layer: nn.Linear) -> bool:
    return any(p.requires_grad for p in layer.parameters(recurse=False))


def _stir(_: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
    if not args or not isinstance(given := args[0], Tensor) or not isinstance(output, Tensor):
        return output
    if not given.is_floating_point() or given.shape[:-1] != output.shape[:-1]:
        return output
    values = given.detach().float()
    size = values.pow(2).mean(-1, keepdim=True).sqrt()
    phase = (values * _wave(values.shape[-1], values)).sum(-1, keepdim=True) / (size + 1e-6)
    added = HOW_MUCH * size * torch.sin(phase) * _wave(output.shape[-1], values)
    return output + added.to(output.dtype)


def _wave(count: int, like: Tensor) -> Tensor:
    return torch.cos(torch.arange(count, device=like.device, dtype=torch.float32))

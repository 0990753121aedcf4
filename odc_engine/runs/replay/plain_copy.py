"""Copy a sharded model without FSDP2, with whole weights."""

import copy
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

HOOKS = (
    "_backward_hooks",
    "_backward_pre_hooks",
    "_forward_hooks",
    "_forward_pre_hooks",
    "_load_state_dict_post_hooks",
    "_load_state_dict_pre_hooks",
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
)
COMPILED = "_orig_mod"  # attribute of a compiled module that holds the module
OURS = ("torch.distributed", "odc_engine")


def plain(model: nn.Module, weights: Mapping[str, Tensor]) -> nn.Module:
    """Return the copy. `weights`: by the names of `named_parameters()`. Hooks that others have registered stay."""
    if isinstance(inner := getattr(model, COMPILED, None), nn.Module):
        return _Eager(plain(inner, {name.removeprefix(f"{COMPILED}."): own for name, own in weights.items()}))
    memo: dict[int, Any] = {}
    for name, parameter in model.named_parameters():
        memo[id(parameter)] = nn.Parameter(weights[name], requires_grad=parameter.requires_grad)
    with ExitStack() as stripped:
        for module in list(model.modules()):
            # A handle of a hook that somebody has kept leads to all hooks, FSDP2's with them.
            memo |= {id(module.__dict__[name]): OrderedDict() for name in HOOKS if name in module.__dict__}
            stripped.enter_context(_without_fsdp(module))
        return copy.deepcopy(model, memo)


class _Eager(nn.Module):
    """Replaces a module compiled by torch.compile; parameters keep their names."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        setattr(self, COMPILED, inner)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return getattr(self, COMPILED)(*args, **kwargs)


@contextmanager
def _without_fsdp(module: nn.Module) -> Iterator[None]:
    """Return a module's class and attributes as they were before it was sharded."""
    usual, former = dict(module.__dict__), type(module)
    if isinstance(module, FSDPModule):
        module.__class__ = former.__mro__[2]  # after FSDP2's own, which refuses to be copied, and FSDPModule
        for name in [name for name, value in usual.items() if _of_fsdp(value)]:
            del module.__dict__[name]
    for name in HOOKS:
        hooks = usual.get(name) or {}
        kept = {number: hook for number, hook in hooks.items() if not _ours(hook)}
        module.__dict__[name] = OrderedDict(kept)
    try:
        yield
    finally:
        module.__class__ = former
        module.__dict__.clear()
        module.__dict__.update(usual)


def _of_fsdp(value: object) -> bool:
    """Whether FSDP2 has stored the value in a module: neither a parameter nor another module, whose classes are
    FSDP2's, too."""
    values = value.values() if isinstance(value, dict) else [value]
    own = [each for each in values if not isinstance(each, Tensor | nn.Module)]
    return any(type(each).__module__.startswith("torch.distributed") for each in own)


def _ours(hook: object) -> bool:
    """Whether a hook is FSDP2's or the engine's."""
    inner = getattr(hook, "func", hook)  # of a partial
    inner = getattr(inner, "__wrapped__", inner)
    return str(getattr(inner, "__module__", "")).startswith((*OURS, "torch._dynamo"))


def as_computed(parameter: Tensor, dtype: torch.dtype | None) -> Tensor:
    """Return the whole parameter as FSDP2 passes it to a forward, in fp64."""
    whole = parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter
    return whole.detach().to(dtype or whole.dtype).double()

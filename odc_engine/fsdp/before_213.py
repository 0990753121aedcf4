"""What torch before 2.13 lacks: reductions of parameters without gradients, and a reset after an exception."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

SETTER = "set_reduce_scatter_unused_params"
# Private names that only the calls below read.
GROUP, STATE = ("post_backward", "_post_forward_indices", "comm_ctx"), ("_training_state", "_state_ctx")


def lacks_setter() -> bool:
    return not hasattr(FSDPModule, SETTER)


def try_names(module: Any, state: Any, group: Any) -> None:
    if lacks_setter() or not hasattr(module, "reset_iter_state"):
        for has, names in ((group, GROUP), (state, STATE)):
            for name in names:
                getattr(has, name)


def fill_zeros(group: Any) -> Callable[[], object]:
    """Give parameters without gradients zeros before each reduction. Returns a call that ends this."""
    usual = group.post_backward

    def post_backward(*unused: Any) -> None:
        others = (each.unsharded_accumulated_grad for each in group.fsdp_params)
        kept: Tensor | None = next((each for each in others if each is not None), None)
        for each in group.fsdp_params if group.reduce_grads else ():
            whole: Tensor | None = getattr(each, "_unsharded_param", None)
            missing = whole is not None and whole.grad is None and each.unsharded_accumulated_grad is None
            if missing and whole is not None and whole.requires_grad:
                if kept is None or kept.dtype == whole.dtype:
                    whole.grad = torch.zeros_like(whole)
                else:  # FSDP2 reduces one dtype at a time
                    each.unsharded_accumulated_grad = torch.zeros_like(whole, dtype=kept.dtype)
        usual(*unused)

    group.post_backward = post_backward
    return lambda: group.__dict__.pop("post_backward", None)


def reset_root(model: FSDPModule) -> bool:
    """Reset FSDP2 by its own call, which takes the root alone. Returns whether it could."""
    reset: Callable[[], None] | None = getattr(model, "reset_iter_state", None)
    if reset is None:
        return False
    try:
        reset()
    except RuntimeError:  # a part of a model that ran as a whole before
        return False
    return True


def reset(module: FSDPModule, group: Any) -> None:
    """Reset one unit."""
    state: Any = module._get_fsdp_state()
    group.wait_for_unshard()
    group._training_state = state._training_state = type(group._training_state).IDLE
    group._post_forward_indices.clear()
    group.comm_ctx.post_forward_order.clear()
    group.comm_ctx.all_gather_state = None
    state._state_ctx.iter_forward_root = None
    state._state_ctx.post_backward_final_callback_queued = False
    module.reshard()

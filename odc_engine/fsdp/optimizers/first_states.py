"""Optimizers that have no state yet when torch.distributed.checkpoint saves or loads it.

It has them step with nothing, but for those that have gradients: a state of nothing is saved for these, and nothing is
loaded where that is what to load into. What stands in `.grad` for gradients of a minibatch that has not begun is none.
"""

from collections.abc import Callable
from typing import Any

from torch.optim.optimizer import Optimizer

_NAME = "_init_optim_state"  # FSDP2's users have no other way to a state that is sharded as the model is


def aside_of_first_states(aside: Callable[[Optimizer, Callable[[], None]], None]) -> Callable[[], None]:
    """Have `aside` called with an optimizer and what gives it its state. Returns what ends that."""
    from torch.distributed.checkpoint import state_dict as checkpoint

    usual: Any = getattr(checkpoint, _NAME, None)
    if usual is None:
        return lambda: None
    ended = False

    def initialize(optimizer: Optimizer) -> None:
        if ended:
            usual(optimizer)
        else:
            aside(optimizer, lambda: usual(optimizer))

    def end() -> None:
        nonlocal ended
        ended = True
        if getattr(checkpoint, _NAME) is initialize:
            setattr(checkpoint, _NAME, usual)

    setattr(checkpoint, _NAME, initialize)
    return end

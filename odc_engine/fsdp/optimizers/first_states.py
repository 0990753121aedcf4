"""Create the state of optimizers when torch.distributed.checkpoint saves or loads it before the first step.

torch makes such an optimizer step with zero gradients, unless it has gradients: then it saves an empty state, and loads
nothing into it. So pending gradients of a minibatch that has not begun are put aside.
"""

from collections.abc import Callable
from typing import Any

from torch.optim.optimizer import Optimizer

_NAME = "_init_optim_state"  # FSDP2's users have no other way to a state that is sharded as the model is


def aside_of_first_states(aside: Callable[[Optimizer, Callable[[], None]], None]) -> Callable[[], None]:
    """Call `aside` with an optimizer and the call that creates its state. Returns a call that ends this."""
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

"""What is forgotten, and what is looked at too early."""

import torch
from users import User

from habits import habit, in_words

in_words(__name__)("""
zero_grad_to_zeros_before_settle: backward zeros finish | `zero_grad(set_to_none=False)` between backward and `settle()`
zero_grad_before_settle: backward zero settle look_at_gradients step publish
    `zero_grad()` between backward and `settle()`
zero_grad_between_microbatches: backward zero backward finish | `zero_grad()` between two microbatches
no_settle: backward step zero publish evaluate | `settle()` forgotten
no_publish: backward settle step zero backward finish | `publish()` forgotten
neither: backward step zero backward step | `settle()` and `publish()` forgotten
clip_before_settle: backward clip settle step publish | clipping before `settle()`
""")
in_words(__name__, counts=(2, 0))("""
clip_before_settle_without_microbatches: backward clip settle step publish
    clipping before `settle()` where one device has no microbatch
""")


@habit()
def no_settle_by_hand(user: User) -> None:
    """`settle()` forgotten, weights changed by hand"""
    user.backward()
    for parameter in user.model.parameters():
        if parameter.grad is not None:
            parameter.data.add_(parameter.grad, alpha=-0.1)
    user.do("publish evaluate")


@habit()
def no_settle_other_optimizer(user: User) -> None:
    """`settle()` forgotten, one parameter after the other by a fused optimizer"""
    user.optimizer = torch.optim.AdamW(user.model.parameters(), lr=0.01, fused=True)
    user.do("backward step publish evaluate")


@habit()
def clip_values_before_settle(user: User) -> None:
    """`clip_grad_value_` before `settle()`"""
    user.backward()
    torch.nn.utils.clip_grad_value_(user.model.parameters(), 0.01)
    user.finish()


@habit()
def look_before_settle(user: User) -> None:
    """a gradient's norm logged before `settle()`"""
    user.backward()
    user.seen.append(float(sum(p.grad.norm() ** 2 for p in user.model.parameters())))
    user.finish()


@habit()
def look_inside_before_settle(user: User) -> None:
    """`.grad._local_tensor` read before `settle()`"""
    user.backward()
    user.seen.append(float(sum(parts_norm(p.grad) for p in user.model.parameters())))
    user.finish()


def parts_norm(gradient: torch.Tensor) -> torch.Tensor:
    return torch.norm(getattr(gradient, "_local_tensor", gradient))

"""What is forgotten, and what is looked at too early."""

import torch
from users import User

from habits import habit


@habit()
def zero_grad_to_zeros_before_settle(user: User) -> None:
    """`zero_grad(set_to_none=False)` between backward and `settle()`"""
    user.backward()
    user.zero(set_to_none=False)
    user.finish()


@habit()
def zero_grad_before_settle(user: User) -> None:
    """`zero_grad()` between backward and `settle()`"""
    user.backward()
    user.zero()
    user.settle()
    user.look_at_gradients()
    user.step()
    user.publish()


@habit()
def zero_grad_between_microbatches(user: User) -> None:
    """`zero_grad()` between two microbatches"""
    user.backward()
    user.zero()
    user.backward()
    user.finish()


@habit()
def no_settle(user: User) -> None:
    """`settle()` forgotten"""
    user.backward()
    user.step()
    user.zero()
    user.publish()
    user.evaluate()


@habit()
def no_settle_by_hand(user: User) -> None:
    """`settle()` forgotten, weights changed by hand"""
    user.backward()
    for parameter in user.model.parameters():
        if parameter.grad is not None:
            parameter.data.add_(parameter.grad, alpha=-0.1)
    user.publish()
    user.evaluate()


@habit()
def no_settle_other_optimizer(user: User) -> None:
    """`settle()` forgotten, one parameter after the other by a fused optimizer"""
    user.optimizer = torch.optim.AdamW(user.model.parameters(), lr=0.01, fused=True)
    user.backward()
    user.step()
    user.publish()
    user.evaluate()


@habit()
def no_publish(user: User) -> None:
    """`publish()` forgotten"""
    user.backward()
    user.settle()
    user.step()
    user.zero()
    user.backward()
    user.finish()


@habit()
def neither(user: User) -> None:
    """`settle()` and `publish()` forgotten"""
    user.backward()
    user.step()
    user.zero()
    user.backward()
    user.step()


@habit()
def clip_before_settle(user: User) -> None:
    """clipping before `settle()`"""
    user.backward()
    user.clip()
    user.settle()
    user.step()
    user.publish()


@habit()
def clip_values_before_settle(user: User) -> None:
    """`clip_grad_value_` before `settle()`"""
    user.backward()
    torch.nn.utils.clip_grad_value_(user.model.parameters(), 0.01)
    user.finish()


@habit(counts=(2, 0))
def clip_before_settle_without_microbatches(user: User) -> None:
    """clipping before `settle()` where one device has no microbatch"""
    user.backward()
    user.clip()
    user.settle()
    user.step()
    user.publish()


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

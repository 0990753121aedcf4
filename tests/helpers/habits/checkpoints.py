"""States saved and loaded by `torch.distributed.checkpoint`, which has optimizers without a state step with nothing."""

import torch
from torch import Tensor
from torch.distributed.checkpoint import state_dict as dcp
from users import User, mine

from habits import habit
from habits.attached import attached, usual


def save(user: User, *optimizers: torch.optim.Optimizer) -> tuple[dict, dict]:
    """What is saved is seen, too."""
    weights, states = dcp.get_state_dict(user.model, optimizers or user.optimizer)
    found = {f"{name}.{key}": value for name, state in states["state"].items() for key, value in state.items()}
    tensors = {name: mine(value) for name, value in found.items() if isinstance(value, Tensor)}
    user.seen.append({name: value.reshape(1) if value.ndim == 0 else value for name, value in tensors.items()})
    return weights, states


def _load(user: User, saved: tuple[dict, dict]) -> None:
    weights, states = saved
    dcp.set_state_dict(user.model, user.optimizer, model_state_dict=weights, optim_state_dict=states)


def kept(saved: tuple[dict, dict]) -> tuple[dict, dict]:
    """What is in a file: `get_state_dict` gives the tensors that training goes on with."""
    return torch.utils._pytree.tree_map_only(Tensor, torch.clone, saved)


@habit()
def after_each_step(user: User) -> None:
    """SGD without momentum, saved after each minibatch"""
    for _ in range(3):
        user.minibatch()
        save(user)
        user.evaluate()


@habit(optimizer=torch.optim.AdamW)
def before_the_first_step(user: User) -> None:
    """AdamW, saved before the first minibatch"""
    save(user)
    user.minibatch()
    save(user)
    user.minibatch()


@habit(optimizer=torch.optim.AdamW)
def resumed(user: User) -> None:
    """AdamW, a new one loaded into it after minibatches, then `publish()`"""
    user.minibatch()
    saved = kept(save(user))
    user.minibatch()
    user.optimizer = user.new_optimizer()
    _load(user, saved)
    user.publish()
    user.minibatch()
    save(user)


@habit(counts=(2, 0), optimizer=torch.optim.AdamW)
def first_saved_too_early(user: User) -> None:
    """AdamW, whose first state is saved when one device has gradients on their way and the other has none"""
    user.backward()
    save(user)
    user.finish()


@habit(counts=(2, 0))
def stateless_saved_early(user: User) -> None:
    """SGD without momentum, saved when one device has gradients on their way and the other has none"""
    user.backward()
    save(user)
    user.finish()
    user.minibatch()


@habit(counts=(2, 0), optimizer=torch.optim.AdamW)
def saved_early(user: User) -> None:
    """AdamW, saved between backward and the step of a later minibatch"""
    user.minibatch()
    user.backward()
    save(user)
    user.finish()
    user.minibatch()


@habit()
def attached_after_each_step(user: User) -> None:
    """attached: SGD without momentum, saved after each minibatch"""
    attached(user)
    for _ in range(3):
        usual(user)
        save(user)
        user.evaluate()


@habit(optimizer=torch.optim.AdamW)
def attached_resumed(user: User) -> None:
    """attached: AdamW, a new one loaded into it when it is attached to a new engine"""
    attached(user)
    usual(user)
    saved = kept(save(user))
    usual(user)
    user.optimizer = user.new_optimizer()
    user.reopen_attached()
    _load(user, saved)
    usual(user)
    save(user)


@habit(counts=(2, 0), optimizer=torch.optim.AdamW)
def attached_after_zero_grad(user: User) -> None:
    """attached: AdamW, saved after `zero_grad()`, before the first minibatch and later"""
    attached(user)
    for _ in range(3):
        user.zero()
        save(user)
        user.backward()
        user.clip()
        user.step()


@habit(counts=(2, 0), optimizer=torch.optim.AdamW)
def attached_first_saved_too_early(user: User) -> None:
    """attached: AdamW, whose first state is saved when one device has run a microbatch and the other has none"""
    attached(user)
    user.zero()
    user.backward()
    save(user)
    user.step()


@habit(counts=(2, 0))
def attached_stateless_saved_early(user: User) -> None:
    """attached: SGD without momentum, saved between backward and the step of a later minibatch"""
    attached(user)
    user.zero()
    usual(user)
    user.backward()
    save(user)
    user.step()
    user.zero()


@habit()
def attached_both(user: User) -> None:
    """attached: SGD without momentum and AdamW, of different parameters, saved before each minibatch"""
    every = list(user.model.parameters())
    both = [torch.optim.SGD(every[:3], lr=0.05), torch.optim.AdamW(every[3:], lr=0.05)]
    if user.odc:
        user.odc.attach(*both)
    for order in (both, both[::-1]):
        save(user, *both)
        user.backward()
        user.clip()
        for optimizer in order:
            optimizer.step()
        for optimizer in order:
            optimizer.zero_grad()
    save(user, *both)
    user.evaluate()

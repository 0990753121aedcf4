"""States saved and loaded by `torch.distributed.checkpoint`, which has optimizers without a state step with nothing."""

import torch
from torch import Tensor
from torch.distributed.checkpoint import state_dict as dcp
from users import User, mine

from habits import habit, in_words
from habits.attached import step_and_clear, two


def save(user: User, *optimizers: torch.optim.Optimizer) -> tuple[dict, dict]:
    """What is saved is seen, too."""
    weights, states = dcp.get_state_dict(user.model, optimizers or user.optimizer)
    found = {f"{name}.{key}": value for name, state in states["state"].items() for key, value in state.items()}
    tensors = {name: mine(value) for name, value in found.items() if isinstance(value, Tensor)}
    user.seen.append({name: value.reshape(1) if value.ndim == 0 else value for name, value in tensors.items()})
    return weights, states


def keep(user: User) -> None:
    """What is in a file: `get_state_dict` gives the tensors that training goes on with."""
    user.kept = torch.utils._pytree.tree_map_only(Tensor, torch.clone, save(user))


def load(user: User) -> None:
    weights, states = user.kept
    dcp.set_state_dict(user.model, user.optimizer, model_state_dict=weights, optim_state_dict=states)


in_words(__name__, save)("""
after_each_step: 3 x minibatch save evaluate | SGD without momentum, saved after each minibatch
attached_after_each_step: attach; 3 x usual save evaluate | attached: SGD without momentum, saved after each minibatch
""")
in_words(__name__, save, counts=(2, 0))("""
stateless_saved_early: backward save finish minibatch
    SGD without momentum, saved when one device has gradients on their way and the other has none
attached_stateless_saved_early: attach zero usual backward save step zero
    attached: SGD without momentum, saved between backward and the step of a later minibatch
""")
in_words(__name__, save, keep, load, optimizer=torch.optim.AdamW)("""
before_the_first_step: 2 x save minibatch | AdamW, saved before the first minibatch
resumed: minibatch keep minibatch renew load publish minibatch save
    AdamW, a new one loaded into it after minibatches, then `publish()`
attached_resumed: attach usual keep usual renew reopen_attached load usual save
    attached: AdamW, a new one loaded into it when it is attached to a new engine
""")
in_words(__name__, save, counts=(2, 0), optimizer=torch.optim.AdamW)("""
first_saved_too_early: backward save finish
    AdamW, whose first state is saved when one device has gradients on their way and the other has none
saved_early: minibatch backward save finish minibatch | AdamW, saved between backward and the step of a later minibatch
attached_after_zero_grad: attach; 3 x zero save backward clip step
    attached: AdamW, saved after `zero_grad()`, before the first minibatch and later
attached_first_saved_too_early: attach zero backward save step
    attached: AdamW, whose first state is saved when one device has run a microbatch and the other has none
""")


@habit()
def attached_both(user: User) -> None:
    """attached: SGD without momentum and AdamW, of different parameters, saved before each minibatch"""
    both = two(user)
    for order in (both, both[::-1]):
        save(user, *both)
        user.do("backward clip")
        step_and_clear(order)
    save(user, *both)
    user.evaluate()

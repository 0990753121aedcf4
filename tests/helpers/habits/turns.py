"""Several attached optimizers in turn, and zero_grad() where loops seldom call it."""

import torch
from users import RATE, User

from habits import habit
from habits.attached import attached, usual


def _several(user: User, n: int = 2) -> list[torch.optim.Optimizer]:
    """Optimizers of every n-th parameter each, all attached."""
    every, kinds = list(user.model.parameters()), (torch.optim.SGD, torch.optim.AdamW)
    several = [kinds[i % 2](every[i::n], lr=RATE) for i in range(n)]
    if user.odc:
        user.odc.attach(*several)
    return several


def _in_turn(several: list[torch.optim.Optimizer]) -> None:
    for optimizer in several:
        optimizer.step()
        optimizer.zero_grad()


@habit()
def each_steps_and_clears(user: User) -> None:
    """attached: two optimizers, each of which steps and calls `zero_grad()` before the next one steps"""
    several = _several(user)
    for _ in range(3):
        user.backward()
        _in_turn(several)
        user.evaluate()


@habit(counts=(2, 0))
def three_clip_step_and_clear(user: User) -> None:
    """attached: three optimizers that clip, step and call `zero_grad()` one after the other, one device without data"""
    several = _several(user, 3)
    for optimizer in several:
        optimizer.zero_grad()
    for counts in ((2, 0), (0, 2), (1, 1)):
        user.backward(counts)
        for optimizer in several:
            user.clip()
            _in_turn([optimizer])
        user.evaluate()


@habit()
def one_clears_in_place_of_its_step(user: User) -> None:
    """attached: two optimizers that step in alternate minibatches, and both call `zero_grad()`"""
    several = _several(user)
    for i in range(4):
        user.backward()
        several[i % 2].step()
        for optimizer in several:
            optimizer.zero_grad()
        user.evaluate()


@habit()
def one_clears_before_the_other_steps(user: User) -> None:
    """attached: two optimizers, one leaves its step out by `zero_grad()` before the other one steps"""
    several = _several(user)
    for _ in range(2):
        user.backward()
        user.clip()
        several[0].zero_grad()
        user.look_at_gradients()
        _in_turn(several[1:])
        user.evaluate()


@habit()
def none_steps(user: User) -> None:
    """attached: two optimizers that both leave a step out"""
    several = _several(user)
    user.backward()
    user.clip()
    for optimizer in several:
        optimizer.zero_grad()
    user.evaluate()
    user.backward()
    _in_turn(several)


@habit()
def skipped_by_the_model(user: User) -> None:
    """attached: a step left out by `model.zero_grad()`, evaluation"""
    attached(user)
    user.backward()
    user.clip()
    user.model.zero_grad()
    user.evaluate()
    usual(user)


@habit()
def one_clears_inside_a_minibatch(user: User) -> None:
    """attached: two optimizers, of which one alone calls `zero_grad()` between two microbatches"""
    several = _several(user)
    user.backward()
    several[0].zero_grad()
    user.backward()
    _in_turn(several)


@habit()
def all_clear_inside_a_minibatch(user: User) -> None:
    """attached: two optimizers that both call `zero_grad()` between two microbatches"""
    several = _several(user)
    for _ in range(2):
        user.backward()
        for optimizer in several:
            optimizer.zero_grad()
        user.backward()
        user.look_at_gradients()
        _in_turn(several)


@habit()
def model_clears_inside_a_minibatch(user: User) -> None:
    """attached: two optimizers, and `model.zero_grad()` between two microbatches"""
    several = _several(user)
    user.backward()
    user.model.zero_grad()
    user.backward()
    _in_turn(several)


@habit()
def cleared_after_forward(user: User) -> None:
    """attached: `zero_grad()` between two microbatches, after the forward pass of the second one"""
    attached(user)
    for _ in range(2):
        user.backward()
        user.number += 1
        losses = [user.loss(rank, 0) for rank in user.ranks]
        user.zero()
        for loss in losses:
            loss.backward()
        user.clip()
        user.step()
        user.zero()


@habit()
def cleared_without_another(user: User) -> None:
    """attached: `zero_grad()` after a microbatch, then clipping and a step without gradients"""
    attached(user)
    user.backward()
    user.zero()
    user.clip()
    user.step()
    usual(user)


@habit()
def cleared_and_loaded(user: User) -> None:
    """attached: `zero_grad()` after a microbatch, then `load_state_dict`"""
    attached(user)
    kept = {name: 0.5 * value for name, value in user.model.state_dict().items()}
    user.backward()
    user.zero()
    user.model.load_state_dict(kept)
    usual(user)


@habit()
def left_and_cleared(user: User) -> None:
    """attached: no `zero_grad()` after a step, but after another microbatch, of which nothing is used"""
    attached(user)
    for _ in range(2):
        user.backward()
        user.step()
        user.backward()
        user.zero()


@habit()
def cleared_by_one(user: User) -> None:
    """attached: one device calls `zero_grad()` between two microbatches, the other does not"""
    attached(user)
    user.backward()
    if user.rank == 1:
        user.zero()
    user.backward()
    user.step()


@habit()
def cleared_where_one_has_nothing(user: User) -> None:
    """attached: `zero_grad()` between two microbatches where one device has had none yet"""
    attached(user)
    user.backward((1, 0))
    user.zero()
    usual(user)


@habit()
def published_where_one_has_nothing(user: User) -> None:
    """the same, with `publish()` on all devices in place of `zero_grad()`"""
    attached(user)
    user.backward((1, 0))
    user.publish()
    usual(user)


@habit(counts=(2, 0))
def clipped_after_zero_grad(user: User) -> None:
    """attached: `zero_grad()`, then clipping, before any backward pass"""
    attached(user)
    for counts in ((2, 1), (2, 0), (0, 1)):
        user.zero()
        user.clip()
        user.clip()
        user.backward(counts)
        user.clip()
        user.step()
    user.zero()
    user.evaluate()


@habit()
def norms_after_zero_grad(user: User) -> None:
    """attached: norms of all gradients logged after `zero_grad()`: zeros, as nobody has any"""
    attached(user)
    for _ in range(2):
        usual(user)
        user.seen.append(sum((p.grad.norm().item() for p in user.model.parameters() if p.grad is not None), 0.0))


@habit()
def clipped_between_forward_and_backward(user: User) -> None:
    """attached: `zero_grad()`, a forward pass, clipping, then its backward pass"""
    attached(user)
    usual(user)
    user.number += 1
    losses = [user.loss(rank, 0) for rank in user.ranks]
    user.clip()
    for loss in losses:
        loss.backward()
    user.clip()
    user.step()


@habit()
def evaluated_after_a_look(user: User) -> None:
    """attached: `zero_grad()`, clipping, evaluation, training on"""
    attached(user)
    for _ in range(2):
        usual(user)
        user.clip()
        user.evaluate()


@habit()
def one_looks_after_zero_grad(user: User) -> None:
    """attached: one device looks at a gradient after `zero_grad()`, the other does not"""
    attached(user)
    usual(user)
    gradient = user.model.head.weight.grad
    if user.rank == 0 and gradient is not None:
        gradient.norm()
    user.backward()
    user.step()

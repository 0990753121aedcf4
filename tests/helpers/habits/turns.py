"""Several attached optimizers in turn, and zero_grad() where loops seldom call it."""

import torch
from users import RATE, User

from habits import habit, in_words

in_words(__name__)("""
skipped_by_the_model: attach backward clip zero_model evaluate usual
    attached: a step left out by `model.zero_grad()`, evaluation
cleared_after_forward: attach; 2 x backward forward zero go_back clip step zero
    attached: `zero_grad()` between two microbatches, after the forward pass of the second one
cleared_without_another: attach backward zero clip step usual
    attached: `zero_grad()` after a microbatch, then clipping and a step without gradients
cleared_and_loaded: attach backward zero load_half usual
    attached: `zero_grad()` after a microbatch, then `load_state_dict`
left_and_cleared: attach; 2 x backward step backward zero
    attached: no `zero_grad()` after a step, but after another microbatch, of which nothing is used
cleared_by_one: attach backward zero@1 backward step
    attached: one device calls `zero_grad()` between two microbatches, the other does not
cleared_where_one_has_nothing: attach backward:1,0 zero usual
    attached: `zero_grad()` between two microbatches where one device has had none yet
published_where_one_has_nothing: attach backward:1,0 publish usual
    the same, with `publish()` on all devices in place of `zero_grad()`
clipped_between_forward_and_backward: attach usual forward clip go_back clip step
    attached: `zero_grad()`, a forward pass, clipping, then its backward pass
evaluated_after_a_look: attach; 2 x usual clip evaluate | attached: `zero_grad()`, clipping, evaluation, training on
""")


def several(user: User, kinds: tuple[int, ...] = (0, 1)) -> None:
    """Optimizers of every n-th parameter each, all attached; words name them by number."""
    every = list(user.model.parameters())
    own = [every[i :: len(kinds)] for i in range(len(kinds))]
    user.several = [
        (torch.optim.SGD, torch.optim.AdamW)[kind](of, lr=RATE) for kind, of in zip(kinds, own, strict=True)
    ]
    user.attach(*user.several)


def step_of(user: User, which: tuple[int, ...] = (0, 1)) -> None:
    for i in which:
        user.several[i].step()


def zero_of(user: User, which: tuple[int, ...] = (0, 1)) -> None:
    for i in which:
        user.several[i].zero_grad()


def in_turn(user: User, which: tuple[int, ...] = (0, 1)) -> None:
    for i in which:
        user.several[i].step()
        user.several[i].zero_grad()


in_words(__name__, several, step_of, zero_of, in_turn)("""
each_steps_and_clears: several; 3 x backward in_turn evaluate
    attached: two optimizers, each of which steps and calls `zero_grad()` before the next one steps
one_clears_in_place_of_its_step: several; 2 x backward step_of:0 zero_of evaluate backward step_of:1 zero_of evaluate
    attached: two optimizers that step in alternate minibatches, and both call `zero_grad()`
one_clears_before_the_other_steps: several; 2 x backward clip zero_of:0 look_at_gradients in_turn:1 evaluate
    attached: two optimizers, one leaves its step out by `zero_grad()` before the other one steps
none_steps: several backward clip zero_of evaluate backward in_turn
    attached: two optimizers that both leave a step out
one_clears_inside_a_minibatch: several backward zero_of:0 backward in_turn
    attached: two optimizers, of which one alone calls `zero_grad()` between two microbatches
all_clear_inside_a_minibatch: several; 2 x backward zero_of backward look_at_gradients in_turn
    attached: two optimizers that both call `zero_grad()` between two microbatches
model_clears_inside_a_minibatch: several backward zero_model backward in_turn
    attached: two optimizers, and `model.zero_grad()` between two microbatches
""")


@habit(counts=(2, 0))
def three_clip_step_and_clear(user: User) -> None:
    """attached: three optimizers that clip, step and call `zero_grad()` one after the other, one device without data"""
    user.do("several:0,1,0 zero_of:0,1,2", several, zero_of)
    for counts in ("2,0", "0,2", "1,1"):
        user.do(f"backward:{counts} clip in_turn:0 clip in_turn:1 clip in_turn:2 evaluate", in_turn)


@habit(counts=(2, 0))
def clipped_after_zero_grad(user: User) -> None:
    """attached: `zero_grad()`, then clipping, before any backward pass"""
    user.attach()
    for counts in ("2,1", "2,0", "0,1"):
        user.do(f"zero clip clip backward:{counts} clip step")
    user.do("zero evaluate")


@habit()
def norms_after_zero_grad(user: User) -> None:
    """attached: norms of all gradients logged after `zero_grad()`: zeros, as nobody has any"""
    user.attach()
    for _ in range(2):
        user.usual()
        user.seen.append(sum((p.grad.norm().item() for p in user.model.parameters() if p.grad is not None), 0.0))


@habit()
def one_looks_after_zero_grad(user: User) -> None:
    """attached: one device looks at a gradient after `zero_grad()`, the other does not"""
    user.do("attach usual")
    gradient = user.model.head.weight.grad
    if user.rank == 0 and gradient is not None:
        gradient.norm()
    user.do("backward step")

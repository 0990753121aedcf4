"""Loops that know nothing of the engine: an optimizer attached to it, in every order."""

import io

import torch
from torch import nn
from torch.distributed.checkpoint import state_dict as dcp
from users import User, mine, sharded

from habits import habit, in_words
from habits.forgotten import parts_norm

in_words(__name__, counts=(3, 1))("""
five_lines: attach; 3 x usual evaluate | attached: backward, clip, step, `zero_grad()`
zero_grad_first: attach; 3 x zero backward clip step; evaluate
    attached: `zero_grad()` first, then backward, clip, step
""")


def forwards_alone(user: User) -> None:
    for rank in user.ranks:
        user.loss(rank, 0)


def reshard(user: User) -> None:
    sharded(user.model)


in_words(__name__, forwards_alone, reshard)("""
zero_grad_after_forward: attach; 2 x forward zero go_back step | attached: `zero_grad()` between forward and backward
without_clipping: attach; 3 x backward step zero | attached: backward, step, `zero_grad()`
nobody_has_a_microbatch: attach usual usual:0,0 usual | attached: a minibatch without any microbatch
clip_after_step: attach; 2 x backward step clip zero | attached: clipping after the step: too late, as ever
norm_logged: attach; 2 x backward look_at_gradients clip step look_at_gradients zero
    attached: gradients logged before clipping and after the step
step_twice: attach backward step step zero usual | attached: two steps with the same gradients
no_zero_grad: attach backward step backward clip step | attached: no `zero_grad()` between two minibatches
zero_grad_of_the_model: attach; 2 x backward clip step zero_model
    attached: `model.zero_grad()` in place of the optimizer's
zero_grad_between_microbatches: attach backward zero backward step | attached: `zero_grad()` between two microbatches
skipped_step: attach backward clip zero usual | attached: a step that is skipped, for its norm was too large
settled_and_published_too: attach; 2 x backward settle clip step zero publish
    attached, and `settle()` and `publish()` called all the same
settle_after_clipping: attach; 2 x backward clip settle step zero | attached: `settle()` after clipping
evaluation_before_clipping: attach; 2 x backward evaluate clip step zero
    attached: evaluation between backward and clipping
forward_before_clipping: attach backward forwards_alone clip
    attached: a forward pass with gradients and without a backward pass, then clipping
forward_and_reshard_before_clipping: attach; 2 x backward forwards_alone reshard clip step zero
    attached: a forward pass without a backward pass, `reshard()` of every module, then clipping
evaluation_before_step: attach backward clip evaluate step | attached: evaluation between clipping and the step
evaluation_after_step: attach; 2 x backward step evaluate zero | attached: evaluation between the step and `zero_grad()`
attached_twice: attach attach | an optimizer attached twice
""")
in_words(__name__, forwards_alone, counts=(2, 0))("""
one_without_microbatches: attach zero; 2 x usual; usual:0,1
    attached: one device without microbatches, clipping, after a `zero_grad()`
first_without_microbatches: attach usual
    attached: one device without microbatches clips, where nobody has called `zero_grad()` before
evaluation_then_clip: attach zero; 2 x evaluate usual
    attached: an evaluation, one device without microbatches, clipping
forward_before_clipping_where_one_has_nothing: attach zero backward forwards_alone@1 clip
    attached: a forward pass without a backward pass, then clipping, one device without microbatches
""")
in_words(__name__, counts=(1, 1))("""
evaluation_between_forward_and_backward: attach; 2 x forward evaluate go_back clip step zero
    attached: evaluation between a forward pass and its backward pass
closed: attach usual go_on_without usual | attached, `close()`, stock training on
""")
in_words(__name__, optimizer=torch.optim.AdamW)("""
zero_grad_to_zeros: attach backward step zeros usual | attached: `zero_grad(set_to_none=False)`
""")


@habit()
def norm_of_parts_logged(user: User) -> None:
    """attached: norms of `.grad._local_tensor` logged, then backward, step"""
    user.attach()
    for _ in range(2):
        user.backward()
        assert all(bool(parts_norm(p.grad) > 0) for p in user.model.parameters())
        user.do("step zero")


@habit()
def one_looks(user: User) -> None:
    """attached: one device looks at a gradient before the step, the other does not"""
    user.do("attach backward")
    if user.rank == 0:
        user.model.head.weight.grad.norm()
    user.do("step zero")


@habit()
def handles_kept(user: User) -> None:
    """attached: gradients taken from `.grad` before they are there, changed in place and read later"""
    user.do("attach backward")
    taken = [p.grad for p in user.model.parameters()]
    torch._foreach_mul_(taken, 0.5)
    user.do("clip step zero usual")
    user.seen.append({str(i): mine(gradient) for i, gradient in enumerate(taken)})


@habit()
def evaluation_before_logging(user: User) -> None:
    """attached: evaluations between microbatches, under `inference_mode`, then gradients logged"""
    user.attach()
    for _ in range(2):
        user.backward((1, 0))
        user.evaluate(torch.inference_mode, 1)
        user.backward((0, 1))
        user.evaluate(torch.inference_mode, 2)
        user.do("look_at_gradients step zero")


@habit()
def loaded(user: User) -> None:
    """attached: `load_state_dict`, then training on"""
    user.attach()
    kept = {name: value.clone() for name, value in user.model.state_dict().items()}
    user.usual()
    user.model.load_state_dict(kept)
    user.do("evaluate usual")


@habit()
def loaded_before_step(user: User) -> None:
    """attached: `load_state_dict` between backward and the step"""
    user.attach()
    kept = {name: value.clone() for name, value in user.model.state_dict().items()}
    user.backward()
    user.model.load_state_dict(kept)
    user.do("step zero usual")


def load_half_a_layer(user: User) -> None:
    layer = user.model.layers[1]
    layer.load_state_dict({name: 0.5 * value for name, value in layer.state_dict().items()})


in_words(__name__, load_half_a_layer)("""
loaded_partly: attach usual load_half_a_layer usual | attached: `load_state_dict` of a layer alone
""")


@habit(optimizer=torch.optim.AdamW)
def resumed(user: User) -> None:
    """attached: state_dicts of `torch.distributed.checkpoint`, before the first step and after it"""
    user.attach()
    model, optimizer = dcp.get_state_dict(user.model, user.optimizer)
    user.usual()
    dcp.set_state_dict(user.model, user.optimizer, model_state_dict=model, optim_state_dict=optimizer)
    user.do("usual evaluate")


@habit(optimizer=torch.optim.AdamW)
def saved(user: User) -> None:
    """attached: model and optimizer saved, trained on, loaded"""
    user.do("attach usual")
    file = io.BytesIO()
    torch.save([user.model.state_dict(), user.optimizer.state_dict()], file)
    user.usual()
    file.seek(0)
    weights, states = torch.load(file, weights_only=False)
    user.model.load_state_dict(weights)
    user.optimizer.load_state_dict(states)
    user.usual()


@habit()
def closure(user: User) -> None:
    """attached: a step that is given a closure"""
    user.attach()

    def again():
        user.do("zero backward:1,1")
        return torch.zeros(())

    user.optimizer.step(again)


def two(user: User) -> list[torch.optim.Optimizer]:
    """Optimizers of different parameters, attached."""
    every = list(user.model.parameters())
    both = [torch.optim.SGD(every[:3], lr=0.05), torch.optim.AdamW(every[3:], lr=0.05)]
    user.attach(*both)
    return both


def step_and_clear(optimizers: list[torch.optim.Optimizer]) -> None:
    """First all of the one, then all of the other."""
    for optimizer in optimizers:
        optimizer.step()
    for optimizer in optimizers:
        optimizer.zero_grad()


@habit()
def two_optimizers(user: User) -> None:
    """attached: two optimizers of different parameters"""
    both = two(user)
    for _ in range(2):
        user.do("backward clip")
        step_and_clear(both)
        user.evaluate()


@habit()
def one_of_two_steps(user: User) -> None:
    """attached: two optimizers, of which one does not step"""
    both = two(user)
    user.backward()
    both[0].step()
    user.evaluate()


in_words(__name__)("""
other_optimizer: attach backward renew step | attached, but the optimizer that steps is another one
""")


@habit()
def other_model(user: User) -> None:
    """the optimizer of another model attached"""
    user.attach(torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=1.0))


@habit()
def scheduler(user: User) -> None:
    """attached: a schedule of learning rates"""
    user.attach()
    schedule = torch.optim.lr_scheduler.LambdaLR(user.optimizer, lambda n: 1 / (1 + n))
    for _ in range(3):
        user.usual()
        schedule.step()


@habit()
def set_by_hand(user: User) -> None:
    """attached: `.grad` set by hand, then a step"""
    user.attach()
    for parameter in user.model.parameters():
        parameter.grad = torch.ones_like(parameter)
    user.do("step zero usual")

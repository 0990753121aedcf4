"""Loops that know nothing of the engine: an optimizer attached to it, in every order."""

import io

import torch
from torch import nn
from users import User, sharded

from habits import habit
from habits.forgotten import parts_norm
from habits.settings import to_sums


def attached(user: User) -> None:
    if user.odc:
        user.odc.attach(user.optimizer)


def usual(user: User, counts: tuple[int, ...] | None = None) -> None:
    """Backward, clip, step, zero_grad."""
    user.backward(counts)
    user.clip()
    user.step()
    user.zero()


@habit(counts=(3, 1))
def five_lines(user: User) -> None:
    """attached: backward, clip, step, `zero_grad()`"""
    attached(user)
    for _ in range(3):
        usual(user)
        user.evaluate()


@habit(counts=(3, 1))
def zero_grad_first(user: User) -> None:
    """attached: `zero_grad()` first, then backward, clip, step"""
    attached(user)
    for _ in range(3):
        user.zero()
        user.backward()
        user.clip()
        user.step()
    user.evaluate()


@habit()
def zero_grad_after_forward(user: User) -> None:
    """attached: `zero_grad()` between forward and backward"""
    attached(user)
    for _ in range(2):
        user.number += 1
        losses = [user.loss(rank, 0) for rank in user.ranks]
        user.zero()
        for loss in losses:
            loss.backward()
        user.step()


@habit()
def without_clipping(user: User) -> None:
    """attached: backward, step, `zero_grad()`"""
    attached(user)
    for _ in range(3):
        user.backward()
        user.step()
        user.zero()


@habit(counts=(2, 0))
def one_without_microbatches(user: User) -> None:
    """attached: one device without microbatches, clipping, after a `zero_grad()`"""
    attached(user)
    user.zero()
    for _ in range(2):
        usual(user)
    usual(user, (0, 1))


@habit(counts=(2, 0))
def first_without_microbatches(user: User) -> None:
    """attached: one device without microbatches clips, where nobody has called `zero_grad()` before"""
    attached(user)
    usual(user)


@habit()
def nobody_has_a_microbatch(user: User) -> None:
    """attached: a minibatch without any microbatch"""
    attached(user)
    usual(user)
    usual(user, (0, 0))
    usual(user)


@habit()
def clip_after_step(user: User) -> None:
    """attached: clipping after the step: too late, as ever"""
    attached(user)
    for _ in range(2):
        user.backward()
        user.step()
        user.clip()
        user.zero()


@habit()
def norm_logged(user: User) -> None:
    """attached: gradients logged before clipping and after the step"""
    attached(user)
    for _ in range(2):
        user.backward()
        user.look_at_gradients()
        user.clip()
        user.step()
        user.look_at_gradients()
        user.zero()


@habit()
def norm_of_parts_logged(user: User) -> None:
    """attached: norms of `.grad._local_tensor` logged, then backward, step"""
    attached(user)
    for _ in range(2):
        user.backward()
        seen = [parts_norm(p.grad) for p in user.model.parameters()]
        assert all(bool(norm > 0) for norm in seen)
        user.step()
        user.zero()


@habit()
def step_twice(user: User) -> None:
    """attached: two steps with the same gradients"""
    attached(user)
    user.backward()
    user.step()
    user.step()
    user.zero()
    usual(user)


@habit()
def no_zero_grad(user: User) -> None:
    """attached: no `zero_grad()` between two minibatches"""
    attached(user)
    user.backward()
    user.step()
    user.backward()
    user.clip()
    user.step()


@habit(optimizer=torch.optim.AdamW)
def zero_grad_to_zeros(user: User) -> None:
    """attached: `zero_grad(set_to_none=False)`"""
    attached(user)
    user.backward()
    user.step()
    user.zero(set_to_none=False)
    usual(user)


@habit()
def zero_grad_of_the_model(user: User) -> None:
    """attached: `model.zero_grad()` in place of the optimizer's"""
    attached(user)
    for _ in range(2):
        user.backward()
        user.clip()
        user.step()
        user.model.zero_grad()


@habit()
def zero_grad_between_microbatches(user: User) -> None:
    """attached: `zero_grad()` between two microbatches"""
    attached(user)
    user.backward()
    user.zero()
    user.backward()
    user.step()


@habit()
def skipped_step(user: User) -> None:
    """attached: a step that is skipped, for its norm was too large"""
    attached(user)
    user.backward()
    user.clip()
    user.zero()
    usual(user)


@habit()
def settled_and_published_too(user: User) -> None:
    """attached, and `settle()` and `publish()` called all the same"""
    attached(user)
    for _ in range(2):
        user.backward()
        user.settle()
        user.clip()
        user.step()
        user.zero()
        user.publish()


@habit()
def settle_after_clipping(user: User) -> None:
    """attached: `settle()` after clipping"""
    attached(user)
    for _ in range(2):
        user.backward()
        user.clip()
        user.settle()
        user.step()
        user.zero()


@habit()
def one_looks(user: User) -> None:
    """attached: one device looks at a gradient before the step, the other does not"""
    attached(user)
    user.backward()
    if user.rank == 0:
        user.model.head.weight.grad.norm()
    user.step()
    user.zero()


@habit()
def handles_kept(user: User) -> None:
    """attached: gradients taken from `.grad` before they are there, changed in place and read later"""
    attached(user)
    user.backward()
    taken = [p.grad for p in user.model.parameters()]
    torch._foreach_mul_(taken, 0.5)
    user.clip()
    user.step()
    user.zero()
    usual(user)
    user.seen.append({str(i): part(gradient) for i, gradient in enumerate(taken)})


def part(gradient: torch.Tensor) -> torch.Tensor:
    return gradient.to_local().clone() if hasattr(gradient, "to_local") else gradient.clone()


@habit()
def evaluation_before_clipping(user: User) -> None:
    """attached: evaluation between backward and clipping"""
    attached(user)
    for _ in range(2):
        user.backward()
        user.evaluate()
        user.clip()
        user.step()
        user.zero()


@habit()
def evaluation_before_logging(user: User) -> None:
    """attached: evaluations between microbatches, under `inference_mode`, then gradients logged"""
    attached(user)
    for _ in range(2):
        user.backward((1, 0))
        user.evaluate(torch.inference_mode, 1)
        user.backward((0, 1))
        user.evaluate(torch.inference_mode, 2)
        user.look_at_gradients()
        user.step()
        user.zero()


@habit(counts=(2, 0))
def evaluation_then_clip(user: User) -> None:
    """attached: an evaluation, one device without microbatches, clipping"""
    attached(user)
    user.zero()
    for _ in range(2):
        user.evaluate()
        usual(user)


@habit(counts=(1, 1))
def evaluation_between_forward_and_backward(user: User) -> None:
    """attached: evaluation between a forward pass and its backward pass"""
    attached(user)
    for _ in range(2):
        user.number += 1
        losses = [user.loss(rank, 0) for rank in user.ranks]
        user.evaluate()
        for loss in losses:
            loss.backward()
        user.clip()
        user.step()
        user.zero()


def _forwards_alone(user: User) -> None:
    for rank in user.ranks:
        user.loss(rank, 0)


@habit()
def forward_before_clipping(user: User) -> None:
    """attached: a forward pass with gradients and without a backward pass, then clipping"""
    attached(user)
    user.backward()
    _forwards_alone(user)
    user.clip()


@habit(counts=(2, 0))
def forward_before_clipping_where_one_has_nothing(user: User) -> None:
    """attached: the same where one device has no microbatch"""
    attached(user)
    user.zero()
    user.backward()
    if user.rank != 0:
        _forwards_alone(user)
    user.clip()


@habit()
def forward_and_reshard_before_clipping(user: User) -> None:
    """attached: a forward pass without a backward pass, `reshard()` of every module, then clipping"""
    attached(user)
    for _ in range(2):
        user.backward()
        _forwards_alone(user)
        sharded(user.model)
        user.clip()
        user.step()
        user.zero()


@habit()
def evaluation_before_step(user: User) -> None:
    """attached: evaluation between clipping and the step"""
    attached(user)
    user.backward()
    user.clip()
    user.evaluate()
    user.step()


@habit()
def evaluation_after_step(user: User) -> None:
    """attached: evaluation between the step and `zero_grad()`"""
    attached(user)
    for _ in range(2):
        user.backward()
        user.step()
        user.evaluate()
        user.zero()


@habit()
def loaded(user: User) -> None:
    """attached: `load_state_dict`, then training on"""
    attached(user)
    kept = {name: value.clone() for name, value in user.model.state_dict().items()}
    usual(user)
    user.model.load_state_dict(kept)
    user.evaluate()
    usual(user)


@habit()
def loaded_before_step(user: User) -> None:
    """attached: `load_state_dict` between backward and the step"""
    attached(user)
    kept = {name: value.clone() for name, value in user.model.state_dict().items()}
    user.backward()
    user.model.load_state_dict(kept)
    user.step()
    user.zero()
    usual(user)


@habit()
def loaded_partly(user: User) -> None:
    """attached: `load_state_dict` of a layer alone"""
    attached(user)
    usual(user)
    layer = user.model.layers[1]
    layer.load_state_dict({name: 0.5 * value for name, value in layer.state_dict().items()})
    usual(user)


@habit(optimizer=torch.optim.AdamW)
def resumed(user: User) -> None:
    """attached: state_dicts of `torch.distributed.checkpoint`, before the first step and after it"""
    from torch.distributed.checkpoint import state_dict as dcp

    attached(user)
    model, optimizer = dcp.get_state_dict(user.model, user.optimizer)
    usual(user)
    dcp.set_state_dict(user.model, user.optimizer, model_state_dict=model, optim_state_dict=optimizer)
    usual(user)
    user.evaluate()


@habit(optimizer=torch.optim.AdamW)
def saved(user: User) -> None:
    """attached: model and optimizer saved, trained on, loaded"""
    attached(user)
    usual(user)
    file = io.BytesIO()
    torch.save([user.model.state_dict(), user.optimizer.state_dict()], file)
    usual(user)
    file.seek(0)
    weights, states = torch.load(file, weights_only=False)
    user.model.load_state_dict(weights)
    user.optimizer.load_state_dict(states)
    usual(user)


@habit()
def closure(user: User) -> None:
    """attached: a step that is given a closure"""
    attached(user)

    def again():
        user.zero()
        user.backward((1, 1))
        return torch.zeros(())

    user.optimizer.step(again)


@habit()
def two_optimizers(user: User) -> None:
    """attached: two optimizers of different parameters"""
    every = list(user.model.parameters())
    both = [torch.optim.SGD(every[:3], lr=0.05), torch.optim.AdamW(every[3:], lr=0.05)]
    if user.odc:
        user.odc.attach(*both)
    for _ in range(2):
        user.backward()
        user.clip()
        for optimizer in both:
            optimizer.step()
        for optimizer in both:
            optimizer.zero_grad()
        user.evaluate()


@habit()
def one_of_two_steps(user: User) -> None:
    """attached: two optimizers, of which one does not step"""
    every = list(user.model.parameters())
    both = [torch.optim.SGD(every[:3], lr=0.05), torch.optim.SGD(every[3:], lr=0.05)]
    if user.odc:
        user.odc.attach(*both)
    user.backward()
    both[0].step()
    user.evaluate()


@habit()
def other_optimizer(user: User) -> None:
    """attached, but the optimizer that steps is another one"""
    attached(user)
    user.backward()
    user.new_optimizer().step()


@habit()
def other_model(user: User) -> None:
    """the optimizer of another model attached"""
    if user.odc:
        user.odc.attach(torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=1.0))


@habit()
def attached_twice(user: User) -> None:
    """an optimizer attached twice"""
    attached(user)
    attached(user)


@habit()
def scheduler(user: User) -> None:
    """attached: a schedule of learning rates"""
    attached(user)
    schedule = torch.optim.lr_scheduler.LambdaLR(user.optimizer, lambda n: 1 / (1 + n))
    for _ in range(3):
        usual(user)
        schedule.step()


@habit()
def set_by_hand(user: User) -> None:
    """attached: `.grad` set by hand, then a step"""
    attached(user)
    for parameter in user.model.parameters():
        parameter.grad = torch.ones_like(parameter)
    user.step()
    user.zero()
    usual(user)


@habit(counts=(1, 1))
def closed(user: User) -> None:
    """attached, `close()`, stock training on"""
    attached(user)
    usual(user)
    if user.odc:
        user.odc.close()
        user.odc = None
        to_sums(user.model)
    usual(user)

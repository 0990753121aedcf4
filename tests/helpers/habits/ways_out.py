"""What an attached loop is refused, and what comes of it where the way out is taken."""

from torch import nn
from users import User

from habits import habit
from habits.attached import attached, usual
from habits.interrupted import collectives


@habit()
def loaded_partly_and_published(user: User) -> None:
    """attached: `load_state_dict` of a layer alone, then `publish()`"""
    attached(user)
    usual(user)
    layer = user.model.layers[1]
    layer.load_state_dict({name: 0.5 * value for name, value in layer.state_dict().items()})
    user.publish()
    usual(user)


@habit()
def dropped(user: User) -> None:
    """attached: a minibatch dropped by `publish()` on all devices"""
    attached(user)
    if user.odc:
        user.backward()
        user.publish()
        user.number = -1
    usual(user)
    usual(user)


@habit()
def evaluation_after_a_skipped_step(user: User) -> None:
    """attached: a step that is skipped, `zero_grad()`, evaluation"""
    attached(user)
    user.backward()
    user.clip()
    user.zero()
    user.evaluate()
    usual(user)


@habit()
def skipped_by_one(user: User) -> None:
    """attached: a step that one device skips"""
    attached(user)
    user.backward()
    if user.rank != 1:
        user.step()
    user.zero()
    usual(user)


@habit()
def norm_logged_in_backward(user: User) -> None:
    """attached: gradients logged by hooks inside backward"""
    attached(user)
    for p in user.model.parameters():
        p.register_post_accumulate_grad_hook(lambda p: user.seen.append(p.grad.norm().item()))
    usual(user)


@habit()
def gradient_hooks(user: User) -> None:
    """attached: tensor hooks on parameters that change gradients"""
    attached(user)
    for p in user.model.parameters():
        p.register_hook(lambda g: 2 * g)
    usual(user)


@habit()
def changed_before_step(user: User) -> None:
    """attached: gradients doubled, and a penalty's added, between backward and the step"""
    attached(user)
    for _ in range(2):
        user.backward()
        for p in user.model.parameters():
            p.grad.mul_(2).add_(p.detach(), alpha=0.1)
        user.step()
        user.zero()


@habit()
def penalty_on_shards(user: User) -> None:
    """attached: a penalty computed on the sharded parameters, outside of a forward pass"""
    attached(user)
    user.backward()
    penalty = sum(p.pow(2).sum() for p in user.model.parameters())
    (penalty.full_tensor() if hasattr(penalty, "full_tensor") else penalty).backward()
    user.step()


@habit()
def backward_after_a_look(user: User) -> None:
    """attached: two forward passes, gradients logged between their backward passes"""
    attached(user)
    first, second = ([user.loss(rank, microbatch) for rank in user.ranks] for microbatch in range(2))
    for value in first:
        value.backward()
    user.look_at_gradients()
    for value in second:
        value.backward()


@habit()
def settled_twice(user: User) -> None:
    """attached: `settle()` twice"""
    attached(user)
    user.backward()
    user.settle()
    user.settle()


@habit()
def assigned(user: User) -> None:
    """attached: `load_state_dict(assign=True)`, and the optimizer of the parameters there were"""
    attached(user)
    user.model.load_state_dict({k: 0.5 * v for k, v in user.model.state_dict().items()}, assign=True)
    usual(user)


@habit()
def assigned_and_attached(user: User) -> None:
    """attached: `load_state_dict(assign=True)`, and a new optimizer attached"""
    attached(user)
    user.model.load_state_dict({k: 0.5 * v for k, v in user.model.state_dict().items()}, assign=True)
    user.optimizer = user.new_optimizer()
    attached(user)
    user.zero()
    for _ in range(2):
        usual(user)


@habit()
def unfrozen(user: User) -> None:
    """attached: a layer unfrozen"""
    user.model.layers[1].requires_grad_(False)
    user.reopen_attached()
    usual(user)
    user.model.layers[1].requires_grad_(True)
    usual(user)


@habit()
def unfrozen_for_another(user: User) -> None:
    """attached: a layer unfrozen for a new `OnDemand`, to which the optimizer is attached"""
    user.model.layers[1].requires_grad_(False)
    user.reopen_attached()
    usual(user)
    user.model.layers[1].requires_grad_(True)
    user.reopen_attached()
    usual(user)
    usual(user)


@habit()
def another_head(user: User) -> None:
    """attached: another head put in"""
    attached(user)
    usual(user)
    user.model.head = nn.Linear(7, 11, bias=False).to(user.dtype)
    usual(user)


@habit(counts=(3, 1), how={"timeout": 2.0})
def metrics_for_each_microbatch(user: User) -> None:
    """attached: a collective for each microbatch, with unequal numbers of microbatches"""
    attached(user)
    collectives(user)
    user.step()

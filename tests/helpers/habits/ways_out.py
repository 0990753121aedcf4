"""What loops are refused, attached ones first, and what comes of it where the way out is taken."""

import torch
import torch.distributed as dist
from nets import Net
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from users import User

from habits import habit
from habits.attached import attached, usual
from habits.interrupted import collectives
from habits.replaced import new_head
from habits.settings import to_sums


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


@habit()
def metrics_after_the_step(user: User) -> None:
    """attached: a collective of metrics after the step, with unequal numbers of microbatches"""
    attached(user)
    for _ in range(2):
        usual(user)
        if user.odc:
            dist.all_reduce(torch.ones(1))


@habit()
def look_after_both(user: User) -> None:
    """attached: two forward passes, gradients logged after both backward passes"""
    attached(user)
    user.number += 1
    losses = [user.loss(rank, microbatch) for microbatch in range(2) for rank in user.ranks]
    for value in losses:
        value.backward()
    user.look_at_gradients()
    user.step()


@habit(how={"timeout": 4.0})
def another_head_for_another(user: User) -> None:
    """attached: another head put in and given to `fully_shard`, for a new `OnDemand` and a new optimizer"""
    attached(user)
    usual(user)
    if user.odc:
        user.odc.close()
    new_head(user)
    if user.odc:
        fully_shard(user.model.head)
    user.optimizer = user.new_optimizer()
    user.reopen_attached()
    usual(user)
    usual(user)


@habit()
def part_of_the_parameters_cleared(user: User) -> None:
    """attached: an optimizer of some of the parameters, the gradients of all cleared by `model.zero_grad()`"""
    user.optimizer = torch.optim.SGD(list(user.model.parameters())[:3], lr=0.1)
    attached(user)
    for _ in range(2):
        user.backward()
        user.step()
        user.model.zero_grad()


class Penalized(Net):
    """The penalty on the head's weight is computed in the forward pass."""

    def forward(self, tokens: Tensor, turn: int) -> Tensor:
        return super().forward(tokens, turn) * (1 + self.head.weight.pow(2).mean())


@habit(model=Penalized)
def penalty_in_forward(user: User) -> None:
    """a penalty computed in a forward pass"""
    user.minibatch()
    user.minibatch()


@habit(model=Penalized)
def penalty_in_forward_attached(user: User) -> None:
    """attached: a penalty computed in a forward pass"""
    attached(user)
    usual(user)
    usual(user)


def _with_another_head() -> Net:
    model = Net()
    model.head.weight = nn.Parameter(0.5 * model.head.weight.detach())
    return model


@habit(model=_with_another_head)
def replaced_before(user: User) -> None:
    """another `nn.Parameter` put in a parameter's place before `fully_shard`"""
    user.minibatch()
    user.minibatch()


@habit()
def changed_between(user: User) -> None:
    """weights scaled between `settle()` and `publish()`, not by forward passes"""
    for _ in range(2):
        user.backward()
        user.settle()
        user.step()
        with torch.no_grad():
            user.model.embedding.weight.mul_(0.9)
        user.zero()
        user.publish()


def _in_bfloat16(model: nn.Module) -> None:
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.layers:
        fully_shard(layer, mp_policy=policy)
    fully_shard(model, mp_policy=policy)


@habit(wrap=_in_bfloat16, bound=0.1)
def in_bfloat16(user: User) -> None:
    """`MixedPrecisionPolicy(param_dtype=torch.bfloat16)`"""
    user.minibatch()
    user.minibatch()


@habit()
def closed_and_cleared(user: User) -> None:
    """`close()` between backward and the step, `zero_grad()`, stock training on"""
    user.backward((1, 1))
    if user.odc:
        user.odc.close()
        user.odc = None
        to_sums(user.model)
    user.zero()
    user.backward((1, 1))
    user.step()

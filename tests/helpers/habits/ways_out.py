"""What loops are refused, attached ones first, and what comes of it where the way out is taken."""

from functools import partial

import torch
from nets import Net
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy
from users import User, by_layers

from habits import habit, in_words
from habits.attached import load_half_a_layer
from habits.gradients import penalty
from habits.interrupted import all_reduce, collectives
from habits.replaced import new_head, shard_head
from habits.settings import double_by_hooks

in_words(__name__, load_half_a_layer, double_by_hooks, penalty, new_head, all_reduce)("""
loaded_partly_and_published: attach usual load_half_a_layer publish usual
    attached: `load_state_dict` of a layer alone, then `publish()`
evaluation_after_a_skipped_step: attach backward clip zero evaluate usual
    attached: a step that is skipped, `zero_grad()`, evaluation
gradient_hooks: attach double_by_hooks usual | attached: tensor hooks on parameters that change gradients
penalty_on_shards: attach backward penalty step
    attached: a penalty computed on the sharded parameters, outside of a forward pass
settled_twice: attach backward settle settle | attached: `settle()` twice
assigned: attach assign_half usual
    attached: `load_state_dict(assign=True)`, and the optimizer of the parameters there were
assigned_and_attached: attach assign_half renew attach zero; 2 x usual
    attached: `load_state_dict(assign=True)`, and a new optimizer attached
unfrozen: freeze reopen_attached usual unfreeze usual | attached: a layer unfrozen
unfrozen_for_another: freeze reopen_attached usual unfreeze reopen_attached usual usual
    attached: a layer unfrozen for a new `OnDemand`, to which the optimizer is attached
another_head: attach usual new_head usual | attached: another head put in
metrics_after_the_step: attach; 2 x usual all_reduce
    attached: a collective of metrics after the step, with unequal numbers of microbatches
closed_and_cleared: backward:1,1 go_on_without zero backward:1,1 step
    `close()` between backward and the step, `zero_grad()`, stock training on
""")


@habit()
def dropped(user: User) -> None:
    """attached: a minibatch dropped by `publish()` on all devices"""
    user.attach()
    if user.odc:
        user.do("backward publish")
        user.number = -1
    user.do("2 x usual")


@habit()
def skipped_by_one(user: User) -> None:
    """attached: a step that one device skips"""
    user.do("attach backward")
    if user.rank != 1:
        user.step()
    user.do("zero usual")


@habit()
def norm_logged_in_backward(user: User) -> None:
    """attached: gradients logged by hooks inside backward"""
    user.attach()
    for p in user.model.parameters():
        p.register_post_accumulate_grad_hook(lambda p: user.seen.append(p.grad.norm().item()))
    user.usual()


@habit()
def changed_before_step(user: User) -> None:
    """attached: gradients doubled, and a penalty's added, between backward and the step"""
    user.attach()
    for _ in range(2):
        user.backward()
        for p in user.model.parameters():
            p.grad.mul_(2).add_(p.detach(), alpha=0.1)
        user.do("step zero")


@habit()
def backward_after_a_look(user: User) -> None:
    """attached: two forward passes, gradients logged between their backward passes"""
    user.do("attach forward")
    second = [user.loss(rank, 1) for rank in user.ranks]
    user.do("go_back look_at_gradients")
    for value in second:
        value.backward()


@habit()
def look_after_both(user: User) -> None:
    """attached: two forward passes, gradients logged after both backward passes"""
    user.do("attach forward")
    user.losses += [user.loss(rank, 1) for rank in user.ranks]
    user.do("go_back look_at_gradients step")


in_words(__name__, collectives, counts=(3, 1), how={"timeout": 2.0})("""
metrics_for_each_microbatch: attach collectives step
    attached: a collective for each microbatch, with unequal numbers of microbatches
""")


@habit(how={"timeout": 4.0})
def another_head_for_another(user: User) -> None:
    """attached: another head put in and given to `fully_shard`, for a new `OnDemand` and a new optimizer"""
    user.do("attach usual")
    if user.odc:
        user.odc.close()
    user.do("new_head shard_head renew reopen_attached usual usual", new_head, shard_head)


@habit()
def part_of_the_parameters_cleared(user: User) -> None:
    """attached: an optimizer of some of the parameters, the gradients of all cleared by `model.zero_grad()`"""
    user.optimizer = torch.optim.SGD(list(user.model.parameters())[:3], lr=0.1)
    user.do("attach; 2 x backward step zero_model")


class Penalized(Net):
    """The penalty on the head's weight is computed in the forward pass."""

    def forward(self, tokens: Tensor, turn: int) -> Tensor:
        return super().forward(tokens, turn) * (1 + self.head.weight.pow(2).mean())


in_words(__name__, model=Penalized)("""
penalty_in_forward: 2 x minibatch | a penalty computed in a forward pass
penalty_in_forward_attached: attach; 2 x usual | attached: a penalty computed in a forward pass
""")


def _with_another_head() -> Net:
    model = Net()
    model.head.weight = nn.Parameter(0.5 * model.head.weight.detach())
    return model


in_words(__name__, model=_with_another_head)("""
replaced_before: 2 x minibatch | another `nn.Parameter` put in a parameter's place before `fully_shard`
""")


@habit()
def changed_between(user: User) -> None:
    """weights scaled between `settle()` and `publish()`, not by forward passes"""
    for _ in range(2):
        user.do("backward settle step")
        with torch.no_grad():
            user.model.embedding.weight.mul_(0.9)
        user.do("zero publish")


BFLOAT16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
in_words(__name__, wrap=partial(by_layers, mp_policy=BFLOAT16), bound=0.1)("""
in_bfloat16: 2 x minibatch | `MixedPrecisionPolicy(param_dtype=torch.bfloat16)`
""")

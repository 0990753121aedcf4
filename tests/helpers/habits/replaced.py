"""Parts of the model that are replaced, added or taken away when communication is there already."""

import nets
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.func import functional_call
from users import User

from habits import habit, in_words


def new_head(user: User) -> None:
    torch.manual_seed(3)
    user.model.head = nn.Linear(nets.WIDTH, 11, bias=False).to(user.dtype)


def shard_head(user: User) -> None:
    if user.odc:
        fully_shard(user.model.head)


def tie(user: User) -> None:
    user.model.head.weight = user.model.embedding.weight


in_words(__name__, new_head, shard_head, tie)("""
head: minibatch new_head renew minibatch | another head put in
head_without_microbatches: new_head minibatch:0,0 | another head put in, and a minibatch without any microbatch
sharded_head: new_head shard_head renew minibatch | another head put in and given to `fully_shard`
tied: tie renew minibatch | embedding and head tied
""")


@habit(how={"timeout": 4.0})
def head_for_another(user: User) -> None:
    """`close()`, another head put in and given to `fully_shard`, and another `OnDemand`"""
    user.minibatch()
    if user.odc:
        user.odc.close()
    user.do("new_head shard_head reopen renew; 2 x minibatch", new_head, shard_head)


@habit()
def weight(user: User) -> None:
    """another `nn.Parameter` put in a parameter's place"""
    user.model.head.weight = nn.Parameter(0.5 * user.model.head.weight.detach())
    user.do("renew minibatch")


@habit()
def values(user: User) -> None:
    """a parameter's values changed in place, then `publish()`"""
    with torch.no_grad():
        user.model.head.weight.copy_(0.5 * user.model.head.weight)
    user.do("publish minibatch")


@habit()
def adapters(user: User) -> None:
    """adapters added to layers"""
    torch.manual_seed(4)
    for layer in user.model.layers:
        layer.adapter = nn.Linear(nets.WIDTH, nets.WIDTH).to(user.dtype)
        layer.register_forward_hook(lambda layer, given, out: out + layer.adapter(given[0]))
    user.do("renew minibatch")


@habit()
def called_with_others(user: User) -> None:
    """`functional_call` with other weights"""
    halves = {name: 0.5 * value for name, value in user.model.named_parameters()}
    functional_call(user.model, halves, (nets.tokens_of(0, 0), 0)).logsumexp(-1).sum().backward()
    user.finish()


@habit()
def layer_taken_away(user: User) -> None:
    """a layer taken away"""
    user.minibatch()
    del user.model.layers[1]
    user.minibatch()

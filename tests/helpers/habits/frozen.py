"""Parameters that are frozen and unfrozen."""

from nets import Half, OneTrained
from users import User

from habits import habit


@habit(model=Half)
def frozen_before(user: User) -> None:
    """parameters and a whole layer frozen before `OnDemand`"""
    for _ in range(2):
        user.backward()
        user.settle()
        user.look_at_gradients()
        user.step()
        user.publish()


@habit()
def layer_frozen_later(user: User) -> None:
    """a layer frozen after `OnDemand`"""
    user.minibatch()
    user.model.layers[1].requires_grad_(False)
    user.backward()
    user.settle()
    user.look_at_gradients()
    user.step()
    user.publish()


@habit()
def parameter_frozen_later(user: User) -> None:
    """a parameter frozen after `OnDemand`"""
    user.minibatch()
    user.model.layers[1].up.requires_grad_(False)
    user.minibatch()


@habit()
def frozen_inside(user: User) -> None:
    """a layer frozen between two microbatches"""
    user.backward()
    user.model.layers[1].requires_grad_(False)
    user.backward()
    user.settle()
    user.look_at_gradients()


@habit(model=Half)
def unfrozen_later(user: User) -> None:
    """a layer unfrozen after `OnDemand`"""
    user.minibatch()
    user.model.layers[1].requires_grad_(True)
    user.minibatch()


@habit(model=Half)
def refrozen(user: User) -> None:
    """a layer unfrozen for a new `OnDemand`"""
    user.minibatch()
    if user.odc:
        user.odc.close()
    user.model.layers[1].requires_grad_(True)
    user.reopen()
    user.minibatch()


@habit()
def frozen_for_an_evaluation(user: User) -> None:
    """everything frozen for an evaluation, and unfrozen after it"""
    user.minibatch()
    user.model.requires_grad_(False)
    user.evaluate()
    user.model.requires_grad_(True)
    user.minibatch()


@habit(model=OneTrained)
def reaches_nothing_trained(user: User) -> None:
    """a microbatch that reaches nothing trained, with `if loss.requires_grad: loss.backward()`"""
    for _ in range(2):
        user.number += 1
        for rank in user.ranks:
            for microbatch in range(user.habit.counts[rank]):
                loss = user.loss(rank, microbatch)
                if loss.requires_grad:
                    loss.backward()
        user.settle()
        user.clip()
        user.look_at_gradients()
        user.step()
        user.publish()


@habit(model=OneTrained)
def goes_back_from_nothing(user: User) -> None:
    """the same with `loss.backward()`, which torch itself refuses"""
    user.minibatch()

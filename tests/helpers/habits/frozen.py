"""Parameters that are frozen and unfrozen."""

from nets import Half, OneTrained
from users import User

from habits import habit, in_words

in_words(__name__, model=Half)("""
frozen_before: 2 x backward settle look_at_gradients step publish
    parameters and a whole layer frozen before `OnDemand`
unfrozen_later: minibatch unfreeze minibatch | a layer unfrozen after `OnDemand`
refrozen: minibatch unfreeze reopen minibatch | a layer unfrozen for a new `OnDemand`
""")
in_words(__name__)("""
layer_frozen_later: minibatch freeze backward settle look_at_gradients step publish | a layer frozen after `OnDemand`
frozen_inside: backward freeze backward settle look_at_gradients | a layer frozen between two microbatches
assigned_while_frozen: minibatch freeze assign_half publish unfreeze renew minibatch
    a layer frozen, weights loaded with `load_state_dict(assign=True)`, and the layer unfrozen
""")


@habit()
def parameter_frozen_later(user: User) -> None:
    """a parameter frozen after `OnDemand`"""
    user.minibatch()
    user.model.layers[1].up.requires_grad_(False)
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
        user.do("settle clip look_at_gradients step publish")


in_words(__name__, model=OneTrained)("""
goes_back_from_nothing: minibatch | the same with `loss.backward()`, which torch itself refuses
""")

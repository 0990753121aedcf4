"""Fixes that error messages name, for three kinds of loop: with settle() and publish(), with an attached optimizer,
in a trainer."""

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Remedies:
    """What to do instead of what was refused."""

    look: str  # a gradient is read too early
    step: str  # an optimizer steps too early
    backward: str  # backward() after gradients were summed
    again: str  # gradients are summed twice
    drop: str  # the minibatch is lost
    lost: str  # a rank has left a meeting
    leave: str  # gradients are cleared or set too early
    left: str  # gradients of the last step are still there
    add: str  # a gradient bypasses its unit
    change: str  # a hook changes gradients
    evaluate: str  # a forward pass between two minibatches
    publish: str  # weights were changed
    together: str  # ranks do not call the same
    remake: str  # an optimizer holds other parameters
    unfreeze: str
    join: str  # parameters were added later
    replace: str
    collective: str  # a rank waits in a collective of the user's
    finite: str  # a gradient is not finite


ANEW = "make the optimizer of model.parameters() anew"
DROP = "drop the minibatch with publish() on all devices"

BY_HAND = Remedies(
    look="call settle() before anybody looks at gradients, clips them or steps",
    step="call settle() first",
    backward="settle when all backward passes are done",
    again="call publish() after the optimizer's step",
    drop=DROP,
    lost="close() this OnDemand on all devices and make another, as where training starts",
    leave=f"zero_grad() and the like after the step, or {DROP}",
    left="call zero_grad() after each step",
    add="use it in a forward pass, or add to .grad after settle()",
    change="change .grad after settle() instead",
    evaluate="evaluate after publish()",
    publish="call publish() on all devices",
    together="call settle() on all devices, or publish() on all to drop a minibatch",
    remake=ANEW,
    unfreeze="close() this OnDemand and make another where parameters are frozen or unfrozen",
    join="close() this OnDemand, have fully_shard manage the parameter, make another",
    replace="change its values in place and publish(), or replace it before fully_shard",
    collective="if it waits in a collective for each microbatch, as of metrics, call that once, after settle()",
    finite="OnDemand(check_finite=False) skips this check, for loops that skip such steps themselves (gradient "
    "scalers)",
)
ATTACHED = replace(
    BY_HAND,
    look="look at gradients when backward() has ended",
    step="attach() the optimizer that steps",
    backward="look at gradients when all backward passes are done",
    again="call the optimizer's step() next, or zero_grad() to leave it out",
    leave=f"call zero_grad() of every attached optimizer, on all devices or on none; or {DROP}",
    left="call zero_grad() after each step, of the model where the optimizer has some of the parameters alone",
    add="use it in a forward pass, or add to .grad between the last backward() and step()",
    change="change .grad between the last backward() and step() instead",
    evaluate="evaluate when every attached optimizer has stepped, or had its zero_grad() called instead",
    publish="step every attached optimizer or call its zero_grad(), and publish() on all devices after other changes",
    together="look at gradients, step and call zero_grad() on all devices or on none, also before the first minibatch; "
    f"or {DROP}",
    remake=f"{ANEW}, and attach() it",
    unfreeze="close() this OnDemand, make another and attach() to it where parameters are frozen or unfrozen",
    join="close() this OnDemand, have fully_shard manage the parameter, make another and attach() to it",
    collective="if it waits in a collective for each microbatch, as of metrics, call that once, after step()",
)
IN_A_TRAINER = Remedies(
    look="look at gradients when all microbatches of the step are through, as in on_pre_optimizer_step",
    step="leave steps to the trainer",
    backward="leave backward passes to the trainer",
    again="leave settle() to the trainer",
    drop="start again from a checkpoint",
    lost="start again from a checkpoint",
    leave="leave gradients to the trainer until its step",
    left="leave zero_grad() to the trainer",
    add="use it in a forward pass",
    change="change .grad in on_pre_optimizer_step instead",
    evaluate="evaluate when the trainer has stepped, as in on_step_end",
    publish="call the trainer's publish_weights() on all devices",
    together="do the same on all devices",
    remake="make the optimizer when the model is prepared, as the trainer does",
    unfreeze="unfreeze before train(); freezing may come later",
    join="add it before train()",
    replace="change its values in place and call the trainer's publish_weights(), or replace it before train()",
    collective="if it waits in a collective for each microbatch, as of metrics, call that once for each step",
    finite="check_finite = False on your trainer's class skips this check, as where a callback clears such gradients",
)

"""Each guard sees something that no other does: without it a habit that is refused goes on, or ends otherwise."""

import contextlib

import pytest
from habits import EVERY
from users import Habit, User, alone, follow, verdict

from odc_engine.fsdp.guards import every
from odcsim.errors import InputError


def evaluation_of_a_refused_minibatch(user: User) -> None:
    """`settle()` refused on all devices, and an evaluation all the same"""
    user.backward()
    if user.odc and user.rank == 0:
        user.zero()
    with contextlib.suppress(InputError):
        user.settle()
    user.evaluate()


SEEN = {
    "BrokenMinibatches": Habit(evaluation_of_a_refused_minibatch),
    "PublishedVersions": EVERY["weights: changed_by_forward"],
    "PassesInOrder": EVERY["order: backward_after_settle"],
    "PublishedBits": EVERY["weights: broadcast"],
    "UnfinishedPasses": EVERY["interrupted: skipped_after_backward"],
    "SecondDerivatives": EVERY["gradients: gradient_penalty"],
    "ForeignParameters": EVERY["replaced: weight"],
    "FrozenParameters": EVERY["frozen: unfrozen_later"],
    "Settings": EVERY["settings: divide_factor_later"],
    "GradientHooks": EVERY["gradients: penalty_on_shards"],
    "KeptGradients": EVERY["gradients: sync_left_off"],
    "TouchedGradients": EVERY["forgotten: zero_grad_before_settle"],
}
BREAKS = "TouchedGradients"  # the first one's minibatch
LETHAL = "SecondDerivatives"  # without it torch itself ends the process


def guarded(rank: int, habit: Habit, names: list[str]):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(every, "GUARDS", [guard for guard in every.GUARDS if guard.__name__ in names])
        return follow(rank, habit)


@pytest.mark.parametrize("guard", [guard.__name__ for guard in every.GUARDS])
def test_a_guard_sees_what_it_is_for_and_nobody_else_does(pools, guard):
    """By itself it says the same, and without it something else comes of the habit."""
    habit = SEEN[guard]

    def came_to(names: list[str]) -> str:
        return verdict(pools(len(habit.counts)).run(guarded, habit, names), *alone(habit), habit.bound)

    refused = came_to(list(SEEN))
    assert "; " in refused
    assert came_to([guard, BREAKS]) == refused
    if guard != LETHAL:
        assert came_to([name for name in SEEN if name != guard]) != refused

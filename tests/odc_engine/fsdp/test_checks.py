"""Each check sees something that no other does: without it a habit that is refused goes on, or ends otherwise."""

import contextlib
from types import SimpleNamespace

import pytest
import torch
from habits import EVERY
from users import Habit, User, alone, follow, verdict

from odc_engine.fsdp import checks
from odc_engine.fsdp.minibatch import Loop
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
    "_broken": Habit(evaluation_of_a_refused_minibatch),
    "_cast": EVERY["weights: cast"],
    "_changed": EVERY["order: publish_before_step"],
    "_changed_whole": EVERY["weights: changed_by_forward"],
    "_settled": EVERY["order: backward_after_settle"],
    "_earlier": EVERY["order: backward_of_a_table_over_a_step"],
    "_other_bits": EVERY["weights: broadcast"],
    "_interrupted": EVERY["interrupted: backward_of_a_layer"],
    "_create_graph": EVERY["gradients: gradient_penalty"],
    "_replaced": EVERY["replaced: tied"],
    "_unknown": EVERY["replaced: adapters"],
    "_unfrozen": EVERY["frozen: unfrozen_later"],
    "_settings": EVERY["settings: divide_factor_later"],
    "_hooks": EVERY["settings: gradient_hooks"],
    "_kept": EVERY["gradients: sync_left_off"],
    "_late": EVERY["training: recomputed_reentrant_together"],
    "_left": EVERY["attached: no_zero_grad"],
    "_touched": EVERY["forgotten: zero_grad_before_settle"],
}
# test_retry and tests/odc_engine/memory/test_meetings have it.
ELSEWHERE = {"_given_up"}
BREAKS = "_touched"  # the minibatch of the first
LETHAL = {"_create_graph"}  # without it torch itself ends the process


def checked(rank: int, habit: Habit, names: list[str]):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checks, "CHECKS", [guard for guard in checks.CHECKS if guard.look.__name__ in names])
        return follow(rank, habit)


@pytest.mark.parametrize("name", SEEN)
def test_a_check_sees_what_it_is_for_and_nobody_else_does(pools, name):
    """By itself it says the same, and without it something else comes of the habit."""
    habit = SEEN[name]

    def came_to(names: list[str]) -> str:
        return verdict(pools(len(habit.counts)).run(checked, habit, names), *alone(habit), habit.bound)

    refused = came_to(list(SEEN))
    assert "; " in refused
    assert came_to([name, BREAKS]) == refused
    if name not in LETHAL:
        assert came_to([each for each in SEEN if each != name]) != refused


def test_flags_of_a_gpu_are_read_together_before_gradients_are_summed():
    """A processor compares bits at once."""
    loop = Loop(torch.nn.Module(), [], torch.zeros_like)
    for unlike, name in ((False, "layers.0"), (True, "layers.1")):
        loop.minibatch.unlike.append((torch.tensor(unlike), SimpleNamespace(name=name)))
    [refusal] = checks.refusals(loop, checks.At.SETTLE)
    assert "layers.1" in refusal.problem


def test_every_check_has_its_habit():
    assert {guard.look.__name__ for guard in checks.CHECKS} == SEEN.keys() | ELSEWHERE | {"_unlike"}

"""Any sequence of what users do is as in one process, or it is refused: drawn ones, too."""

import os
from functools import partial

import pytest
import torch
from hypothesis import event, given, settings
from hypothesis import strategies as st
from users import Habit, User, found, local

MANY = 1000 if "THOROUGH" in os.environ else 100
COUNTS = [(2, 1), (1, 2), (0, 1), (1, 0), (0, 0)]


def scaled(user: User) -> None:
    with torch.no_grad():
        for parameter in user.optimizer.param_groups[0]["params"]:
            parameter.mul_(0.9)


def scaled_data(user: User) -> None:
    for parameter in user.optimizer.param_groups[0]["params"]:
        local(parameter.data).mul_(0.9)


def loaded(user: User) -> None:
    user.model.load_state_dict({name: 0.9 * value for name, value in user.model.state_dict().items()})


ACTIONS = {
    "settle": User.settle,
    "step": User.step,
    "publish": User.publish,
    "zero": User.zero,
    "zero the model": lambda user: user.model.zero_grad(),
    "zero to zeros": lambda user: user.zero(set_to_none=False),
    "clip": User.clip,
    "evaluate": User.evaluate,
    "evaluate, inference": lambda user: user.evaluate(torch.inference_mode),
    "scale": scaled,
    "scale data": scaled_data,
    "load": loaded,
    "freeze": lambda user: user.model.layers[1].requires_grad_(False),
    "unfreeze": lambda user: user.model.layers[1].requires_grad_(True),
    "forward alone": lambda user: [user.loss(rank, 0) for rank in user.ranks] and None,
}
USUAL = [
    ["backward", "settle", "clip", "step", "zero", "publish"],
    ["backward", "backward", "settle", "step", "publish"],
    ["backward", "clip", "step", "zero"],  # enough where the optimizer is attached
]


def drawn(user: User, steps: list[tuple[str, tuple[int, int]]], attached: bool = False) -> None:
    if user.odc and attached:
        user.odc.attach(user.optimizer)
    for name, counts in steps:
        user.backward(counts) if name == "backward" else ACTIONS[name](user)


parts = st.one_of(st.sampled_from(USUAL), st.sampled_from(["backward", *ACTIONS]).map(lambda name: [name]))
sequences = st.lists(parts, min_size=1, max_size=6).map(lambda lists: [name for each in lists for name in each])


@pytest.mark.parametrize("examples", [15, pytest.param(MANY, marks=pytest.mark.slow)])
def test_a_drawn_sequence_is_right_or_refused(pools, examples):
    @settings(max_examples=examples)
    @given(sequences, st.booleans(), st.data())
    def law(names, attached, data):
        steps = [(name, data.draw(st.sampled_from(COUNTS)) if name == "backward" else (0, 0)) for name in names]
        came_to = found(pools, Habit(partial(drawn, steps=steps, attached=attached)))
        event(f"{'attached, ' if attached else ''}{'right' if came_to == 'works' else 'refused'}")
        assert not came_to.startswith(("FAILED", "WRONG")), (steps, attached)

    law()

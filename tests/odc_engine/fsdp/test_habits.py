"""Whatever people do in a training loop is right or refused: never a third thing."""

import pytest
from habits import EVERY
from users import alone, follow, verdict


@pytest.mark.parametrize("name", EVERY)
def test_right_or_refused(pools, name):
    habit = EVERY[name]
    found = verdict(pools(len(habit.counts)).run(follow, habit), *alone(habit), habit.bound)
    print("VERDICT", name, "=>", found)
    assert not found.startswith(("FAILED", "WRONG"))

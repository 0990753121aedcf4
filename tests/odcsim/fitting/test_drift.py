"""How far the next spell may be off is what the known ones differ by."""

import numpy as np
import pytest

from odcsim.fitting.drift import Drift, drift


def held(spells: int, size: float, times: int = 400) -> float:
    """How often another spell is as near to the mean of these as is said."""
    rng, inside = np.random.default_rng(spells), 0
    for _ in range(times):
        speeds = size * rng.standard_normal(spells + 1)
        seconds = np.exp(np.repeat(speeds[:-1], 20))
        found = drift(np.repeat(np.arange(1, spells + 1), 20), seconds, np.ones(20 * spells))
        inside += abs(speeds[-1] - speeds[:-1].mean()) <= found.reach
    return inside / times


@pytest.mark.parametrize("spells", [3, 5, 6])
def test_another_spell_is_as_near_as_is_said_nine_times_in_ten(spells):
    assert 0.85 <= held(spells, 0.1) <= 0.95


def test_a_machine_that_does_not_drift_leaves_nothing_open():
    assert drift([1, 1, 2, 3], np.array([1.0, 3.0, 2.0, 5.0]), np.array([1.0, 3.0, 2.0, 5.0])).reach == 0


@pytest.mark.parametrize("spells", [[0, 0, 0], [1, 1, 1], [1, 2, 2]])
def test_few_spells_say_nothing(spells):
    assert drift(spells, np.array([1.0, 2.0, 4.0]), np.ones(3)) == Drift()


def test_calls_of_no_known_spell_take_no_part():
    seconds, fitted = np.array([1.0, 1.1, 1.2, 50.0]), np.ones(4)
    assert drift([1, 2, 3, 0], seconds, fitted) == drift([1, 2, 3], seconds[:3], fitted[:3])

"""Who is slow and who is only in a long spell: seeded draws of devices whose speed swings, minibatches of a second."""

from dataclasses import replace

import numpy as np
import pytest

from odcsim.fitting.measurements import Compute
from odcsim.fitting.spells import slow, swing


def rows(seed, devices, minibatches, size, spell, *, slowed=1.0, calls=4, once=0.0, noise=0.03):
    """Every call is late by its spell and by noise, and on the last device by `slowed`. `once`: share of work that
    nobody had before."""
    rng = np.random.default_rng(seed)
    for device in range(devices):
        at = (np.arange(minibatches * calls) + 0.5) / calls
        ends = np.cumsum(rng.exponential(spell, 20 + int(2 * minibatches / spell)))
        late = rng.normal(0, size, len(ends) + 1)[np.searchsorted(ends, at)] + rng.normal(0, noise, len(at))
        tokens = np.where(rng.random(len(at)) < once, rng.integers(1 << 40, size=len(at)), 100 + np.arange(len(at)) % 3)
        seconds = tokens * np.exp(late) * (slowed if device == devices - 1 else 1.0)
        for n in range(len(at)):
            told = {"samples": 1, "minibatch": 1 + n // calls, "device": device, "at": at[n] % 1}
            yield Compute("forward", int(tokens[n]), 0.0, float(seconds[n]), **told)


def called(count, *machine, **more):
    """Shares of draws in which somebody is called slow."""
    return sum(slow([*rows(seed, *machine, **more)]) != () for seed in range(count)) / count


def test_alike_devices_are_seldom_called_slow_and_a_slow_one_is():
    assert called(16, 8, 60, 0.1, 3.0) <= 0.04  # 0.44 where minibatches count as independent
    found = [slow([*rows(seed, 8, 60, 0.03, 3.0, slowed=1.1)]) for seed in range(10)]
    assert sum(factors != () for factors in found) >= 9
    for factors in filter(None, found):
        assert factors[-1] / np.mean(factors[:-1]) == pytest.approx(1.1, abs=0.03)


def test_work_that_was_done_once_hides_neither_a_slow_device_nor_a_swing():
    """Logs of real lengths are mostly such work."""
    told = slow([*rows(0, 2, 100, 0.03, 0.5, slowed=1.1, calls=8, once=0.6)])
    assert told == pytest.approx((1 / 1.05, 1.1 / 1.05), abs=0.015)
    assert slow([*rows(0, 2, 100, 0.03, 0.5, calls=8, once=0.6)]) == ()
    assert swing([*rows(0, 2, 100, 0.1, 0.5, calls=8, once=0.6)]).size == pytest.approx(0.1, rel=0.15)


def test_a_device_without_shared_work_leaves_all_unknown():
    told = [replace(row, device=2 - row.device) for row in rows(0, 3, 60, 0.01, 0.5, slowed=1.3)]
    assert slow(told) != ()
    assert slow([replace(row, tokens=row.tokens + 9) if row.device == 2 else row for row in told]) == ()


def test_means_of_alike_devices_belong_to_the_swing():
    """They differ by chance, the more the longer spells are: taken out, they would be missing from it."""
    found = [swing([*rows(seed, 2, 60, 0.1, 10.0)]).size for seed in range(6)]
    assert np.median(found) == pytest.approx(0.1, rel=0.2)

"""Rows and how they compare: ratios of sums on the same samples, with intervals over the minibatches."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from odcsim.recipe import Recipe
from odcsim.results import capacity, summary
from odcsim.results.capacity import FITS, OVER, TIGHT, Need
from odcsim.results.intervals import apart
from odcsim.results.metrics import PARTS, Usage
from odcsim.results.summary import REFERENCE, Row

OTHERS = (("native", "collective"), ("native", "on-demand"), ("lb-micro", "on-demand"), ("lb-mini", "on-demand"))


def row(balancer: str, sync: str, makespan: np.ndarray, devices: int = 4, price: float | None = None) -> Row:
    """Half of all device time is compute, a tenth is each part of idle."""
    samples, total = np.full(len(makespan), 8), devices * makespan
    used = Usage(makespan, 0.5 * total, *[0.1 * total] * 5)
    profile, cluster = SimpleNamespace(low=0.5, high=2.0), SimpleNamespace(gpus=devices)
    cost = SimpleNamespace(ran=Recipe(sync), profile=profile, cluster=cluster)
    return summary.row(cost, balancer, used, (samples, 1000 * samples), price)


def rows(makespans: np.ndarray) -> list[Row]:
    return [row(*pair, seconds) for pair, seconds in zip((REFERENCE, *OTHERS), makespans, strict=True)]


def drawn(minibatches: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).uniform(1, 3, (1 + len(OTHERS), minibatches))


def test_a_row_is_sums_and_ratios_of_sums():
    found = row("native", "collective", np.array([1800.0, 5400.0]), devices=4, price=1.5)
    assert (found.makespan_seconds, found.minibatches, found.gpu_hours, found.dollars) == (7200, 2, 8, 12)
    assert (found.samples_per_second_per_device, found.tokens_per_second) == (16 / 7200 / 4, 16_000 / 7200)
    assert (found.model_low, found.model_high, found.idle) == (3600, 14_400, pytest.approx(0.5))
    assert found.idle_parts == pytest.approx(dict.fromkeys(PARTS, 0.1))
    assert (found.speedup, row("native", "collective", np.array([1.0])).dollars) == (None, None)


@given(st.integers(1, 30), st.integers(0, 99))
def test_speedups_are_ratios_of_sums_and_the_reference_is_exactly_one(minibatches, seed):
    makespans = drawn(minibatches, seed)
    found, total = summary.compared(rows(makespans), list(makespans), apart(minibatches)), makespans.sum(axis=1)
    first = found[0]
    assert first.speedup == first.speedup_low == first.speedup_high == first.sync_gain == first.balancer_gain == 1.0
    for one, seconds in zip(found, total, strict=True):
        assert one.speedup == pytest.approx(total[0] / seconds)
        assert one.speedup_best_collective == pytest.approx(min(total[:2]) / seconds)
        assert one.sync_gain * one.balancer_gain == pytest.approx(one.speedup)
        assert one.speedup_low <= one.speedup_high
    # The sync's part is what the reference's balancer gains by it, whatever the row's own balancer is.
    assert found[3].sync_gain == pytest.approx(found[3].speedup)
    assert found[2].sync_gain == found[3].sync_gain == found[4].sync_gain


def test_the_interval_comes_from_pairs_of_minibatches():
    """Both rows ran the same samples: where one is always twice as fast, what is left open is other samples."""
    slow = drawn(50, 3)[0]
    makespans = np.array([slow, slow, slow, slow, slow / 2])
    last = summary.compared(rows(makespans), list(makespans), apart(50))[-1]
    assert (last.speedup_low, last.speedup_high) == pytest.approx((2, 2), rel=2e-3)


GB = 1e9
LEVELS = [(78.0, 86.0, FITS), (79.12, 86.0, FITS), (79.13, 86.0, TIGHT), (86.0, 86.0, TIGHT), (86.1, 86.0, OVER)]


@pytest.mark.parametrize(("used", "limit", "level"), [*LEVELS, (96.0, None, FITS)])
def test_up_to_92_percent_fits_and_from_there_to_all_is_tight(used, limit, level):
    assert capacity.level(Need(used * GB, None if limit is None else limit * GB)) == level


@given(st.lists(st.floats(0.01, 2.0), max_size=8))
def test_what_is_chosen_from_has_the_best_level_and_nothing_of_it_is_left_out(shares):
    every = [Need(share, 1.0) for share in shares]
    best = min(map(capacity.level, every), default=None)
    assert capacity.roomiest(every) == [one for one in every if capacity.level(one) == best]

"""The interval of seconds in what a comparison says: hours and dollars, what devices reach, where it would flip."""

from dataclasses import replace

import pytest

from odcsim import ask, compare
from odcsim.catalog.estimates.compute import flops
from odcsim.profile import Polynomial, stretched
from odcsim.recipe import Recipe

H100 = {"max_tokens": 0, "gpu": "h100", "devices": 8, "minibatch": 4, "minibatches": 3}


@pytest.fixture(scope="module")
def found():
    return compare(ask("longalign", "qwen3-8b", **H100), price=2.0)


def test_hours_and_dollars_have_the_interval_that_seconds_have(found):
    """Ends are the same schedules with compute at its ends."""
    profile = found.setting.cost.profile
    assert profile.low < 1 < profile.high
    for row in found.rows:
        assert not row.certain
        assert row.gpu_hours_low == pytest.approx(row.gpu_hours * profile.low)
        assert row.dollars_high == pytest.approx(2 * row.gpu_hours * profile.high)
        assert row.model_low / row.makespan_seconds == pytest.approx(profile.low)
    pair = ("lb-micro", "collective")
    low, middle, high = (seconds[pair] for seconds in (found.ends.low, found.ends.middle, found.ends.high))
    assert middle == pytest.approx(found.row(*pair).makespan_seconds)  # few minibatches: all of them
    assert profile.low <= low / middle < 1 < high / middle <= profile.high


def test_what_devices_reach_is_flops_over_time_and_no_more_than_they_have(found):
    """Flops themselves are held against others' in test_mfu; adapters get fewer."""
    model = found.setting.cost.model
    lengths = [m for ids in found.setting.draw() for m in found.setting.trace.take(ids).tolist()]
    tokens, squares = sum(lengths), float(model.squares(lengths).sum())
    own, again = flops(model, Recipe(), tokens, squares)
    row = found.row("lb-mini", "on-demand")
    assert row.tflops_per_device == pytest.approx(own / row.makespan_seconds / 8 / 1e12)
    assert row.mfu == pytest.approx(row.tflops_per_device / 989)
    assert row.hfu == pytest.approx(row.mfu * (own + again) / own)
    assert row.mfu < row.hfu < 0.8
    adapted, _ = flops(model, Recipe(lora=8), tokens, squares)
    kept = model.layers * model.layer_matmul_parameters + model.head_parameters
    assert own - adapted == pytest.approx(2 * tokens * kept)


def test_measured_seconds_have_none_and_stretched_ones_are_of_compute_alone(setting):
    profile = setting.cost.profile
    certain = replace(setting.cost, profile=replace(profile, low=1.0, high=1.0))
    sure = compare(replace(setting, minibatches=1, cost=certain))
    assert sure.ends is None
    assert all(row.certain for row in sure.rows)
    longer = stretched(replace(profile, forward=Polynomial(1, 2, 3, 4, 5), optimizer=7.0), 2.0)
    assert longer.forward == Polynomial(2, 4, 6, 8, 10)
    assert (longer.optimizer, longer.timings, longer.overhead) == (7.0, profile.timings, 2 * profile.overhead)

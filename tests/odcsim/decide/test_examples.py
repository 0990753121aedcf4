"""A minibatch that is shown says what it stands for: the clearest gain, or what the table says."""

from dataclasses import replace

import numpy as np
import pytest

import odcsim
from odcsim.catalog import fits
from odcsim.decide.comparison import compare
from odcsim.decide.evaluate import least_trusted
from odcsim.decide.examples import clearest, typical
from odcsim.errors import InputError
from odcsim.profile import Timing
from odcsim.results import metrics
from odcsim.results.intervals import apart, interval
from odcsim.results.metrics import PARTS, Usage

PAIR = (("lb-micro", "collective"), ("lb-mini", "on-demand"))


@pytest.fixture(scope="module")
def comparison(setting):
    return compare(setting)


def usage(makespan, idle):
    """Of one device: so much of each minibatch is lost at its end."""
    makespan, idle = np.array(makespan, float), np.array(idle, float)
    nothing = np.zeros_like(makespan)
    return Usage(makespan, makespan * (1 - idle), nothing, makespan * idle, nothing, nothing, nothing)


def test_the_typical_one_idles_as_all_do():
    """All together idle 0.6: nearest is 0.5; where two are asked for, that which is off least in both."""
    one = usage([1, 1, 1], [0.4, 0.9, 0.5])
    assert typical([one]) == 2
    assert typical([one, usage([1, 1, 1], [0.5, 0.5, 0.9])]) == 0
    assert typical([usage([0, 1], [0, 0.5])]) == 1
    assert clearest(usage([4, 6, 9], [0, 0, 0]), usage([4, 3, 8], [0, 0, 0])) == 1


@pytest.mark.parametrize("number", range(6))
def test_a_minibatch_alone_is_what_it_was_among_the_others(comparison, number):
    for pair in PAIR:
        alone = metrics.usage(comparison.timeline(*pair, number))
        for name in ("makespan", "compute", *PARTS):
            assert getattr(alone, name)[0] == getattr(comparison.usage(*pair), name)[number]


def test_a_comparison_finds_them(comparison):
    spent = [comparison.usage(*pair).makespan for pair in PAIR]
    assert comparison.clearest(*PAIR) == np.argmax(spent[0] / spent[1])
    assert 0 <= comparison.typical(*PAIR) < 6
    only = replace(comparison, rows=comparison.rows[:1], usages=comparison.usages[:1])
    with pytest.raises(InputError):
        only.usage("lb-mini", "on-demand")


# What answers say of equal lengths in a queue, of few far minibatches and of where seconds are from.

ALIKE = {"model": "r1-distill-qwen-1.5b", "gpu": "a100", "devices": 8, "minibatch": 4, "minibatches": 2}


def test_a_queue_of_equal_lengths_is_none():
    asked = odcsim.ask("fixed:length=4096", max_tokens=16_384, **ALIKE)
    among = [("lb-micro", "collective"), ("lb-micro", "on-demand"), ("pool", "on-demand")]
    assert compare(asked, among=among).row("pool", "on-demand").idle < 1e-3


def test_a_mean_is_not_further_off_than_twice_the_farthest_that_was_met():
    low, high = interval(np.array([1.0, 3.0]), np.array([1.0, 1.0]), apart(2))
    assert 2 * np.exp(-1.0) <= low < 2 < high <= 2 * np.exp(1.0)  # each is half of the mean off


def test_rows_of_a_fit_and_of_the_catalogue_are_the_fits():
    assert least_trusted(["catalogue", "published fit"]) == "published fit"
    assert least_trusted(["catalogue", "catalogue"]) == "catalogue"
    assert least_trusted(["catalogue", "extrapolated"]) == "extrapolated"


def test_a_derived_profile_knows_whether_its_own_seconds_were_measured():
    asked = odcsim.ask("fixed:length=64", max_tokens=64, **ALIKE).cost.profile
    measured = odcsim.ask("fixed:length=64", "qwen3-0.6b", gpu="h100", devices=2, minibatch=1).cost.profile
    timed = replace(measured, fidelity="extrapolated", timings=(Timing("settle", 2, 1e-3, 0.0),))
    given = replace(measured, fidelity="calibrated", publish=0.02)
    assert len({fits.own_origin(one) for one in (asked, timed, given)}) == 3

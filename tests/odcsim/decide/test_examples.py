"""A minibatch that is shown says what it stands for: the clearest gain, or what the table says."""

from dataclasses import replace

import numpy as np
import pytest

from odcsim.decide.comparison import compare
from odcsim.decide.examples import clearest, typical
from odcsim.errors import InputError
from odcsim.results import metrics
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


def test_the_clearest_is_where_the_second_is_furthest_ahead():
    assert clearest(usage([4, 6, 9], [0, 0, 0]), usage([4, 3, 8], [0, 0, 0])) == 1


def test_the_typical_one_idles_as_all_do():
    """All together idle 0.6: nearest is 0.5; where two are asked for, that which is off least in both."""
    one = usage([1, 1, 1], [0.4, 0.9, 0.5])
    assert typical([one]) == 2
    assert typical([one, usage([1, 1, 1], [0.5, 0.5, 0.9])]) == 0


def test_a_minibatch_of_no_time_is_no_error():
    assert typical([usage([0, 1], [0, 0.5])]) == 1


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
    with pytest.raises(InputError, match="there are native"):
        only.usage("lb-mini", "on-demand")

"""Samples over a limit: what is kept, and what the words say it costs."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odcsim.errors import InputError
from odcsim.reading import load
from odcsim.reading.limits import within
from odcsim.trace import Trace

lengths = st.lists(st.integers(1, 100), min_size=1, max_size=20)


def rl() -> Trace:
    return Trace("t", [10, 50, 20, 90], loss=[5, 40, 20, 0], group=[0, 0, 1, 1], step=[3, 3, 4, 4])


@given(lengths, st.integers(1, 100))
@settings(deadline=None)
def test_the_words_tell_what_is_gone(values, limit):
    trace = Trace("t", values)
    kept, cost = within(trace, truncate=limit)
    assert kept.lengths.tolist() == [min(value, limit) for value in values]
    gone = sum(values) - int(kept.lengths.sum())
    assert (f"{gone:,} tokens lost" in cost) is (gone > 0)
    if min(values) <= limit:
        kept, cost = within(trace, drop_over=limit)
        assert kept.lengths.tolist() == [value for value in values if value <= limit]
        over = len(values) - kept.size
        assert cost.startswith(f"{over} samples" if over else "no sample")


def test_shortening_takes_the_loss_at_the_end():
    kept, _ = within(rl(), truncate=20)
    assert kept.lengths.tolist() == [10, 20, 20, 20]
    assert kept.loss.tolist() == [5, 10, 20, 0]
    assert kept.group.tolist() == [0, 0, 1, 1]


def test_leaving_out_takes_whole_rows():
    kept, cost = within(rl(), drop_over=20)
    assert [kept.lengths.tolist(), kept.loss.tolist(), kept.group.tolist(), kept.step.tolist()] == [
        [10, 20], [5, 20], [0, 1], [3, 4]
    ]  # fmt: skip
    assert cost == "2 samples over 20 tokens left out, 50.00%; 140 tokens lost, 82.35%"


def test_counts_weigh():
    table = Trace("t", [10, 50], counts=[98, 2])
    assert within(table, truncate=30)[1] == "2 samples over 30 tokens shortened, 2.00%; 40 tokens lost, 3.70%"
    assert within(table, drop_over=30)[0].size == 98


def test_nothing_left_is_refused():
    with pytest.raises(InputError, match="all samples are over 5 tokens"):
        within(Trace("t", [4, 6], counts=[0, 1]), drop_over=5)


@pytest.mark.parametrize("both", [{"truncate": 0}, {"drop_over": -1}, {"truncate": 1, "drop_over": 1}])
def test_a_limit_is_one_length(both):
    with pytest.raises(InputError, match="give one of them"):
        load("fixed:length=7", **both)


def test_the_origin_tells_it_and_no_limit_changes_nothing():
    plain = load("uniform:min=1,max=100")
    assert load("uniform:min=1,max=100", truncate=50).origin.startswith(f"{plain.origin}; ")
    assert load("uniform:min=1,max=100", drop_over=100).origin == f"{plain.origin}; no sample is over 100 tokens"
    assert np.array_equal(load("uniform:min=1,max=100", truncate=50).lengths, np.minimum(plain.lengths, 50))

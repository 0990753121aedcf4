"""What a profile knows of numbers of devices that it was not measured with."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odcsim.catalog import fits
from odcsim.profile import SHARDED, TIMINGS, TRANSFERS, Profile, Timing

FIT = fits.published("r1-distill-qwen-1.5b", "a100")
seconds = st.floats(0, 1e6)


def timed(*found: Timing) -> Profile:
    return replace(FIT, timings=found)


@given(st.sampled_from(TIMINGS), st.integers(2, 8), st.integers(9, 20), st.tuples(*6 * [seconds]))
def test_between_measured_numbers_of_devices_lies_a_straight_line(kind, low, high, values):
    a, b, c, d, e, f = values
    profile = timed(Timing(kind, low, a, b, e), Timing(kind, high, c, d, f))
    assert [profile.timing(kind, n) for n in (low, high)] == list(profile.timings)
    assert [profile.measured_with(n) for n in (low - 1, low, high, high + 1)] == [False, True, True, False]
    for devices in range(low, high + 1):
        share = (devices - low) / (high - low)
        found = profile.timing(kind, devices)
        assert found.constant == pytest.approx(a + share * (c - a), abs=1e-6)
        assert found.per_byte == pytest.approx(b + share * (d - b), abs=1e-6)
        assert found.slowdown == pytest.approx(e + share * (f - e), abs=1e-6)


@given(st.integers(2, 64), st.integers(2, 64), seconds)
def test_beyond_them_shards_shrink_and_what_comes_from_others_grows(measured, asked, value):
    for kind in TRANSFERS:
        found = timed(Timing(kind, measured, 1.0, value, 1.5)).timing(kind, asked)
        assert (found.constant, found.slowdown) == (1.0, 1.5)
        assert found.per_byte * asked / (asked - 1) == pytest.approx(value * measured / (measured - 1))
    for kind in SHARDED:
        there = timed(Timing(kind, measured, value)).timing(kind, asked)
        assert there.constant * asked == pytest.approx(value * measured)
    for kind in ("meeting", "overhead"):
        assert timed(Timing(kind, measured, value)).timing(kind, asked).constant == value


def test_what_was_not_measured_has_no_timing():
    assert timed(Timing("gather", 2)).timing("meeting", 2) is None
    assert FIT.timing("gather", 2) is None
    assert FIT.measured_with(99)

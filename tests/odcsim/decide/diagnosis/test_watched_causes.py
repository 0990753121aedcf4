"""What the watcher wrote is broken down into its causes, and alike whether it could tell waiting or not."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from watches import met, ran, step, wrote

from odcsim.decide.diagnosis.parts import broken_down
from odcsim.observed.files import read

HELD = st.lists(st.integers(100, 4000), min_size=2, max_size=2)
LENGTHS = st.lists(st.lists(HELD, min_size=3, max_size=3), min_size=6, max_size=6)


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    folder = tmp_path_factory.mktemp("watched")

    def diagnosed(lengths, **injected):
        run = read([str(path) for path in wrote(folder, met(lengths, **injected))])
        return {part.name: part for part in broken_down(run).parts}

    return diagnosed


def lost(lengths):
    """Seconds that ranks wait for the longest, on average over ranks and steps."""
    held = np.array(lengths) / 1000
    return float((held.max(axis=1, keepdims=True) - held).mean(axis=(0, 1)).sum())


@settings(max_examples=20)
@given(lengths=LENGTHS, loader=st.floats(0.01, 2), collector=st.floats(0.01, 2), told=st.booleans())
def test_uneven_lengths_loader_and_collector_have_their_seconds(seen, lengths, loader, collector, told):
    found = seen(lengths, loader=loader, collector=collector, told=told)
    assert found["loader"].seconds == pytest.approx(loader, abs=1e-4)
    assert found["collector"].seconds == pytest.approx(collector, abs=1e-4)
    if told:
        waits = found["lengths"].seconds + found["device"].seconds + found["untold"].seconds
        assert waits == pytest.approx(lost(lengths), abs=1e-3)


def test_lengths_are_named_whether_waiting_is_told_or_not_and_a_slow_rank_where_it_is(seen):
    lengths = np.random.default_rng(0).integers(200, 4000, (12, 4, 3)).tolist()
    for told in (True, False):
        assert seen(lengths, told=told)["lengths"].seconds == pytest.approx(lost(lengths), rel=0.02)
    found = seen(np.full((8, 4, 2), 2000).tolist(), slow=[(2, 1.5)])
    assert found["device"].seconds == pytest.approx(2 * 1.0 * 3 / 4, rel=0.05)
    assert found["lengths"].seconds < 0.01


@pytest.mark.parametrize(("ranks", "transfer"), [(1, 0.0), (2, 1.0)])
def test_of_one_rank_of_several_transfers_are_the_least_that_it_was_blocked(tmp_path, ranks, transfer):
    rows = [[step(n, [ran(0, 4.0, [500], 3.0), ran(4.0, 2.0, [500], 0.5)], seconds=6.0) for n in range(6)]] * ranks
    found = broken_down(read([str(wrote(tmp_path, rows)[0])]))
    assert found.share("transfer") == pytest.approx(transfer / 6)
    assert found.share("untold") == pytest.approx((3.5 - transfer) / 6)
    assert found.share("compute") == pytest.approx(2.5 / 6)
    assert found.cannot

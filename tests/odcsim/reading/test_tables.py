"""Count tables and quantile tables."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odcsim.errors import InputError
from odcsim.reading import load


def write(folder, name, content):
    (folder / name).write_text(content)
    return folder / name


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", "length,count\n5,3\n70,0\n900,2\n"),
        ("a.json", '{"length": [5, 70, 900], "count": [3, 0, 2]}'),
        ("a.json", '[{"length": 5, "count": 3}, {"length": 900, "count": 2}]'),
    ],
)
def test_a_count_table_counts(tmp_path, name, content):
    trace = load(write(tmp_path, name, content))
    assert (trace.size, trace.longest) == (5, 900)
    assert trace.take(np.arange(5)).tolist() == [5, 5, 5, 900, 900]


def test_a_count_table_takes_the_same_memory_whatever_its_counts(tmp_path):
    peaks = []
    for count in (1, 10**9):
        path = write(tmp_path, f"{count}.csv", "length,count\n" + "".join(f"{n},{count}\n" for n in range(1, 1000)))
        load(path)  # once before measuring, so that imports do not count
        tracemalloc.start()
        load(path).minibatches(64, 10)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 2 * peaks[0] + 1e6


@given(
    st.lists(st.integers(1, 10_000), min_size=2, max_size=8).map(sorted),
    st.lists(st.integers(1, 20), min_size=1, max_size=7),
)
@settings(deadline=None)
def test_a_quantile_table_gives_back_its_quantiles(tmp_path_factory, lengths, gaps):
    q = np.concatenate(([0.0], np.cumsum(gaps) / sum(gaps)))
    q[-1] = 1.0
    lengths = np.interp(np.linspace(0, 1, len(q)), np.linspace(0, 1, len(lengths)), lengths).round().astype(int)
    folder = tmp_path_factory.mktemp("q")
    trace = load(write(folder, "q.csv", "q,length\n" + "".join(f"{a},{b}\n" for a, b in zip(q, lengths, strict=True))))
    assert trace.size == 10_000
    expanded = np.repeat(trace.lengths, trace.counts)
    steepest = max(np.diff(lengths) / np.diff(q))
    assert np.abs(np.quantile(expanded, q) - lengths).max() <= 1 + steepest / 5_000


def test_samples_of_a_quantile_table_stand_in_the_middle_of_their_share(tmp_path):
    trace = load(write(tmp_path, "q.csv", "q,length\n0,1\n1,100001\n"))
    assert trace.lengths @ trace.counts / trace.size == pytest.approx(50_001, abs=0.5)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("length,count\n5,-1\n", r"t\.csv:2: column 'count' holds -1; it takes whole numbers from 0"),
        ("length,count\n5,0.5\n", r"t\.csv:2: column 'count' holds 0.5"),
        ("length,count\n5,0\n6,0\n", "column 'count' is zero everywhere"),
        ("length,count\n5,99999999999999999\n", r"t\.csv:2: column 'count' holds 1e\+17"),
        ("length,count,step\n5,1,1\n", "column 'step' in a count table, which has no single samples"),
        ("q,length\n0,5\n50,6\n", r"t\.csv:3: column 'q' holds 50; write 50 % as 0.5"),
        ("q,length\n0,5\nnan,6\n1,7\n", r"t\.csv:3: column 'q' holds nan"),
        ("q,length\n0,5\n0.5,6\n0.5,7\n1,8\n", r"t\.csv:4: column 'q' does not rise from row to row; sort the table"),
        ("q,length\n0,5\n0.5,4\n1,8\n", r"t\.csv:3: column 'length' falls from row to row; sort"),
        ("q,length\n0.5,5\n1,8\n", r"t\.csv:2: column 'q' starts at 0.5; give the shortest sample too, as q=0"),
        ("q,length\n0,5\n0.99,8\n", r"t\.csv:3: column 'q' ends at 0.99; give the longest sample too, as q=1"),
        ("q,length,count\n0,5,1\n", "column 'count' in a quantile table"),
    ],
)
def test_bad_tables(tmp_path, content, message):
    with pytest.raises(InputError, match=message):
        load(write(tmp_path, "t.csv", content))

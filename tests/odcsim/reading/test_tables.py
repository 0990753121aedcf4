"""Rows, counts of equal ones, quantiles, tokens and flags of images: the same samples however they are kept."""

import gzip

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rowfiles import ARRAYS, FILES, NESTED, write

from odcsim.cli import main
from odcsim.errors import InputError
from odcsim.reading import load, tally
from odcsim.reading.images import images
from odcsim.reading.tally import Tally
from odcsim.support import budget

PIECES = st.lists(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 1), st.integers(0, 5)), max_size=20), max_size=8)


@given(PIECES.filter(lambda pieces: any(n for rows in pieces for *_, n in rows)), st.booleans(), st.booleans())
def test_rows_and_counts_are_the_same_samples(pieces, loss, counts):
    def made(most):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(budget, "rows", lambda: most)
            patch.setattr(tally, "WAITING", 3)
            kept = Tally("here")
            for rows in pieces:
                lengths, extra, often = (np.array([row[i] for row in rows], np.int64) for i in range(3))
                kept.add(lengths, extra if loss else None, often if counts else None)
            return kept.trace("t", "file t")

    both = made(10**6), made(40)
    assert (both[1].counts is not None) == (sum(map(len, pieces)) > 40 or counts)
    whole, merged = (
        [np.sort(one.take(np.arange(one.size))).tolist(), one.size, one.longest,
         loss and one.loss @ (np.ones_like(one.loss) if one.counts is None else one.counts)]
        for one in both
    )  # fmt: skip
    assert whole == merged


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_too_many_rows_becomes_counts(name, tmp_path, monkeypatch):
    lengths = np.random.default_rng(0).integers(1, 50, 1000)
    path = write(tmp_path / name, [{"length": n} for n in lengths.tolist()])
    assert np.array_equal(load(path).lengths, lengths)
    for most in (999, 400) if name == "shards" else (999,):
        monkeypatch.setattr(budget, "rows", lambda most=most: most)
        trace = load(path)
        assert np.array_equal(np.repeat(trace.lengths, trace.counts), np.sort(lengths))
        with pytest.raises(InputError):
            trace.minibatches(4, 2, in_order=True)


@pytest.mark.parametrize("columns", ["length,step", "chosen_length,rejected_length"])
def test_rows_that_stand_for_themselves_are_kept_or_refused(columns, tmp_path, monkeypatch):
    monkeypatch.setattr("odcsim.support.budget.rows", lambda: 9)
    (tmp_path / "a.csv").write_text(f"{columns}\n" + "5,6\n" * 10)
    with pytest.raises(InputError):
        load(tmp_path / "a.csv")


@pytest.mark.parametrize("shards", [0, 1, 2])
@pytest.mark.parametrize("command", ["balance", "check"])
def test_a_plan_whose_samples_have_lost_their_places_is_refused(command, shards, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").mkdir()
    for i in range(max(1, shards)):
        (tmp_path / "a" / f"a-{i}.csv").write_text("length\n" + "7\n9\n7\n8\n" * 5)
    lengths = "a/" if shards else "a/a-0.csv"
    asked = "--model qwen2.5-7b --gpu h100 --devices 2 --minibatch 2 --minibatches 1 --balancer native -o plan.jsonl"
    lines = {"balance": f"balance {lengths} {asked}", "check": f"check plan.jsonl --lengths {lengths}"}
    assert [main(line.split()) for line in lines.values()] == [0, 0]
    monkeypatch.setattr(budget, "rows", lambda: 19)
    assert main(lines[command].split()) == 2


@pytest.mark.parametrize("name", FILES)
def test_a_count_table_counts(tmp_path, name):
    rows = [{"length": n, "count": count} for n, count in ((5, 3), (70, 0), (900, 2))]
    trace = load(write(tmp_path / name, rows))
    assert (trace.size, trace.longest) == (5, 900)
    assert trace.take(np.arange(5)).tolist() == [5, 5, 5, 900, 900]


def test_a_count_table_is_drawn_from_whatever_its_counts(tmp_path):
    """Of more samples than any memory holds."""
    path = write(tmp_path / "a.csv", [{"length": n, "count": 10**9} for n in range(1, 1000)])
    assert len(load(path).minibatches(64, 10)) == 10


SOME = st.lists(st.integers(1, 10_000), min_size=2, max_size=8).map(sorted)


@example([1, 100_001], [1])
@given(SOME, st.lists(st.integers(1, 20), min_size=1, max_size=7))
def test_a_quantile_table_gives_back_its_quantiles(tmp_path_factory, lengths, gaps):
    q = np.concatenate(([0.0], np.cumsum(gaps) / sum(gaps)))
    q[-1] = 1.0
    lengths = np.interp(np.linspace(0, 1, len(q)), np.linspace(0, 1, len(lengths)), lengths).round().astype(int)
    rows = [{"q": share, "length": int(length)} for share, length in zip(q, lengths, strict=True)]
    trace = load(write(tmp_path_factory.mktemp("q") / "q.csv", rows))
    assert trace.size == 10_000
    steepest = max(np.diff(lengths) / np.diff(q))
    expanded = np.repeat(trace.lengths, trace.counts)
    assert np.abs(np.quantile(expanded, q) - lengths).max() <= 1 + steepest / 5_000
    middle = np.interp((np.arange(10_000) + 0.5) / 10_000, q, lengths)  # of each sample's share
    assert expanded.mean() == pytest.approx(middle.mean(), abs=0.5)


IDS, MASK = [[1, 2, 3], [4], [5, 6]], [[0, 1, 1], [0], [1, 0]]
TOKENS = [  # columns beside; lengths and loss
    *[({"input_ids": IDS, "attention_mask": MASK, name: MASK}, [3, 1, 2], [2, 0, 1])
      for name in ("loss_mask", "assistant_masks")],
    ({"input_ids": IDS, "labels": [[-100, 2, 3], [-100], [5, -100]]}, [3, 1, 2], [2, 0, 1]),
    ({"prompt_ids": IDS, "completion_ids": [[1], [1, 2], []]}, [4, 3, 2], [1, 2, 0]),
    ({"input_ids": IDS, "labels": [7, 0, 1], "length": [30, 10, 20]}, [30, 10, 20], None),  # labels of classes
]  # fmt: skip


@pytest.mark.parametrize("name", NESTED)
@pytest.mark.parametrize(("columns", "lengths", "loss"), TOKENS)
def test_lists_of_tokens_are_as_long_as_they_are(tmp_path, name, columns, lengths, loss):
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    trace = load(write(tmp_path / name, rows))
    assert trace.lengths.tolist() == lengths
    assert (None if trace.loss is None else trace.loss.tolist()) == loss


@pytest.mark.parametrize("name", NESTED)
def test_padding_is_seen_by_its_mask(tmp_path, name):
    path = write(tmp_path / name, [{"input_ids": [9, 9], "attention_mask": mask} for mask in ([1, 1], [1, 0], [1, 0])])
    assert load(path, column="attention_mask").lengths.tolist() == [2, 1, 1]


@given(st.lists(st.lists(st.integers(-100, 5), min_size=1, max_size=6), min_size=1, max_size=12))
@settings(max_examples=30)
def test_lists_of_any_shape(tmp_path_factory, rows):
    for name in ("a.parquet", "a.jsonl", "saved"):
        again = [*rows, rows[0]]
        path = write(tmp_path_factory.mktemp("a") / name, [{"input_ids": row, "labels": row} for row in again])
        trace = load(path)
        assert trace.lengths.tolist() == [len(row) for row in again]
        assert trace.loss.tolist() == [sum(value != -100 for value in row) for row in again]


HAS, COUNTS = [True, False, False, True, True], [2, 0, 0, 1, 7]
SAID = {"counts": COUNTS, "flags": HAS, "floats": [float(n) for n in COUNTS]}
SAID["words"] = ["true", "False", " false", "TRUE", "1"]
PLACES = [(name, said) for name in (*FILES, "packed") for said in SAID if said != "words" or name not in ARRAYS]


@pytest.mark.parametrize(("name", "said"), PLACES)
def test_every_file_says_which_samples_have_an_image(tmp_path, name, said):
    rows = [{"length": i + 5, "images": value} for i, value in enumerate(SAID[said])]
    path = write(tmp_path / ("a.csv" if name == "packed" else name), rows)
    if name == "packed":
        (tmp_path / "b.csv.gz").write_bytes(gzip.compress(path.read_bytes()))
        path = tmp_path / "b.csv.gz"
    assert images(str(path), "images", load(path)).tolist() == HAS
    inside = write(tmp_path / "b.jsonl", [{"length": 5, "meta": {"images": row["images"]}} for row in rows])
    assert images(str(inside), "meta.images", load(inside)).tolist() == HAS

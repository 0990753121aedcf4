"""Rows as they come, or as counts of equal ones: the same samples either way."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odcsim.cli import main
from odcsim.errors import InputError
from odcsim.reading import load, tally
from odcsim.reading.tally import Tally
from odcsim.support import budget

PIECES = st.lists(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 1), st.integers(0, 5)), max_size=20), max_size=8)


@given(PIECES.filter(lambda pieces: any(n for rows in pieces for *_, n in rows)), st.booleans(), st.booleans())
@settings(deadline=None)
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

    whole, merged = made(10**6), made(40)
    rows = sum(map(len, pieces))
    assert (merged.counts is not None) == (rows > 40 or counts)
    assert (merged.size, merged.longest) == (whole.size, whole.longest)
    assert np.array_equal(*(np.sort(trace.take(np.arange(trace.size))) for trace in (whole, merged)))
    if loss:
        sums = [
            trace.loss @ (np.ones_like(trace.loss) if trace.counts is None else trace.counts)
            for trace in (whole, merged)
        ]
        assert sums[0] == sums[1]


@pytest.mark.parametrize("suffix", ["csv", "npy", "npz", "jsonl", "json", "parquet"])
def test_a_file_of_too_many_rows_becomes_counts(suffix, tmp_path, monkeypatch):
    from pyarrow import parquet, table

    lengths, path = np.random.default_rng(0).integers(1, 50, 1000), tmp_path / f"a.{suffix}"
    writers = {
        "csv": lambda: path.write_text("length\n" + "\n".join(map(str, lengths))),
        "npy": lambda: np.save(path, lengths),
        "npz": lambda: np.savez(path, length=lengths),
        "jsonl": lambda: path.write_text("\n".join(map(str, lengths))),
        "json": lambda: path.write_text(str(lengths.tolist())),
        "parquet": lambda: parquet.write_table(table({"length": lengths}), path),
    }
    writers[suffix]()
    assert np.array_equal(load(path).lengths, lengths)
    monkeypatch.setattr(budget, "rows", lambda: 999)
    trace = load(path)
    assert np.array_equal(np.repeat(trace.lengths, trace.counts), np.sort(lengths))
    assert "1,000 rows, kept as counts of equal ones" in trace.origin
    with pytest.raises(InputError, match="is a table and has no recorded order"):
        trace.minibatches(4, 2, in_order=True)


def test_rows_that_say_their_step_are_kept_or_refused(tmp_path, monkeypatch):
    (tmp_path / "a.csv").write_text("length,step\n" + "5,1\n" * 10)
    monkeypatch.setattr(budget, "rows", lambda: 9)
    with pytest.raises(InputError, match=r"a\.csv: holds more than 9 rows, each with a step or group.*set ODCSIM_MAX"):
        load(tmp_path / "a.csv")


def test_shards_of_too_many_rows_are_counted_together(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    parts = [rng.integers(1, 50, size) for size in (300, 40, 200)]
    for i, part in enumerate(parts):
        (tmp_path / f"a-{i}.csv").write_text("length\n" + "\n".join(map(str, part)))
    assert np.array_equal(load(tmp_path).lengths, np.concatenate(parts))
    for most in (500, 250, 100):
        monkeypatch.setattr(budget, "rows", lambda most=most: most)
        trace = load(tmp_path)
        assert np.array_equal(np.repeat(trace.lengths, trace.counts), np.sort(np.concatenate(parts)))
        assert trace.size == 540


COMMANDS = {
    "balance": "balance {lengths} --model qwen2.5-7b --gpu h100 --devices 2 --minibatch 2 --minibatches 1"
    " --balancer native -o {plan}",
    "check": "check {plan} --lengths {lengths}",
}


@pytest.mark.parametrize("shards", [0, 1, 2])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_plan_whose_samples_have_lost_their_places_is_refused(command, shards, tmp_path, monkeypatch, capsys):
    lengths = tmp_path / ("a" if shards else "a.csv")
    parts = [lengths]
    if shards:
        lengths.mkdir()
        parts = [lengths / f"a-{i}.csv" for i in range(shards)]
    for part in parts:
        part.write_text("length\n" + "7\n9\n7\n8\n" * 5)
    lines = {
        name: line.format(lengths=lengths, plan=tmp_path / "plan.jsonl").split() for name, line in COMMANDS.items()
    }
    assert main(lines["balance"]) == 0
    assert main(lines["check"]) == 0
    capsys.readouterr()
    monkeypatch.setattr(budget, "rows", lambda: 19)
    assert main(lines[command]) == 2
    rows = 20 * len(parts)
    told = capsys.readouterr().err
    assert f"holds {rows:,} rows, each of which stands for itself here" in told
    assert "ODCSIM_MAX_MEMORY" in told

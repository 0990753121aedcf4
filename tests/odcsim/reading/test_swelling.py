"""Small files that hold very much: read in pieces, or refused in one line; in no more memory than is allowed."""

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet
from scripts import ROOT

from odcsim.support import budget

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is counted as Linux does")
MOST = 400 * 10**6
LIMITED = {budget.VARIABLE: "400MB", "ARROW_DEFAULT_MEMORY_POOL": "system"}
INFO, FIT = "trace info {}", "fit {} --lengths lengths.csv --model tiny --gpu a100 -o out.json"
READ = {  # what is printed where it is not refused
    "equal.parquet": "5,000,000 rows, kept as counts", "ones.npz": "5,000,000 rows, kept as counts",
    "a.csv.gz": "5,000,000 rows, kept as counts", "a.json.gz": "2,500,001 rows, kept as counts",
    "lists.parquet": "130,000 - 130,000", "groups.parquet": "512",
}  # fmt: skip
WRONG = ["texts.parquet", "nulls.arrow", "head.npz", "a.columns.json.gz", "kernels.json.gz"]  # whatever their size
LARGE = ["page.parquet", "deep.arrow", "steps.npz", "a.nested.jsonl.gz", "a.nested.json.gz", "a.header.csv.gz",
         "other.json.gz", "words.npz", "wide.npz"]  # fmt: skip
# Just within the bound, or just not: rows that come in whole, of a row group, and of a batch beside what threads hold.
NARROW = {"row.parquet": "5,000,000", "views.arrow": "100,000 - 100,000"}
LINES = (
    dict.fromkeys((*READ, *WRONG, *LARGE, *NARROW), INFO)
    | dict.fromkeys(("kernels.json.gz", "other.json.gz"), FIT)
    | dict.fromkeys(("wide.npz", "words.npz"), "report {} --html out.html")
)
QUICK = ["groups.parquet", "texts.parquet", "ones.npz", "a.nested.jsonl.gz", "steps.npz"]
RUN = """
import contextlib, io, json, re, sys
from odcsim.cli import main
for name, line in json.loads(sys.argv[1]).items():
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(line.format(name).split())
    # ru_maxrss is what the process that forked this one took
    peak = 1024 * int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
    print(json.dumps([name, code, out.getvalue(), err.getvalue(), peak]))
"""


def printed(folder, lines):
    """Of each file: exit status, output, errors and the peak so far. One process: a peak is never less than before."""
    run = [sys.executable, "-c", RUN, json.dumps(lines)]
    done = subprocess.run(run, cwd=folder, env=os.environ | LIMITED, capture_output=True, text=True, check=True)
    return {name: rest for name, *rest in map(json.loads, done.stdout.splitlines())}


@cache
def all_of(folder: Path, slow: bool) -> dict[str, list]:
    names = [name for name in LINES if (name in QUICK) != slow]
    path = str(ROOT / "tests/breaking")
    write = f"import sys; sys.path.insert(0, {path!r}); import swelling; swelling.write({names!r})"
    subprocess.run([sys.executable, "-c", write], cwd=folder, check=True)
    return printed(folder, {name: LINES[name] for name in names})


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in LINES])
def test_what_swells_is_read_in_pieces_or_refused(name, tmp_path_factory):
    code, out, err, peak = all_of(tmp_path_factory.getbasetemp(), name not in QUICK)[name]
    assert peak < 1.15 * MOST  # at so low a bound what is loaded and what is freed weigh
    read = name in READ or (name in NARROW and code == 0)
    assert (code, err.count("\n")) == ((0, 0) if read else (2, 1))
    assert not read or (READ | NARROW)[name] in out
    assert read or (f"{budget.VARIABLE}=" in err) == (name not in WRONG)


@pytest.mark.slow
def test_an_honest_file_ten_times_as_large_takes_no_more_memory(tmp_path):
    """Texts and tokens beside lengths, as datasets have them; no row is like another."""
    peaks = []
    for times in (2, 20):
        _honest(tmp_path / "a.parquet", times)
        code, out, _, peak = printed(tmp_path, {"a.parquet": f"{INFO} --column input_ids"})["a.parquet"]
        assert (code, f"{5000 * times:,}" in out) == (0, True)
        peaks.append(peak)
    assert peaks[1] < peaks[0] + 90e6  # the file grows by more than twice that
    assert peaks[1] < (tmp_path / "a.parquet").stat().st_size


def _honest(path, times):
    rng = np.random.default_rng(0)
    kinds = {"text": pa.string(), "length": pa.int32(), "input_ids": pa.list_(pa.int32())}
    with parquet.ParquetWriter(path, pa.schema(kinds), compression="none", use_dictionary=False) as file:
        for _ in range(times):
            lengths = rng.integers(1, 1500, 5000, dtype=np.int32)
            ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
            letters = rng.integers(97, 122, ends[-1], np.uint8)
            text = pa.StringArray.from_buffers(5000, pa.py_buffer(ends), pa.py_buffer(letters))
            tokens = pa.ListArray.from_arrays(ends, rng.integers(0, 50_000, ends[-1], np.int32))
            file.write_table(pa.table([text, lengths, tokens], names=list(kinds)))

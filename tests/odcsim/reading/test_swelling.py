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
READ = {  # what is said where it is not refused
    "equal.parquet": "5,000,000 rows, kept as counts of equal ones",
    "lists.parquet": "130,000 - 130,000",
    "groups.parquet": "512",
    "views.arrow": "100,000 - 100,000",
    "ones.npz": "5,000,000 rows, kept as counts",
    "a.csv.gz": "5,000,000 rows, kept as counts",
    "a.json.gz": "2,500,001 rows, kept as counts",
}
WRONG = {  # refused for what it is, and not for its size
    "texts.parquet": "holds texts but no lengths",
    "nulls.arrow": "holds None",
    "head.npz": "cannot be read",
    "a.columns.json.gz": "unpacks to more than 100 times its size",
    "kernels.json.gz": "the measurements do not tell",
}
LARGE = [
    "page.parquet", "deep.arrow", "steps.npz", "a.nested.jsonl.gz", "a.nested.json.gz",
    "a.header.csv.gz", "other.json.gz", "words.npz", "wide.npz",
]  # fmt: skip
NARROW = {"row.parquet": "5,000,000"}  # a row group of rows that come in whole: just within the bound, or just not
LINES = (
    dict.fromkeys((*READ, *WRONG, *LARGE, *NARROW), INFO)
    | dict.fromkeys(("kernels.json.gz", "other.json.gz"), FIT)
    | {"wide.npz": "report {} --html out.html", "words.npz": "report {} --html out.html"}
)
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


QUICK = [
    "equal.parquet",
    "groups.parquet",
    "texts.parquet",
    "views.arrow",
    "ones.npz",
    "a.nested.jsonl.gz",
    "steps.npz",
]


@cache
def _told(folder: Path, names: tuple[str, ...]) -> dict[str, list]:
    """Of each file: exit status, output, errors and the peak so far. One process: a peak is never less than before."""
    write = (
        f"import sys; sys.path.insert(0, {str(ROOT / 'tests/breaking')!r}); import swelling; swelling.write({names!r})"
    )
    lines = json.dumps({name: LINES[name] for name in names})
    subprocess.run([sys.executable, "-c", write], cwd=folder, check=True)
    done = subprocess.run(
        [sys.executable, "-c", RUN, lines], cwd=folder, env=os.environ | LIMITED, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return {name: rest for name, *rest in map(json.loads, done.stdout.splitlines())}


@pytest.mark.parametrize("name", QUICK)
def test_what_swells_is_read_in_pieces_or_refused(name, tmp_path_factory):
    _holds(name, _told(tmp_path_factory.getbasetemp(), tuple(QUICK)))


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in LINES if name not in QUICK])
def test_whatever_swells_is_read_in_pieces_or_refused(name, tmp_path_factory):
    _holds(name, _told(tmp_path_factory.getbasetemp(), tuple(name for name in LINES if name not in QUICK)))


def _holds(name, told):
    code, out, err, peak = told[name]
    assert peak < 1.15 * MOST  # at so low a bound what is loaded and what is freed weigh
    read = name in READ or (name in NARROW and code == 0)
    assert code == (0 if read else 2)
    assert err.count("\n") == (not read)
    assert not read or (READ | NARROW)[name] in out
    assert read or WRONG.get(name, f"set {budget.VARIABLE}=8GB\n") in err


@pytest.mark.slow
def test_an_honest_file_ten_times_as_large_takes_no_more_memory(tmp_path):
    """Texts and tokens beside lengths, as datasets have them; no row is like another."""
    peaks = []
    for times in (2, 20):
        _honest(tmp_path / "a.parquet", times)
        lines = json.dumps({"a.parquet": f"{INFO} --column input_ids"})
        run = [sys.executable, "-c", RUN, lines]
        done = subprocess.run(run, cwd=tmp_path, env=os.environ | LIMITED, capture_output=True, text=True, check=True)
        _, code, out, _, peak = json.loads(done.stdout)
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

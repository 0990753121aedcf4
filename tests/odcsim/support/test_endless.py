"""Inputs without an end: a bound, and one line."""

import io
import sys
from pathlib import Path

import pytest

from odcsim.cli import main
from odcsim.errors import InputError
from odcsim.reading import unpacked
from odcsim.support import budget, whole

SETTING = "--gpu a100 --devices 2 --minibatch 2 --minibatches 1".split()
zero = pytest.mark.skipif(not Path("/dev/zero").exists(), reason="no /dev/zero here")
READS = {
    "lengths": ["trace", "info", "zero.csv"],
    "JSON lines": ["trace", "info", "zero.jsonl"],
    "an array": ["trace", "info", "zero.npy"],
    "a model": ["compare", "longalign", "--model", "zero.json", *SETTING],
    "a GPU": ["catalog", "show", "zero.toml"],
    "a schedule": ["simulate", "zero.jsonl", "--sync", "on-demand", "-o", "out"],
    "a timeline": ["report", "zero.npz", "--html", "out.html"],
    "a log": ["fit", "zero.csv", "--model", "tiny", "--gpu", "a100", "-o", "out"],
    "measurements": ["fit", "zero.json", "-o", "out"],
    "a profile": ["compare", "longalign", "--model", "tiny", "--profile", "zero.json", *SETTING[2:]],
    "a cluster": ["compare", "longalign", "--model", "tiny", "--cluster", "zero.toml", *SETTING],
    "a plan": ["check", "zero.json"],
}


@zero
@pytest.mark.parametrize("reads", READS)
def test_a_device_without_end_is_one_line(reads, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(budget.VARIABLE, "256MB")
    for suffix in ("csv", "jsonl", "json", "toml", "npy", "npz"):
        (tmp_path / f"zero.{suffix}").symlink_to("/dev/zero")
    assert main(READS[reads]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "zero." in line


def test_whoever_gives_more_than_anybody_needs_is_not_read_on(tmp_path):
    (tmp_path / "a").write_bytes(bytes(100))
    assert whole.read_bytes(tmp_path / "a") == bytes(100)
    with pytest.raises(InputError, match=r"a: holds more than 99 B of text .* set ODCSIM_MAX_MEMORY=8GB"):
        whole.read_bytes(tmp_path / "a", budget.USUAL // 99)


def test_a_pipe_has_a_bound(monkeypatch, capsys):
    class Stdin:
        buffer = io.BytesIO(b"1\n" * 10**6)

    monkeypatch.setattr(unpacked, "MOST", 1000)
    monkeypatch.setattr(sys, "stdin", Stdin)
    assert main(["trace", "info", "-"]) == 2
    assert capsys.readouterr().err == "odcsim: error: stdin: gives more than 1,000 bytes; save it to a file\n"

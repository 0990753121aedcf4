"""How much memory reading may take: a bound, also for inputs without an end."""

import io
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from odcsim.cli import main
from odcsim.errors import InputError
from odcsim.reading import unpacked
from odcsim.support import budget, whole

GIVEN = {"8GB": 8e9, "2.5 gb": 2.5e9, "512MiB": 512 * 2**20, "1T": 1e12, "3000000000": 3e9, "": 2e9}
READS = [
    "trace info zero.csv",
    "trace info zero.jsonl",
    "trace info zero.npy",
    "compare longalign --model zero.json --gpu a100 --devices 2 --minibatch 2 --minibatches 1",
    "catalog show zero.toml",
    "simulate zero.jsonl --sync on-demand -o out",
    "report zero.npz --html out.html",
    "fit zero.csv --model tiny --gpu a100 -o out",
    "fit zero.json -o out",
    "compare longalign --model tiny --profile zero.json --devices 2 --minibatch 2 --minibatches 1",
    "compare longalign --model tiny --cluster zero.toml --gpu a100 --devices 2 --minibatch 2 --minibatches 1",
    "check zero.json",
]


@pytest.mark.parametrize("given", GIVEN)
def test_the_bound_is_written_as_people_write_it(given, monkeypatch):
    monkeypatch.setenv(budget.VARIABLE, given)
    assert budget.most() == GIVEN[given]
    budget.check(GIVEN[given], "arrays", "a.npz")
    with pytest.raises(InputError):
        budget.check(1.1 * GIVEN[given], "arrays", "a.npz")


@pytest.mark.parametrize("given", ["much", "8 apples", "-1GB", "0", "1e9", "100MB"])
def test_what_is_no_size_is_refused(given, monkeypatch):
    monkeypatch.setenv(budget.VARIABLE, given)
    with pytest.raises(InputError):
        budget.most()


@pytest.mark.parametrize("size", [8e9, 256e6, 1e12, 5.2e9])
def test_sizes_are_said_as_they_are_read(size, monkeypatch):
    monkeypatch.setenv(budget.VARIABLE, budget.in_words(size).replace(",", ""))
    assert budget.most() == size


def test_the_system_gives_no_more_than_the_bound_but_to_other_threads(monkeypatch):
    if threading.active_count() > 1 or budget._allowed_here() is None:
        pytest.skip("other threads are at work, or no Linux")
    monkeypatch.setenv(budget.VARIABLE, "256MB")
    with pytest.raises(InputError), budget.bounded("big"):
        np.empty(1 << 30, np.uint8)
    assert np.empty(1 << 30, np.uint8).nbytes == 1 << 30
    done = threading.Event()
    other = threading.Thread(target=done.wait)
    other.start()
    try:
        with budget.bounded("big"):
            assert np.empty(1 << 30, np.uint8).nbytes == 1 << 30
    finally:
        done.set()
        other.join()


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="no /dev/zero here")
@pytest.mark.parametrize("words", READS)
def test_a_device_without_end_is_one_line(words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(budget.VARIABLE, "256MB")
    for suffix in ("csv", "jsonl", "json", "toml", "npy", "npz"):
        (tmp_path / f"zero.{suffix}").symlink_to("/dev/zero")
    assert main(words.split()) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "zero." in line


def test_whoever_gives_more_than_anybody_needs_is_not_read_on(tmp_path, monkeypatch, capsys):
    (tmp_path / "a").write_bytes(bytes(100))
    assert whole.read_bytes(tmp_path / "a") == bytes(100)
    with pytest.raises(InputError):
        whole.read_bytes(tmp_path / "a", budget.USUAL // 99)
    monkeypatch.setattr(unpacked, "MOST", 1000)
    monkeypatch.setattr(sys, "stdin", type("Stdin", (), {"buffer": io.BytesIO(b"1\n" * 10**6)}))
    assert main(["trace", "info", "-"]) == 2
    assert capsys.readouterr().err.count("\n") == 1

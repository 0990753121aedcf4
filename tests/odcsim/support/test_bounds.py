"""How much memory reading may take: a bound, also for inputs without an end."""

import io
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from odcsim.cli import main
from odcsim.errors import InputError
from odcsim.reading import unpack
from odcsim.support import budget, inputs

GIVEN = {"8GB": 8e9, "2.5 gb": 2.5e9, "512MiB": 512 * 2**20, "1T": 1e12, "3000000000": 3e9, "": 2e9}
LONGALIGN = "compare longalign --devices 2 --minibatch 2 --minibatches 1 --model"
READS = [
    *[f"trace info zero.{suffix}" for suffix in ("csv", "jsonl", "npy")], "check zero.json", "catalog show zero.toml",
    f"{LONGALIGN} zero.json --gpu a100", f"{LONGALIGN} tiny --profile zero.json",
    f"{LONGALIGN} tiny --cluster zero.toml --gpu a100", "simulate zero.jsonl --sync on-demand -o out",
    "report zero.npz --html out.html", "fit zero.csv --model tiny --gpu a100 -o out", "fit zero.json -o out",
]  # fmt: skip


def test_the_bound_is_written_as_people_write_it(monkeypatch):
    """And said as it is read."""
    for given, size in GIVEN.items():
        monkeypatch.setenv(budget.VARIABLE, given)
        assert budget.most() == size
        budget.check(size, "arrays", "a.npz")
        with pytest.raises(InputError):
            budget.check(1.1 * size, "arrays", "a.npz")
    for size in (8e9, 256e6, 1e12, 5.2e9):
        monkeypatch.setenv(budget.VARIABLE, budget.in_words(size).replace(",", ""))
        assert budget.most() == size
    for wrong in ("much", "-1GB", "0", "1e9"):
        monkeypatch.setenv(budget.VARIABLE, wrong)
        with pytest.raises(InputError):
            budget.most()


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
    assert inputs.read_bytes(tmp_path / "a") == bytes(100)
    with pytest.raises(InputError):
        inputs.read_bytes(tmp_path / "a", budget.USUAL // 99)
    monkeypatch.setattr(unpack, "MOST", 1000)
    monkeypatch.setattr(sys, "stdin", type("Stdin", (), {"buffer": io.BytesIO(b"1\n" * 10**6)}))
    assert main(["trace", "info", "-"]) == 2
    assert capsys.readouterr().err.count("\n") == 1

"""How much memory reading may take."""

import threading

import numpy as np
import pytest

from odcsim.errors import InputError
from odcsim.support import budget

GIVEN = {
    "8GB": 8 * 10**9,
    "2.5 gb": 25 * 10**8,
    "512MiB": 512 * 2**20,
    "1T": 10**12,
    "3000000000": 3 * 10**9,
    "": 2 * 10**9,
}


@pytest.mark.parametrize("given", GIVEN)
def test_the_bound_is_written_as_people_write_it(given, monkeypatch):
    monkeypatch.setenv(budget.VARIABLE, given)
    assert budget.most() == GIVEN[given]


@pytest.mark.parametrize("given", ["much", "8 apples", "-1GB", "0", "1e9", "100MB"])
def test_what_is_no_size_is_one_line(given, monkeypatch):
    monkeypatch.setenv(budget.VARIABLE, given)
    with pytest.raises(InputError, match=f"^ODCSIM_MAX_MEMORY is '{given}'; write it as 8GB, at least 256MB$"):
        budget.most()


@pytest.mark.parametrize("size", [999, 12_345, 8e9, 256e6, 1e12, 5.2e9])
def test_sizes_are_said_as_they_are_read(size, monkeypatch):
    said = budget.in_words(size)
    if size >= budget.LEAST:
        monkeypatch.setenv(budget.VARIABLE, said.replace(",", ""))
        assert budget.most() == size


def test_what_is_refused_names_the_way_out(monkeypatch):
    monkeypatch.setenv(budget.VARIABLE, "4GB")
    budget.check(4e9, "arrays", "a.npz")
    with pytest.raises(InputError) as caught:
        budget.check(4.1e9, "arrays", "a.npz")
    assert str(caught.value) == (
        "a.npz: holds arrays, 4.1 GB of memory, where 4 GB is the most; "
        "if that is right, and this machine has more, set ODCSIM_MAX_MEMORY=16GB"
    )


def test_the_system_gives_no_more_than_the_bound(monkeypatch):
    if threading.active_count() > 1 or budget._allowed_here() is None:
        pytest.skip("other threads are at work, or no Linux")
    monkeypatch.setenv(budget.VARIABLE, "256MB")
    with pytest.raises(InputError, match="big: holds what does not fit into memory"), budget.bounded("big"):
        np.empty(1 << 30, np.uint8)
    assert np.empty(1 << 30, np.uint8).nbytes == 1 << 30


def test_memory_of_other_threads_is_not_bounded(monkeypatch):
    monkeypatch.setenv(budget.VARIABLE, "256MB")
    done = threading.Event()
    other = threading.Thread(target=done.wait)
    other.start()
    try:
        with budget.bounded("big"):
            assert np.empty(1 << 30, np.uint8).nbytes == 1 << 30
    finally:
        done.set()
        other.join()

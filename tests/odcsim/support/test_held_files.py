"""A file that one process holds is nobody else's until that one ends, however it does."""

import fcntl
import os

import pytest

from odcsim.errors import InputError
from odcsim.support.held import held


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked here")
def test_a_forked_worker_does_not_keep_its_parents_lock(tmp_path):
    """As those of a ProcessPoolExecutor, which outlive a parent that is killed."""
    path, (out, into) = tmp_path / "points", os.pipe()
    with held(path):
        child = os.fork()
        if child == 0:
            os.close(into)
            os.read(out, 1)
            os._exit(0)
    try:
        with held(path):
            pass
    finally:
        os.close(into)
        os.close(out)
        os.waitpid(child, 0)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_put_away_while_it_is_asked_for_is_not_taken_for_the_one_that_is_there(tmp_path, monkeypatch):
    path, real, left = tmp_path / "points", fcntl.flock, [1, 1]

    def flock(fd, how):
        if left:
            left.pop()
            path.unlink()
        real(fd, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    with held(path):
        assert path.exists()
        with pytest.raises(InputError), held(path):
            pass
    assert not path.exists()


def test_a_folder_that_nobody_may_write_into_is_refused(tmp_path):
    with pytest.raises(InputError), held(tmp_path / "none" / "points"):
        pass

"""Runs that really hang, on CPUs by gloo: each cause is named from the dumps of their ranks."""

import shutil

import pytest
from jobs import torchrun
from programs import program
from scripts import ROOT

from odcsim.observed.hang import why

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("cause", "ranks", "waiting", "sign"),
    [
        ("microbatches", 8, range(7), "rank 7 went on to all_reduce"),
        ("beside", 4, range(3), "rank 3 went on to all_reduce 3 of group 1"),
        ("tower", 3, range(2), "rank 2 left a unit out"),
        ("evaluation", 4, (1, 2, 3), "the collective of rank 0 is called in 'evaluate'"),
        ("dead", 3, range(2), "rank 2 wrote no dump"),
        ("order", 3, range(2), "where rank 2 called all_reduce 3 of group 1"),
    ],
)
def test_runs_that_hang_are_named(tmp_path, cause, ranks, waiting, sign):
    shutil.copy(ROOT / "tests/helpers/hung.py", tmp_path)
    (tmp_path / "dumps.py").write_text(program("howto/hang.md", "dumps.py"), encoding="utf-8")
    ran = torchrun(tmp_path, "--nproc-per-node", str(ranks), "--monitor-interval", "1", "hung.py", cause)
    assert ran.returncode != 0, "it did not hang"
    hang = why([tmp_path / "dumps"])
    assert hang.cause == ("microbatches" if cause == "beside" else cause), ran.stderr
    assert hang.waiting == tuple(waiting)
    assert sorted(rank for camp in hang.others for rank in camp.ranks) == sorted(set(range(ranks)) - set(waiting))
    words = hang.sentences()
    assert len(words) <= 5
    assert sign in " ".join(words)
    if hang.cause == "microbatches":
        assert hang.microbatches == (3, 2)

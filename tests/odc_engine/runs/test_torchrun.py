"""Devices that torchrun has started do what those do that the command starts itself, and start anew when told to."""

from pathlib import Path

import jobs
import numpy as np
import pytest
from jobs import file_of, job_for, written

from odc_engine.runs import run
from odcsim import timeline

COUNTS = (2, 1, 3)
# Device 1 is killed in its second minibatch, unless torchrun has restarted it.
RESTARTED = """
import os
import signal
import sys

from odc_engine.cli import main
from odc_engine.devices.process import ProcessDevice

if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and os.environ["RANK"] == "1":
    really = ProcessDevice.minibatch

    def minibatch(self: ProcessDevice, number: int):
        if number == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return really(self, number)

    ProcessDevice.minibatch = minibatch

sys.exit(main(sys.argv[1:]))
"""
pytestmark = pytest.mark.slow


def torchrun(folder: Path, *engine: str, processes: int = 3, options: tuple[str, ...] = ()) -> tuple[int, str]:
    """Run the engine on a schedule under torchrun. Its exit code and stderr."""
    schedule, _ = written(folder, COUNTS, COUNTS)
    run = ("run", schedule, "--sync", "on-demand", "-o", str(folder / "timeline.npz"))
    done = jobs.torchrun(folder, "--nproc-per-node", str(processes), *options, *engine, *run)
    return done.returncode, done.stderr


def test_a_timeline_has_the_shape_of_one_of_a_run_that_starts_itself(tmp_path):
    code, told = torchrun(tmp_path, "-m", "odc_engine")
    assert code == 0, told
    theirs = timeline.read(tmp_path / "timeline.npz")
    file = file_of(COUNTS, COUNTS)
    assert run.run(file, job_for(file), str(tmp_path / "own.npz")) == 0
    ours = timeline.read(tmp_path / "own.npz")
    assert theirs.about == ours.about
    for left, right in zip(theirs.blocks, ours.blocks, strict=True):
        assert left.program == right.program
        assert left.asked.shape == right.asked.shape
        assert np.array_equal(np.isnan(left.had), np.isnan(right.had))
        assert np.array_equal(left.counts, right.counts)


def test_another_number_of_processes_is_refused(tmp_path):
    code, _ = torchrun(tmp_path, "-m", "odc_engine", processes=2)
    assert code != 0
    assert not (tmp_path / "timeline.npz").exists()


@pytest.mark.parametrize("restarts", [0, 1])
def test_torchrun_restarts_a_run_one_of_whose_devices_was_killed(tmp_path, restarts):
    (script := tmp_path / "restarted.py").write_text(RESTARTED, encoding="utf-8")
    code, told = torchrun(tmp_path, str(script), options=("--max-restarts", str(restarts), "--monitor-interval", "0.2"))
    assert (code == 0) == (tmp_path / "timeline.npz").exists() == bool(restarts), told
    assert told.count("minibatch 0 done") == 1 + restarts
    if restarts:
        assert timeline.read(tmp_path / "timeline.npz").about.devices == 3

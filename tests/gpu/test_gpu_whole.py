"""A device that has a whole GPU, with nobody beside it."""

import datetime
from dataclasses import replace

import pytest

from odc_engine.backends import threads
from odc_engine.job import Job
from odc_engine.measuring import calibration, profile, recorded
from odcsim import catalog, measurements, timeline
from odcsim.cluster import Cluster
from odcsim.cost import Cost
from odcsim.recipe import Recipe

pytestmark = [pytest.mark.gpu, pytest.mark.limit(60), pytest.mark.usefixtures("transfers")]
SEED = 20260
EVERY = 2  # so-manieth packing
LOCAL = ("overhead", "optimizer", "publish")  # constants of one device


def test_microbatches(device, cpu, seconds, home, tmp_path, note):
    """How long does the whole GPU take for a microbatch, of a dozen shapes?"""
    from odc_engine.runs import run

    model = catalog.model("nano" if cpu else "qwen2.5-0.5b")
    longest, dtype = (256, "float32") if cpu else (32768, "bfloat16")
    file = calibration.mixed(model, 1, longest, SEED, EVERY)
    known = replace(profile.STAND_IN, model=model.name)
    cost, backend = (
        Cost(model, known, Cluster(1, 1, 1.0, 1.0, 1), Recipe(dtype=dtype)),
        threads.CPU if cpu else threads.CUDA,
    )
    job = Job(schedules=file.schedules, cost=cost, backend=backend, emulate=False, timeout=seconds, seed=SEED)
    path = tmp_path / "whole.npz"
    assert run.run(file, job, str(path), quiet=True) == 0
    rows = recorded.rows(timeline.read(path), file.schedules, model, dtype)
    words = job.backend.hardware(job.use).lower().split() or [device]
    gpu = next((name for name in catalog.gpu_names() if name in words), words[-1])  # as the catalogue calls it
    compute = tuple(replace(row, alone=False) for row in rows.compute)  # nothing else is to be told from it
    constants = tuple(row for row in rows.constants if row.kind in LOCAL)
    here = {"hardware": run.hardware(job), "versions": profile.versions(), "date": datetime.date.today().isoformat()}
    more = {"dtype": dtype, "transport": "none: one device"}
    found = measurements.Measurements(model.name, gpu, compute, constants=constants, **here, **more)
    measurements.write(found, home / "whole.measured.json")
    note(measurements=len(found.compute) + len(found.constants))
    assert found.compute

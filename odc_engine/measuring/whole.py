"""One device that has a whole GPU, with nobody beside it: what a microbatch takes there, in a dozen shapes."""

import datetime
from dataclasses import replace
from pathlib import Path

from odc_engine.backends import threads
from odc_engine.backends.threads.plain import PLAIN
from odc_engine.doctor.probes.base import CPU
from odc_engine.errors import EngineError
from odc_engine.job import Job
from odc_engine.measuring import calibration, profile
from odc_engine.measuring.rivals import SEED, Contest, cost_of
from odc_engine.runs import run
from odcsim import catalog, timeline
from odcsim.fitting import recorded
from odcsim.fitting.measurements import Measurements

EVERY = 2  # so-manieth packing
LOCAL = ("overhead", "optimizer", "publish")  # constants of one device


def measured(contest: Contest, device: str, folder: Path) -> Measurements:
    model = catalog.model(contest.model)
    file = calibration.mixed(model, 1, contest.longest, SEED, EVERY)
    cost = cost_of(replace(contest, devices=1), replace(profile.STAND_IN, model=model.name))
    job = Job(
        schedules=file.schedules,
        cost=cost.by(dtype=contest.dtype),
        backend=threads.CPU if device == CPU else PLAIN,
        emulate=False,
        timeout=600.0,
        seed=SEED,
    )
    path = folder / "whole.npz"
    if run.run(file, job, str(path), quiet=True):
        raise EngineError("the run failed, see above")
    rows = recorded.rows(timeline.read(path), file.schedules, model, contest.dtype)
    return Measurements(
        model.name,
        _name(job),
        tuple(replace(row, alone=False) for row in rows.compute),  # nothing else is to be told from it
        constants=tuple(row for row in rows.constants if row.kind in LOCAL),
        hardware=run.hardware(job),
        versions=profile.versions(),
        date=datetime.date.today().isoformat(),
        dtype=contest.dtype,
        transport="none: one device",
    )


def _name(job: Job) -> str:
    """The GPU as the catalogue calls it, where it has it."""
    words = job.backend.hardware(job.use).lower().split() or [CPU]
    return next((name for name in catalog.gpu_names() if name in words), words[-1])

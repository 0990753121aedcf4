"""One device that has a whole GPU, with nobody beside it: what a microbatch takes there, in a dozen shapes."""

import datetime
from dataclasses import replace
from pathlib import Path

from odc_engine.backends import threads
from odc_engine.doctor.probes.base import CPU
from odc_engine.errors import EngineError
from odc_engine.job import Job
from odc_engine.measuring import calibration, profile
from odc_engine.runs import run
from odcsim import catalog, timeline
from odcsim.cluster import Cluster
from odcsim.cost import Cost
from odcsim.fitting import recorded
from odcsim.fitting.measurements import Measurements
from odcsim.model import Model
from odcsim.recipe import Recipe

SEED = 20260
EVERY = 2  # so-manieth packing
LOCAL = ("overhead", "optimizer", "publish")  # constants of one device


def measured(model: Model, longest: int, dtype: str, device: str, folder: Path) -> Measurements:
    """`longest`: tokens of the fullest microbatch."""
    file = calibration.mixed(model, 1, longest, SEED, EVERY)
    seconds = replace(profile.STAND_IN, model=model.name)
    job = Job(
        schedules=file.schedules,
        cost=Cost(model, seconds, Cluster(1, 1, 1.0, 1.0, 1), Recipe(dtype=dtype)),
        backend=threads.CPU if device == CPU else threads.CUDA,
        emulate=False,
        timeout=600.0,
        seed=SEED,
    )
    path = folder / "whole.npz"
    if run.run(file, job, str(path), quiet=True):
        raise EngineError("the run failed, see above")
    rows = recorded.rows(timeline.read(path), file.schedules, model, dtype)
    return Measurements(
        model.name,
        _name(job),
        tuple(replace(row, alone=False) for row in rows.compute),  # nothing else is to be told from it
        constants=tuple(row for row in rows.constants if row.kind in LOCAL),
        hardware=run.hardware(job),
        versions=profile.versions(),
        date=datetime.date.today().isoformat(),
        dtype=dtype,
        transport="none: one device",
    )


def _name(job: Job) -> str:
    """The GPU as the catalogue calls it, where it has it."""
    words = job.backend.hardware(job.use).lower().split() or [CPU]
    return next((name for name in catalog.gpu_names() if name in words), words[-1])

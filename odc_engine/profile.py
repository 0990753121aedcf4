"""Measures this machine and fits a profile to it: `odc_engine profile`.

All of it is read off runs of the engine itself, whose devices compute and communicate as they will. To tell what
disturbs what, some runs do one thing without the other: transfers while compute is emulated, and one device alone.

Each piece of work leaves a file of measurements in a folder beside the profile. An interrupted run finds those of its
own settings there and goes on; the folder goes when the profile is written.
"""

import datetime
import platform
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path

from odc_engine import calibration
from odc_engine.errors import EngineError
from odc_engine.run import hardware, run
from odc_engine.worker import Job
from odcsim import fit, measurements, profile, recorded, timeline
from odcsim.cluster import Cluster
from odcsim.cost import Cost
from odcsim.errors import InputError
from odcsim.measurements import Measurements
from odcsim.model import Model
from odcsim.profile import Polynomial, Profile
from odcsim.schedule import ScheduleFile

DTYPE = "float32"  # the engine's weights on their way
ROUNDS = {True: 2, False: 5}  # of every packing, if quick and if not
SIZES = {True: (1,), False: (1, 2, 0.5)}  # of units whose transfers are timed, as shares of the model's width
SYNCS = {"shm": ("on-demand", "collective"), "threads": ("on-demand", "collective"), "torch": ("collective",)}
# Seconds that a layer stands for where only what is around it is measured: long enough to hide every transfer.
STAND_IN = Profile("", "", "calibrated", "", Polynomial(0.01), Polynomial(0.02), Polynomial(0.01), Polynomial(0.001))


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure. Compute is real on the first number of devices and emulated on the others."""

    model: Model
    devices: tuple[int, ...] = (2,)
    backend: str = "shm"
    most: int = 1024  # tokens of the fullest microbatch
    quick: bool = False
    seed: int = 0
    timeout: float = 600.0

    def check(self) -> None:
        if self.backend not in SYNCS:
            raise InputError(f"backend '{self.backend}'", fix=f"one of {', '.join(SYNCS)}")
        if min(self.devices) < 2:
            raise InputError(f"{min(self.devices)} devices have nobody to exchange with", fix="--devices 2 or more")
        least = max(calibration.SPLITS) * calibration.LEAST * 2
        if self.most < least:
            raise InputError(f"--max-tokens {self.most} leaves too little to vary", fix=f"at least {least}")

    @property
    def told(self) -> str:
        """The settings in words. Measurements of others are not mixed with these."""
        devices = ", ".join(map(str, self.devices))
        speed = "quick" if self.quick else "full"
        return f"{speed}; devices {devices}; backend {self.backend}; up to {self.most} tokens; seed {self.seed}"


@dataclass(frozen=True, slots=True)
class Piece:
    """Some minutes of work at most, with a name of its own."""

    name: str
    measure: Callable[[], Measurements]


def measured(plan: Plan, output: Path, done: Callable[[str], None]) -> fit.FitReport:
    """Measure what is not measured yet, fit, and write the profile. `done` hears the name of each piece."""
    plan.check()
    folder = output.with_name(output.name + ".partial")
    folder.mkdir(parents=True, exist_ok=True)
    found = []
    for piece in pieces(plan):
        path = folder / f"{piece.name}.json"
        known = measurements.read(path) if path.exists() else None
        if known is None or known.notes != plan.told:
            known = piece.measure()
            measurements.write(known, path)
        found.append(known)
        done(piece.name)
    report = fit.examine(together(found))
    profile.write(report.profile, output)
    shutil.rmtree(folder)
    return report


def together(found: list[Measurements]) -> Measurements:
    """One set of measurements out of several of the same machine."""
    return replace(
        found[0],
        compute=tuple(row for m in found for row in m.compute),
        transfers=tuple(row for m in found for row in m.transfers),
        constants=tuple(row for m in found for row in m.constants),
    )


def pieces(plan: Plan) -> list[Piece]:
    """What there is to do, in an order in which the first results say most."""
    first, syncs = plan.devices[0], SYNCS[plan.backend]
    found = []
    for number in range(ROUNDS[plan.quick]):
        mixed = calibration.mixed(plan.model, first, plan.most, plan.seed + number)
        found.append(Piece(f"compute-{number}", lambda file=mixed: _computing(plan, file, syncs[0])))  # type: ignore[misc]
    other = calibration.mixed(plan.model, first, plan.most, plan.seed + ROUNDS[plan.quick])
    found += [Piece(f"{sync}-{first}", lambda s=sync: _computing(plan, other, s)) for sync in syncs[1:]]  # type: ignore[misc]
    found.append(Piece("alone", lambda: _alone(plan, syncs[0])))
    for n in plan.devices:
        for sync in syncs:
            for width in SIZES[plan.quick]:
                name = f"transfers-{sync}-{n}-{width:g}"
                found.append(Piece(name, lambda n=n, s=sync, w=width: _transferring(plan, n, s, w)))  # type: ignore[misc]
    return found


def _computing(plan: Plan, file: ScheduleFile, sync: str) -> Measurements:
    """Everything, as it is in a real run."""
    return _recorded(plan, plan.model, file, sync, emulate=False)


def _alone(plan: Plan, sync: str) -> Measurements:
    """Compute of one device, without peers and transfers."""
    found = _computing(plan, calibration.mixed(plan.model, 1, plan.most, plan.seed), sync)
    return replace(found, compute=tuple(replace(row, alone=True) for row in found.compute), constants=())


def _transferring(plan: Plan, devices: int, sync: str, width: float) -> Measurements:
    """Transfers while nobody computes, of units of another width; and on devices without real compute the rest, too."""
    model = replace(plan.model, hidden=int(plan.model.hidden * width), ffn=int(plan.model.ffn * width))
    found = _recorded(plan, model, calibration.short(model, devices), sync, emulate=True)
    constants = found.constants if width == 1 and devices != plan.devices[0] else ()
    return replace(
        found, transfers=tuple(replace(row, computing=False) for row in found.transfers), constants=constants
    )


def _recorded(plan: Plan, model: Model, file: ScheduleFile, sync: str, *, emulate: bool) -> Measurements:
    """The measurements of one run of the engine."""
    devices = file.header.devices
    cost = Cost(model, replace(STAND_IN, model=model.name), Cluster(devices, devices, 1.0, 1.0, devices))
    job = Job(file.schedules, cost, sync, plan.backend, "locked", "fsdp2", emulate, plan.timeout, plan.seed)
    with tempfile.TemporaryDirectory(prefix="odc-") as folder:
        path = Path(folder) / "timeline.npz"
        if run(file, job, str(path), quiet=True):
            fix = "what is measured so far is kept: give the same command again"
            raise EngineError(f"a run on {devices} devices failed, see above; {fix}")
        rows = recorded.rows(timeline.read(path), file.schedules, model, DTYPE, cost if emulate else None)
    return replace(_empty(plan), compute=rows.compute, transfers=rows.transfers, constants=rows.constants)


def _empty(plan: Plan) -> Measurements:
    versions = f"torch {version('torch')}, Python {platform.python_version()}, odcsim {version('odcsim')}"
    return Measurements(
        plan.model.name,
        "cpu",
        (),
        hardware=hardware(),
        versions=versions,
        date=datetime.date.today().isoformat(),
        dtype=DTYPE,
        transport=plan.backend,
        notes=plan.told,
    )

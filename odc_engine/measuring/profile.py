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
from pathlib import Path

import torch

import odcsim
from odc_engine.errors import EngineError
from odc_engine.job import Job
from odc_engine.measuring import calibration
from odc_engine.measuring.plan import Plan
from odc_engine.runs.run import run, warn_if_busy, with_gpus
from odcsim import profile, timeline
from odcsim.cluster import Cluster
from odcsim.cost import Cost
from odcsim.errors import InputError
from odcsim.files import check_writable
from odcsim.fitting import fit, measurements, recorded
from odcsim.fitting.measurements import KEPT, Compute, Measurements
from odcsim.model import Model
from odcsim.profile import Polynomial, Profile
from odcsim.progress import progress
from odcsim.recipe import Recipe
from odcsim.schedule import ScheduleFile

ROUNDS = {True: 2, False: 5}  # of every packing, if quick and if not
KEPT_ROUNDS = {True: 1, False: 5}  # of them without recompute
# Of what stands there for its transfers, or for a ratio, not every packing is needed. No multiple of 3, which is how
# many packings have as many tokens.
OTHERS = {True: 2, False: 1}  # every so-manieth packing under further syncs
ALONE = {True: 4, False: 1}  # and on one device alone
SIZES = {True: (1,), False: (1, 2, 0.5)}  # of units whose transfers are timed, as shares of the model's width
# Seconds that a layer stands for where only what is around it is measured: long enough to hide every transfer.
STAND_IN = Profile("", "", "calibrated", "", Polynomial(0.01), Polynomial(0.02), Polynomial(0.01), Polynomial(0.001))


@dataclass(frozen=True, slots=True)
class Piece:
    """One run of the engine: minutes of work at most, with a name of its own."""

    name: str
    file: ScheduleFile
    recipe: Recipe  # without recompute the layers' two passes are all that is taken from it
    model: Model  # the plan's, or one of another width, whose transfers have other sizes
    emulate: bool = False  # nobody computes: transfers by themselves


def measured(plan: Plan, output: Path) -> fit.FitReport:
    """Measure what is not measured yet, fit, and write the profile."""
    plan.check()
    plan.check_here()
    check_writable(output)
    folder = partial(output)
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        problem = f"cannot be made ({error.strerror})"
        raise InputError(problem, where=str(folder), fix="write to another folder") from None
    warn_if_busy()
    report = fit.examine(taken(plan, folder))
    profile.write(report.profile, output)
    shutil.rmtree(folder)
    return report


def taken(plan: Plan, folder: Path, told: Callable[[str], None] = lambda _: None) -> Measurements:
    """What is not measured yet is, piece by piece, into the folder; then all of it. `told` hears of each piece."""
    every = pieces(plan)
    found = {piece.name: known for piece in every if (known := _known(plan, _path(folder, piece)))}
    missing = [piece for piece in every if piece.name not in found]
    with progress("profile", len(missing)) as done:
        for piece in missing:
            found[piece.name] = measure(plan, piece)
            measurements.write(found[piece.name], _path(folder, piece))
            done(piece.name)
            told(piece.name)
    return together([found[piece.name] for piece in every])


def partial(output: Path) -> Path:
    """The folder of what an unfinished call has measured."""
    return output.with_name(output.name + ".partial")


def _path(folder: Path, piece: Piece) -> Path:
    return folder / f"{piece.name}.json"


def _known(plan: Plan, path: Path) -> Measurements | None:
    """What an earlier call with the same settings has measured on the same machine with the same software."""
    try:
        found = measurements.read(path)
    except InputError:  # there is none, or none that could be used
        return None
    said = replace(found, compute=(), transfers=(), constants=(), date="")
    return found if said == replace(_empty(plan), date="") else None


def together(found: list[Measurements]) -> Measurements:
    """One set of measurements out of several of the same machine. Each one's minibatches are others than the rest's."""
    compute: list[Compute] = []
    for m in found:
        before = max((row.minibatch for row in compute), default=0)
        compute += (replace(row, minibatch=row.minibatch + before) if row.minibatch else row for row in m.compute)
    return replace(
        found[0],
        compute=tuple(compute),
        transfers=tuple(row for m in found for row in m.transfers),
        constants=tuple(row for m in found for row in m.constants),
    )


def pieces(plan: Plan) -> list[Piece]:
    """What there is to do, in an order in which the first results say most."""
    model, first = plan.model, plan.devices[0]
    usual, *others = by = [replace(plan.recipe, sync=sync) for sync in plan.backend.profiled]
    found = []
    for number in range(ROUNDS[plan.quick]):
        mixed = calibration.mixed(model, first, plan.most, plan.seed + number)
        # In turn, so that a host whose speed drifts does so for both.
        found.append(Piece(f"compute-{number}", mixed, usual, model))
        if number < KEPT_ROUNDS[plan.quick]:
            kept = calibration.mixed(model, first, plan.kept, plan.seed + number)
            found.append(Piece(f"kept-{number}", kept, replace(usual, recompute=False), model))
    other = calibration.mixed(model, first, plan.most, plan.seed + ROUNDS[plan.quick], OTHERS[plan.quick])
    found += [Piece(f"{recipe.sync}-{first}", other, recipe, model) for recipe in others]
    one = calibration.mixed(model, 1, plan.most, plan.seed, ALONE[plan.quick])
    found.append(Piece("alone", one, usual, model))
    for devices in plan.devices:
        for recipe in by:
            for width in SIZES[plan.quick]:
                unit = replace(model, hidden=int(model.hidden * width), ffn=int(model.ffn * width))
                name = f"transfers-{recipe.sync}-{devices}-{width:g}"
                found.append(Piece(name, calibration.short(unit, devices), recipe, unit, emulate=True))
    return found


def measure(plan: Plan, piece: Piece) -> Measurements:
    """Run a piece and read off its timeline what it is for."""
    devices, job = piece.file.header.devices, _job(plan, piece)
    with tempfile.TemporaryDirectory(prefix="odc-") as folder:
        path = Path(folder) / "timeline.npz"
        if run(piece.file, job, str(path), quiet=True):
            fix = "what is measured so far is kept: give the same command again"
            raise EngineError(f"a run on {devices} devices failed, see above; {fix}")
        waits = job.cost if piece.emulate else None
        rows = recorded.rows(timeline.read(path), piece.file.schedules, piece.model, piece.recipe.dtype, waits)
    if not piece.recipe.recompute:
        return replace(_empty(plan), compute=tuple(row for row in rows.compute if row.kind.endswith(KEPT)))
    # Meetings and the rest are those of real runs where there are any, and of units of the model's own size.
    usual = piece.model == plan.model and (devices == plan.devices[0]) != piece.emulate
    constants = rows.constants if usual else ()
    return replace(_empty(plan), compute=rows.compute, transfers=rows.transfers, constants=constants)


def _job(plan: Plan, piece: Piece) -> Job:
    devices = piece.file.header.devices
    seconds = replace(STAND_IN, model=piece.model.name, recompute=piece.recipe.recompute)
    cost = Cost(piece.model, seconds, Cluster(devices, devices, 1.0, 1.0, devices), piece.recipe)
    return Job(
        schedules=piece.file.schedules,
        cost=cost,
        backend=plan.backend,
        emulate=piece.emulate,
        timeout=plan.timeout,
        seed=plan.seed,
        part=plan.use.part,
    )


def _hardware(plan: Plan) -> str:
    return with_gpus(plan.backend.hardware(plan.use))


def versions() -> str:
    """Ours by itself: where it is run from a folder nothing is installed of it."""
    return f"torch {torch.__version__}, Python {platform.python_version()}, odcsim {odcsim.__version__}"


def _empty(plan: Plan) -> Measurements:
    return Measurements(
        plan.model.name,
        plan.backend.device,
        (),
        hardware=_hardware(plan),
        versions=versions(),
        date=datetime.date.today().isoformat(),
        dtype=plan.recipe.dtype,
        transport=plan.backend.name,
        notes=plan.told,
    )

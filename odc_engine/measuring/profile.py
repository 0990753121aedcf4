"""Measures this machine and fits a profile to it: `odc_engine profile`.

All of it is read off runs of the engine itself, whose devices compute and communicate as they will. To tell what
disturbs what, some runs do one thing without the other: transfers while compute is emulated, and one device alone.

Each leg of work leaves a file of measurements in a folder beside the profile. An interrupted run finds those of its
own settings there and goes on; the folder goes when the profile is written.
"""

import datetime
import platform
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import torch

import odcsim
from odc_engine.errors import EngineError
from odc_engine.job import Job
from odc_engine.measuring import calibration, recorded
from odc_engine.measuring.survey import Survey
from odc_engine.runs.run import run, warn_if_busy, with_gpus
from odcsim import measurements, timeline
from odcsim.cluster import Cluster
from odcsim.cost import Cost
from odcsim.errors import InputError
from odcsim.measurements import KEPT, Compute, Measurements
from odcsim.model import Model
from odcsim.profile import Polynomial, Profile
from odcsim.recipe import Recipe
from odcsim.schedule import ScheduleFile
from odcsim.support.outputs import check_writable, lock
from odcsim.support.progress import progress

ROUNDS = {True: 2, False: 5}  # of every packing, if quick and if not
PARTS = {True: 2, False: 1}  # of a round, each a leg of its own
KEPT_ROUNDS = {True: 1, False: 5}  # of them without recompute
# Of what stands there for its transfers, or for a ratio, not every packing is needed. No multiple of 3, which is how
# many packings have as many tokens.
OTHERS = {True: 2, False: 1}  # every so-manieth packing under further syncs
ALONE = {True: 4, False: 1}  # and on one device alone
SIZES = {True: (1,), False: (1, 2, 0.5)}  # of units whose transfers are timed, as shares of the model's width
# Seconds that a layer stands for where only what is around it is measured: long enough to hide every transfer.
STAND_IN = Profile("", "", "calibrated", "", Polynomial(0.01), Polynomial(0.02), Polynomial(0.01), Polynomial(0.001))


@dataclass(frozen=True, slots=True)
class Leg:
    """One run of the engine: minutes of work at most, with a name of its own."""

    name: str
    file: ScheduleFile
    recipe: Recipe  # without recompute the layers' two passes are all that is taken from it
    model: Model  # the survey's, or one of another width, whose transfers have other sizes
    emulate: bool = False  # nobody computes: transfers by themselves


def measured(survey: Survey, output: Path) -> "odcsim.Fitted":
    """Measure what is not measured yet, fit, and write the profile."""
    survey.check()
    survey.check_here()
    check_writable(output)
    folder = partial(output)
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        problem = f"cannot be made ({error.strerror})"
        raise InputError(problem, where=str(folder), fix="write to another folder") from None
    # Two runs that measure into one folder would take each other's legs, and disturb them.
    with lock(folder / "lock"):
        warn_if_busy()
        every = folder / "measurements.json"
        measurements.write(taken(survey, folder), every)
        report = odcsim.fit(every, output=output)
        for file in (*(_path(folder, leg) for leg in legs(survey)), every, folder / "lock"):
            file.unlink(missing_ok=True)
        with suppress(OSError):  # somebody has more in it
            folder.rmdir()
    return report


def taken(survey: Survey, folder: Path, told: Callable[[str], None] = lambda _: None) -> Measurements:
    """What is not measured yet is, leg by leg, into the folder; then all of it. `told` hears of each leg."""
    every = legs(survey)
    found = {leg.name: known for leg in every if (known := _known(survey, _path(folder, leg)))}
    missing = [leg for leg in every if leg.name not in found]
    with progress("profile", len(missing)) as done:
        for leg in missing:
            found[leg.name] = measure(survey, leg)
            measurements.write(found[leg.name], _path(folder, leg))
            done(leg.name)
            told(leg.name)
    return together([found[leg.name] for leg in every])


def partial(output: Path) -> Path:
    """The folder of what an unfinished call has measured."""
    return output.with_name(output.name + ".partial")


def _path(folder: Path, leg: Leg) -> Path:
    return folder / f"{leg.name}.json"


def _known(survey: Survey, path: Path) -> Measurements | None:
    """What an earlier call with the same settings has measured on the same machine with the same software."""
    try:
        found = measurements.read(path)
    except InputError:  # there is none, or none that could be used
        return None
    said = replace(found, compute=(), transfers=(), constants=(), date="")
    return found if said == replace(_empty(survey), date="") else None


def together(found: list[Measurements]) -> Measurements:
    """One set of measurements out of several of the same machine. Each one's minibatches are others than the rest's."""
    compute: list[Compute] = []
    for m in found:
        before, spells = (
            max((row.minibatch for row in compute), default=0),
            max((row.spell for row in compute), default=0),
        )
        compute += (
            replace(row, minibatch=row.minibatch + before, spell=max(1, row.spell) + spells) if row.minibatch else row
            for row in m.compute
        )
    return replace(
        found[0],
        compute=tuple(compute),
        transfers=tuple(row for m in found for row in m.transfers),
        constants=tuple(row for m in found for row in m.constants),
    )


def legs(survey: Survey) -> list[Leg]:
    """What there is to do. Compute as usual, on which most hangs, comes in spells from the first leg to the last, so
    that a host whose speed drifts is met in many of its moods."""
    rest, turns = _others(survey), _turns(survey)
    gaps = len(turns) - 1
    found = []
    for number, turn in enumerate(turns):
        found += [*turn, *rest[len(rest) * number // gaps : len(rest) * (number + 1) // gaps]]
    return found


def _turns(survey: Survey) -> list[list[Leg]]:
    """Rounds of every packing, in parts; without recompute in turn with the usual, so that drift does both alike."""
    model, first = survey.model, survey.devices[0]
    usual = replace(survey.recipe, sync=survey.backend.profiled[0])
    parts = PARTS[survey.quick]
    turns: list[list[Leg]] = []
    for number in range(ROUNDS[survey.quick]):
        mixed = calibration.mixed(model, first, survey.most, survey.seed + number)
        for part in range(parts):
            some = replace(mixed, schedules=mixed.schedules[part::parts]).sealed()
            turns.append([Leg(f"compute-{len(turns)}", some, usual, model)])
        if number < KEPT_ROUNDS[survey.quick]:
            kept = calibration.mixed(model, first, survey.kept, survey.seed + number)
            turns[-parts].append(Leg(f"kept-{number}", kept, replace(usual, recompute="none"), model))
    return turns


def _others(survey: Survey) -> list[Leg]:
    """All that is measured beside."""
    model, first = survey.model, survey.devices[0]
    usual, *others = by = [replace(survey.recipe, sync=sync) for sync in survey.backend.profiled]
    other = calibration.mixed(model, first, survey.most, survey.seed + ROUNDS[survey.quick], OTHERS[survey.quick])
    found = [Leg(f"{recipe.sync}-{first}", other, recipe, model) for recipe in others]
    one = calibration.mixed(model, 1, survey.most, survey.seed, ALONE[survey.quick])
    found.append(Leg("alone", one, usual, model))
    for devices in survey.devices:
        for recipe in by:
            for width in SIZES[survey.quick]:
                unit = replace(model, hidden=int(model.hidden * width), ffn=int(model.ffn * width))
                name = f"transfers-{recipe.sync}-{devices}-{width:g}"
                found.append(Leg(name, calibration.short(unit, devices), recipe, unit, emulate=True))
    return found


def measure(survey: Survey, leg: Leg) -> Measurements:
    """Run a leg and read off its timeline what it is for."""
    devices, job = leg.file.header.devices, _job(survey, leg)
    with tempfile.TemporaryDirectory(prefix="odc-") as folder:
        path = Path(folder) / "timeline.npz"
        if run(leg.file, job, str(path), quiet=True):
            fix = "what is measured so far is kept: give the same command again"
            raise EngineError(f"a run on {devices} devices failed, see above; {fix}")
        waits = job.cost if leg.emulate else None
        rows = recorded.rows(timeline.read(path), leg.file.schedules, leg.model, leg.recipe.dtype, waits)
    if not leg.recipe.recomputes:
        return replace(_empty(survey), compute=tuple(row for row in rows.compute if row.kind.endswith(KEPT)))
    # Meetings and the rest are those of real runs where there are any, and of units of the model's own size.
    usual = leg.model == survey.model and (devices == survey.devices[0]) != leg.emulate
    constants = rows.constants if usual else ()
    return replace(_empty(survey), compute=rows.compute, transfers=rows.transfers, constants=constants)


def _job(survey: Survey, leg: Leg) -> Job:
    devices = leg.file.header.devices
    seconds = replace(STAND_IN, model=leg.model.name, recompute=leg.recipe.recomputes)
    cost = Cost(leg.model, seconds, Cluster(devices, devices, 1.0, 1.0, devices), leg.recipe)
    return Job(
        schedules=leg.file.schedules,
        cost=cost,
        backend=survey.backend,
        emulate=leg.emulate,
        timeout=survey.timeout,
        seed=survey.seed,
        part=survey.use.part,
    )


def _hardware(survey: Survey) -> str:
    return with_gpus(survey.backend.hardware(survey.use))


def versions() -> str:
    """Ours by itself: where it is run from a folder nothing is installed of it."""
    return f"torch {torch.__version__}, Python {platform.python_version()}, odcsim {odcsim.__version__}"


def _empty(survey: Survey) -> Measurements:
    return Measurements(
        survey.model.name,
        survey.backend.device,
        (),
        hardware=_hardware(survey),
        versions=versions(),
        date=datetime.date.today().isoformat(),
        dtype=survey.recipe.dtype,
        transport=survey.backend.name,
        notes=survey.told,
    )

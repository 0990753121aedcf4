"""Seconds that somebody measured become a profile, for who asks by paths: of a command line, or in Python."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import ArrayLike

from odcsim import catalog, measurements, profile
from odcsim.answer import Answer, Result
from odcsim.decide import calibrate
from odcsim.decide.asking import question_by, setting_of
from odcsim.decide.calibrate import Calibration
from odcsim.decide.sharding import as_ran
from odcsim.decide.words import FIT, paths_of
from odcsim.errors import InputError
from odcsim.fitting import fit as fits
from odcsim.fitting import kineto, microbatch_logs
from odcsim.fitting.fit import FitReport
from odcsim.fitting.steps import StepLog, holds_steps, read_steps
from odcsim.option import POSITIVE, flag
from odcsim.profile import Profile
from odcsim.program import SYNCS
from odcsim.question import FIELDS
from odcsim.recipe import CHOICES, recipe_of
from odcsim.support.numbers import counted
from odcsim.support.outputs import check_apart, check_writable
from odcsim.trace import Trace


@dataclass(frozen=True, slots=True, repr=False)
class Fitted(Result):
    """A profile, and in words what it was fitted to and what the fit does not explain."""

    profile: Profile
    lines: tuple[str, ...]
    unexplained: tuple[str, ...] = ()  # measurements that the fit misses

    @property
    def good(self) -> bool:
        return not self.unexplained

    def _answer(self) -> Answer:
        first = self.profile.origin.partition(". ")[0]
        if not self.good:
            first = f"it does not explain {counted(len(self.unexplained), 'measurement')}"
        about = f"{self.profile.model} on {self.profile.gpu}, {self.profile.fidelity}: {first}"
        return Answer("Fitted", about, sentences=self.lines)


@FIT.take
def fit(
    sources: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = (),
    *,
    lengths: str | os.PathLike[str] | None = None,
    trace: Trace | str | os.PathLike[str] | ArrayLike | None = None,
    sync: str | None = None,
    balancer: str | None = None,
    measured_tokens_per_second: float | None = None,
    output: str | os.PathLike[str] | None = None,
    **words: Any,
) -> Fitted:
    """A profile from `sources`: a log of steps, seconds of microbatches (CSV), profiler traces with their `lengths`, or
    measurements (JSON); or from `measured_tokens_per_second` alone. For a log of steps and for that number: the `trace`
    that was trained on, the `sync` and `balancer` that ran, and as `words` all else that `odcsim.ask` would be told of
    the run. `output`: the file to write, which others take as `profile`."""
    every = paths_of("sources", sources)
    own = {"trace": trace, "sync": sync, "balancer": balancer}
    given = words | {name: value for name, value in own.items() if value is not None}
    rate = measured_tokens_per_second
    if rate is not None:
        rate = POSITIVE.check("measured_tokens_per_second", rate)
    if output is not None:
        check_writable(Path(output))
        read = (*every, lengths, trace if isinstance(trace, str | os.PathLike) else None)
        check_apart(Path(output), [os.fspath(path) for path in read if path is not None])
    result = fitted(given, every, None if lengths is None else os.fspath(lengths), rate)
    if output is not None:
        profile.write(result.profile, Path(output))
    return result


def fitted(
    given: Mapping[str, Any], sources: Sequence[str], lengths: str | None = None, rate: float | None = None
) -> Fitted:
    """`given`: what was said of the run, the sync and the balancer among it. `rate`: of tokens in a second, instead of
    sources. Nothing is written."""
    if rate is not None and sources:
        raise InputError("--measured-tokens-per-second beside a log", where=sources[0], fix="give one of them")
    if rate is None and not sources:
        fix = "give a log, traces or measurements, or --measured-tokens-per-second"
        raise InputError("nothing to fit", fix=fix)
    for path in map(Path, sources):
        if path.is_dir():
            raise InputError("is a folder", where=str(path), fix="name a file inside it")
        if not path.exists():
            raise InputError("no such file", where=str(path), fix="give a log, measurements or traces")
    kind = "traces" if sources and lengths is not None else _kind(sources)
    if kind == "run":
        return _of_run(given, sources, rate)
    report = _report(kind, given, sources, lengths)
    return Fitted(report.profile, tuple(report.lines()), report.unexplained)


def _kind(sources: Sequence[str]) -> str:
    """`run`: a log of steps, or a number; else `microbatches` or `measurements`, by what the file holds."""
    if not sources:
        return "run"
    path = Path(sources[0])
    kind = "measurements" if path.suffix.lower() in (".json", ".gz") else "microbatches"
    if path.suffix.lower() == ".gz" or not path.is_file():  # a pipe can be read but once
        return kind
    return "run" if holds_steps(path) else kind


def _report(kind: str, given: Mapping[str, Any], sources: Sequence[str], lengths: str | None) -> FitReport:
    """The fit of measurements, of a log of microbatches or of traces."""
    first = sources[0]
    if kind != "traces" and len(sources) > 1:
        raise InputError(f"{len(sources)} sources", where=first, fix="several can only be traces, with --lengths")
    if kind == "measurements":
        fix = "measurements name it themselves; traces need --lengths"
        _refuse(given, (), f"given for {kind}", first, fix)
        return fits.examine(measurements.read(first))
    fix = "leave it out: of these, seconds hold all but --no-recompute"
    _refuse(given, ("model", "gpu", "devices", "recompute"), f"given for {kind}", first, fix)
    if missing := [f"--{name}" for name in ("model", "gpu") if not given.get(name)]:
        problem = f"{missing[0]} is needed for a log and for traces"
        raise InputError(problem, where=first, fix="give the model and the GPU that ran")
    model, gpu, recipe = catalog.model(given["model"]), given["gpu"], recipe_of(given)
    if kind == "traces":
        traces = [kineto.read_trace(path) for path in sources]
        return kineto.fit_traces(traces, lengths or "", model, gpu, recipe=recipe)
    log, devices = microbatch_logs.read_log(first), given.get("devices") or 1
    return microbatch_logs.fit_log(log, model, gpu, devices=devices, origin=Path(first).name, recipe=recipe)


def _refuse(given: Mapping[str, Any], known: tuple[str, ...], problem: str, where: str, fix: str) -> None:
    """Words that say something of a run, where the source says it, or nobody asks."""
    every = [name for name in (*FIELDS, "sync", "balancer") if name not in known]
    usual = {name: FIELDS[name].usual if name in FIELDS else None for name in every}
    words = {name: given[name] for name in every if given.get(name) is not None}
    said = [flag(name) for name, value in words.items() if name == "trace" or value != usual[name]]
    recipe = recipe_of({name: value for name, value in given.items() if name != "sync"})
    said += [
        "--no-recompute" if recipe.value(name) == "none" else CHOICES[name].flag
        for name in CHOICES
        if name not in known and name in recipe.unusual
    ]
    if said:
        raise InputError(f"{said[0]} {problem}", where=where, fix=fix)


def _of_run(given: Mapping[str, Any], sources: Sequence[str], rate: float | None) -> Fitted:
    """By the run's steps or its rate, and in words what was read of its log, and what was chosen where nobody said."""
    calibration, log = calibrated(given, sources, rate)
    before, after = list[str](), list[str]()
    if log is not None:
        steps, rows = sum(step.steps for step in log.steps), counted(len(log.steps), "row")
        before.append(f"read as {log.by.name}: {rows} of {counted(steps, 'step')}, by {', '.join(map(repr, log.keys))}")
        before += [f"not told: {lack}" for lack in log.lacks]
    if given.get("trainer") is not None and not {"balancer", "sync"} <= set(given):
        fix = "the fastest is taken unless --balancer and --sync say it"
        after.append(f"not known: which of its ways {given['trainer']} ran: {fix}")
    if given.get("truncate") or given.get("drop_over"):
        after.append(f"Lengths: {calibration.simulated.setting.trace.origin}.")
    profile = calibration.profile(Path(sources[0]).name if log else "")
    return Fitted(profile, (*before, *calibrate.sentences(calibration), *after))


def calibrated(
    given: Mapping[str, Any], sources: Sequence[str], rate: float | None = None
) -> tuple[Calibration, StepLog | None]:
    """The run that was told of, at the pace of a log or of a number; and the log."""
    for name in ("trace", "model", "gpu", "devices"):
        value = given.get(name)
        if value is None or (isinstance(value, str | int) and not value):
            fix = "give the flags of the run that was measured, as 'odcsim compare' takes them"
            raise InputError(f"--{name} is needed for a log of steps and for tokens per second", fix=fix)
    log = read_steps(list(sources), given["devices"]) if sources else None
    balancer, sync = given.get("balancer"), given.get("sync")
    if sync is not None and sync not in SYNCS:
        raise InputError(f"--sync is {sync!r:.40}", fix=f"give one of {', '.join(SYNCS)}")
    run = {name: value for name, value in given.items() if name not in ("sync", "balancer")}
    setting = setting_of(as_ran(question_by(run)))
    simulated = calibrate.simulated(setting, balancer, sync, log.by.way if log else None)
    if log is None:
        return calibrate.by_rate(simulated, rate or 0.0), None
    return calibrate.by_steps(simulated, log.steps, updates=log.by.updates), log

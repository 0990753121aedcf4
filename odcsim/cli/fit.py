"""`odcsim fit`: a profile from measurements, or from a log or profiler traces of a user's own training steps."""

import argparse
from typing import TYPE_CHECKING, Any

from odcsim.cli import options
from odcsim.errors import InputError
from odcsim.program import SYNCS
from odcsim.question import FIELDS, MACHINES, QUESTION, STEP
from odcsim.recipe import CHOICES, flag, recipe_of
from odcsim.recipe_flags import chosen

if TYPE_CHECKING:
    from odcsim.decide.calibrate import Simulated
    from odcsim.fitting.fit import FitReport
    from odcsim.fitting.steps import StepLog

# What a run that was measured does not have, or says by a flag of its own.
RUN = (*(name for name in options.SOME if name != "trainer"), "profile", "trace", "split_overhead")
EXAMPLE = (
    "odcsim fit trainer_state.json --trace lengths.csv --model qwen3-8b --gpu h100 --devices 8 --global-batch 64 "
    "-o mine.json"
)


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "fit",
        help="a profile from a log of your own steps, from traces, or from measurements",
        example=EXAMPLE,
        description="Fit a profile to a log of steps (Hugging Face's trainer_state.json, JSON lines, CSV of W&B or "
        "TensorBoard, verl's and torchtitan's metrics) and the flags of the run; to a CSV file with the columns "
        "lengths (512;1024;77) and seconds, a row for each microbatch of one device; to PyTorch profiler traces of an "
        "FSDP run on GPUs; or to measurements (JSON). Says what the fit does not explain.",
    )
    parser.add_argument(
        "sources", nargs="*", metavar="SOURCE", help="a log, or measurements in JSON, or traces (JSON, JSON.gz)"
    )
    groups = options.add_question(parser, without=RUN, needed=())
    groups[QUESTION].add_argument(
        "--trace", metavar="TRACE", help="of a log of steps: the lengths that were trained on"
    )
    groups[STEP].add_argument("--sync", choices=SYNCS, default=argparse.SUPPRESS, help="that ran; default: the log's")
    groups[STEP].add_argument("--balancer", metavar="B", help="that dealt the samples; default: the log's")
    options.add_rate(groups[MACHINES], "instead of a log: what the run reached on all devices together")
    parser.add_argument("--lengths", metavar="FILE", help="of traces: CSV with device, step and lengths per microbatch")
    parser.add_argument("-o", dest="output", required=True, metavar="PROFILE", help="the file to write (JSON)")
    parser.set_defaults(run=_run, writes="profile")


def _run(args: argparse.Namespace) -> None:
    kind = _kind(args)
    if kind == "run":
        _calibrate(args)
        return
    _tell(_report(args, kind), args.output)


def _tell(report: "FitReport", output: str) -> None:
    import sys

    from odcsim import profile

    profile.write(report.profile, output)
    for line in report.lines():
        print(line)
    if not report.good:
        count = len(report.unexplained)
        print(f"odcsim fit: this is no good fit: it does not explain {count} measurements", file=sys.stderr)
    print(f"{output}: {report.profile.origin}")


def _kind(args: argparse.Namespace) -> str:
    """`run`: a log of steps, or a number; else `traces`, `microbatches` or `measurements`, by what the file holds."""
    from pathlib import Path

    from odcsim.fitting import step_files

    if args.measured_tokens_per_second is not None or not args.sources:
        if args.sources:
            fix = "give one of them"
            raise InputError("--measured-tokens-per-second beside a log", where=args.sources[0], fix=fix)
        if args.measured_tokens_per_second is None:
            raise InputError(
                "nothing to fit", fix="give a log, traces or measurements, or --measured-tokens-per-second"
            )
        return "run"
    if args.lengths is not None:
        return "traces"
    path = Path(args.sources[0])
    kind = "measurements" if path.suffix.lower() in (".json", ".gz") else "microbatches"
    if path.suffix.lower() == ".gz" or not path.is_file():  # a pipe can be read but once
        return kind
    return "run" if step_files.holds_steps(path) else kind


def _report(args: argparse.Namespace, kind: str) -> "FitReport":
    from pathlib import Path

    from odcsim import catalog
    from odcsim.fitting import fit, kineto, logs, measurements

    first = args.sources[0]
    if kind != "traces" and len(args.sources) > 1:
        raise InputError(f"{len(args.sources)} sources", where=first, fix="several can only be traces, with --lengths")
    if kind == "measurements":
        _refuse(args, (), f"given for {kind}", "measurements name it themselves; traces need --lengths")
        return fit.examine(measurements.read(first))
    fix = "leave it out: of these, seconds hold all but --no-recompute"
    _refuse(args, ("model", "gpu", "devices", "recompute"), f"given for {kind}", fix)
    if missing := [f"--{name}" for name in ("model", "gpu") if not getattr(args, name)]:
        raise InputError(f"{missing[0]} is needed for a log and for traces", where=first, fix="name what ran")
    model, recipe = catalog.model(args.model), recipe_of(chosen(args))
    if kind == "traces":
        traces = [kineto.read_trace(path) for path in args.sources]
        return kineto.fit_traces(traces, args.lengths, model, args.gpu, recipe=recipe)
    log, origin = logs.read_log(first), Path(first).name
    return logs.fit_log(log, model, args.gpu, devices=args.devices or 1, origin=origin, recipe=recipe)


def _refuse(args: argparse.Namespace, known: tuple[str, ...], problem: str, fix: str) -> None:
    """Flags that say something of a run, where the source says it, or nobody asks."""
    every = [*FIELDS, "sync", "balancer"]
    given = [f"--{name.replace('_', '-')}" for name in every if name not in known and _is_given(args, name)]
    recipe = recipe_of({name: value for name, value in chosen(args).items() if name != "sync"})
    given += [
        "--no-recompute" if recipe.value(name) == "none" else flag(name)
        for name in CHOICES
        if name not in known and name not in recipe.usual
    ]
    if given:
        raise InputError(f"{given[0]} {problem}", where=args.sources[0], fix=fix)


def _is_given(args: argparse.Namespace, name: str) -> bool:
    usual = FIELDS[name].usual if name in FIELDS else None
    return getattr(args, name, None) not in (None, usual)


def _calibrate(args: argparse.Namespace) -> None:
    from pathlib import Path

    from odcsim import profile
    from odcsim.decide import calibrate
    from odcsim.fitting.steps import read_steps

    for name in ("trace", "model", "gpu", "devices"):
        if not getattr(args, name):
            fix = "give the flags of the run that was measured, as 'odcsim compare' takes them"
            raise InputError(f"--{name} is needed for a log of steps and for tokens in a second", fix=fix)
    log = read_steps(args.sources, args.devices) if args.sources else None
    simulated = _simulated(args, log)
    if log is None:
        found = calibrate.by_rate(simulated, args.measured_tokens_per_second)
    else:
        found = calibrate.by_steps(simulated, log.steps, updates=log.by.updates)
    made = found.profile(Path(args.sources[0]).name if log else "")
    profile.write(made, args.output)
    for line in [*_read(log), *calibrate.sentences(found), *_taken(args)]:
        print(line)
    print(f"{args.output}: {made.origin}")


def _simulated(args: argparse.Namespace, log: "StepLog | None") -> "Simulated":
    from odcsim.decide.calibrate import simulated

    usual = log.by.way if log else None
    return simulated(options.setting_of(args), args.balancer, getattr(args, "sync", None), usual)


def _taken(args: argparse.Namespace) -> list[str]:
    """What was chosen where nobody said it."""
    said = args.balancer is not None and hasattr(args, "sync")
    if args.trainer is None or said:
        return []
    fix = "the fastest is taken unless --balancer and --sync say it"
    return [f"not told: which of its ways {args.trainer} ran: {fix}"]


def _read(log: "StepLog | None") -> list[str]:
    """What was read of a log, and what it lacks."""
    if log is None:
        return []
    from odcsim.support.numbers import counted

    steps, rows = sum(step.steps for step in log.steps), counted(len(log.steps), "row")
    read = f"read as {log.by.name}: {rows} of {counted(steps, 'step')}, by {', '.join(map(repr, log.keys))}"
    return [read, *(f"not told: {lack}" for lack in log.lacks)]

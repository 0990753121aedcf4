"""`odcsim fit`: a profile from measurements, or from a log or profiler traces of a user's own training steps."""

import argparse
from typing import TYPE_CHECKING, Any

from odcsim.cli import options
from odcsim.errors import InputError
from odcsim.recipe import recipe_of
from odcsim.recipe_flags import chosen

if TYPE_CHECKING:
    from odcsim.fitting.fit import FitReport


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "fit",
        help="a profile from measurements, or from a log or traces of your own steps",
        description="Fit a profile to measurements (JSON), to a CSV file with the columns lengths (512;1024;77) and "
        "seconds, a row for each microbatch of one device, or to PyTorch profiler traces of an FSDP run on GPUs. Says "
        "what the fit does not explain.",
    )
    parser.add_argument(
        "sources", nargs="+", metavar="SOURCE", help="LOG.csv, or measurements in JSON, or traces (JSON, JSON.gz)"
    )
    parser.add_argument("--lengths", metavar="FILE", help="of traces: CSV with device, step and lengths per microbatch")
    parser.add_argument(
        "--model", metavar="M", help="of a log or traces: a name ('odcsim catalog list') or a config.json"
    )
    parser.add_argument("--gpu", metavar="G", help="likewise: the device's name, as in 'odcsim catalog list'")
    parser.add_argument("--devices", type=options.whole, metavar="N", help="of a log: how many shared the model (1)")
    parser.add_argument(
        "--no-recompute",
        dest="recompute",
        action="store_const",
        const="none",
        default="full",
        help="of a log or traces: layers kept activations",
    )
    parser.add_argument("-o", dest="output", required=True, metavar="PROFILE", help="the file to write (JSON)")
    parser.set_defaults(run=_run, writes="profile")


def _run(args: argparse.Namespace) -> None:
    import sys

    from odcsim import profile

    report = _report(args)
    profile.write(report.profile, args.output)
    for line in report.lines():
        print(line)
    if not report.good:
        count = len(report.unexplained)
        print(f"odcsim fit: this is no good fit: it does not explain {count} measurements", file=sys.stderr)
    print(f"{args.output}: {report.profile.origin}")


def _report(args: argparse.Namespace) -> "FitReport":
    from pathlib import Path

    first = args.sources[0]
    if args.lengths is None and len(args.sources) > 1:
        raise InputError(f"{len(args.sources)} sources", where=first, fix="several can only be traces, with --lengths")
    if args.lengths is None and Path(first).suffix.lower() in (".json", ".gz"):
        from odcsim.fitting import fit, measurements

        named = [f"--{n}" for n in ("model", "gpu", "devices") if getattr(args, n) is not None]
        if named := [*named, *(["--no-recompute"] if args.recompute == "none" else [])]:
            fix = "measurements name it themselves; traces need --lengths"
            raise InputError(f"{named[0]} given for measurements", where=first, fix=fix)
        return fit.examine(measurements.read(first))
    from odcsim import catalog
    from odcsim.fitting import kineto, logs

    if missing := [f"--{name}" for name in ("model", "gpu") if getattr(args, name) is None]:
        raise InputError(f"{missing[0]} is needed for a log and for traces", where=first, fix="name what ran")
    model, recipe = catalog.model(args.model), recipe_of(chosen(args))
    if args.lengths is not None:
        traces = [kineto.read_trace(path) for path in args.sources]
        return kineto.fit_traces(traces, args.lengths, model, args.gpu, recipe=recipe)
    log, origin = logs.read_log(first), Path(first).name
    return logs.fit_log(log, model, args.gpu, devices=args.devices or 1, origin=origin, recipe=recipe)

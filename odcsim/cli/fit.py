"""`odcsim fit`: a profile from measurements, or from the log of a user's own training steps."""

import argparse
from typing import TYPE_CHECKING, Any

from odcsim.cli import options
from odcsim.errors import InputError

if TYPE_CHECKING:
    from odcsim.fit import FitReport


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "fit",
        help="a profile from measurements, or from the log of your own steps",
        description="Fit a profile to measurements (JSON), or to a CSV file with the columns lengths (512;1024;77) and "
        "seconds, a row for each microbatch of one device. Says what the fit does not explain.",
    )
    parser.add_argument("source", metavar="SOURCE", help="LOG.csv, or measurements in JSON")
    parser.add_argument("--model", metavar="M", help="of a log: a name ('odcsim catalog list') or a config.json")
    parser.add_argument(
        "--gpu", metavar="G", help="of a log: the device's name, one of 'odcsim catalog list' if it can"
    )
    parser.add_argument("--devices", type=options.whole, metavar="N", help="of a log: how many shared the model (1)")
    parser.add_argument("-o", dest="output", required=True, metavar="PROFILE", help="the file to write (JSON)")
    parser.set_defaults(run=_run)


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

    if Path(args.source).suffix.lower() == ".json":
        from odcsim import fit, measurements

        if named := [f"--{n}" for n in ("model", "gpu", "devices") if getattr(args, n) is not None]:
            raise InputError(f"{named[0]} given for measurements", where=args.source, fix="they name it themselves")
        return fit.examine(measurements.read(args.source))
    from odcsim import catalog, logs

    if missing := [f"--{name}" for name in ("model", "gpu") if getattr(args, name) is None]:
        raise InputError(f"{missing[0]} is needed for a log", where=args.source, fix="name what was logged")
    log, name = logs.read_log(args.source), Path(args.source).name
    return logs.fit_log(log, catalog.model(args.model), args.gpu, args.devices or 1, name)

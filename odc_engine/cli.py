"""The `odc_engine` command."""

import argparse
import sys
from collections.abc import Sequence

from odcsim.errors import InputError


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="odc_engine", description="Run odcsim's schedules on real devices.")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    doctor = commands.add_parser("doctor", help="what is installed, what this machine can run, and why not")
    doctor.add_argument("--json", action="store_true", help="print JSON")
    doctor.set_defaults(run=_doctor)
    return parser


def _doctor(args: argparse.Namespace) -> None:
    from odc_engine import doctor

    findings = doctor.examine()
    print(doctor.as_json(findings) if args.json else doctor.as_text(findings))


def main(argv: Sequence[str] | None = None) -> int:
    args = build_parser().parse_args(argv)
    try:
        args.run(args)
    except InputError as error:
        print(f"odc_engine: error: {error}", file=sys.stderr)
        return 2
    return 0

"""`odc_engine doctor`: what is installed, what this machine can run, and why not."""

import argparse
from typing import Any

from odc_engine import backends
from odc_engine.cli import options
from odcsim.errors import InputError


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "doctor",
        help="show what is installed and what this machine can run",
        description="Show what is installed, what this machine can run, and why not.",
        examples=("odc_engine doctor",),
    )
    parser.add_argument(
        "--gpu-selftest", action="store_true", help="also try on this GPU whether kernels move the right bytes"
    )
    parser.add_argument("--model", metavar="M", help="also check whether this set-up suffices for this model")
    parser.add_argument("--devices", type=options.whole, metavar="N", help="number of ranks for --model (8)")
    names = dict.fromkeys(row.name for row in backends.ROWS if row.says)
    parser.add_argument("--backend", choices=tuple(names), help="exit with 1 if this backend cannot run here")
    options.add_device(parser)
    options.add_json(parser)
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    from odc_engine.doctor import abilities, selftest

    if args.device != backends.USUAL.device and not args.backend:
        raise InputError(f"--device {args.device} without --backend", fix="give --backend, or leave --device out")
    row = backends.chosen(args.backend, args.device) if args.backend else None
    asked = abilities.Inquiry(row, args.model, args.devices or 0)
    findings = abilities.examine(asked)
    tested = selftest.examine(bool(abilities.gpus()[0])) if args.gpu_selftest else []
    print((abilities.as_json if args.json else abilities.as_text)(findings + tested))
    if tested == [selftest.NO_GPU]:
        return 3
    return int(abilities.at_fault(findings, asked) or any(not each.ok for each in tested))

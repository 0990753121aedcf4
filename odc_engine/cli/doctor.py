"""`odc_engine doctor`: what is installed, what this machine can run, and why not."""

import argparse
from typing import Any

from odc_engine.cli import options


def add(commands: Any) -> None:
    parser = commands.add_parser("doctor", help="what is installed, what this machine can run, and why not")
    parser.add_argument("--gpu-selftest", action="store_true", help="try on this GPU what the engine relies on")
    parser.add_argument("--model", metavar="M", help="ask, too, whether what is set up suffices for it")
    parser.add_argument("--devices", type=options.whole, default=8, metavar="N", help="on so many devices (8)")
    options.add_json(parser)
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    if args.gpu_selftest:
        from odc_engine.doctor.probes.selftest import selftest

        return selftest(args.json)
    from odc_engine.doctor import abilities

    findings = abilities.examine(args.model, args.devices)
    print(abilities.as_json(findings) if args.json else abilities.as_text(findings))
    return 0

"""`odc_engine bandwidth`: how fast devices gather and push here."""

import argparse
from pathlib import Path
from typing import Any

from odc_engine import backends
from odc_engine.cli import options


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "bandwidth",
        help="measure gather and push rates against all-gather, reduce-scatter",
        description="Measure how fast this machine gathers and pushes on demand, beside collectives.",
        examples=("odc_engine bandwidth --devices 2 --bytes 1Mi",),
    )
    parser.add_argument("--devices", type=options.numbers, default=(2, 4), metavar="N,N", help="numbers of ranks (2,4)")
    told = "sizes of the full tensor (64 KB to 256 MB)"
    parser.add_argument("--bytes", type=options.numbers, default=(), metavar="B,B", help=told)
    options.add_backend(parser, tuple(backends.measured()))
    options.add_json(parser)
    parser.add_argument("--html", metavar="FILE", help="also write a page with the figure")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    from odc_engine.measuring.survey import SIZES, check_rates

    sizes = args.bytes or SIZES
    check_rates(args.devices, sizes)
    page = Path(args.html) if args.html else None
    options.need_torch()
    from odc_engine.measuring import bandwidth

    return bandwidth.bandwidth(args.devices, sizes, args.json, backends.measured()[args.backend], page)

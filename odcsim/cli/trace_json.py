"""`odcsim trace-json`: a timeline for ui.perfetto.dev."""

import argparse
from typing import Any


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "trace-json",
        help="a timeline as a trace for ui.perfetto.dev",
        description="Write some minibatches of a timeline as trace events: a process per device, a track per lane.",
    )
    parser.add_argument("timeline", metavar="TIMELINE", help="a file of 'odcsim simulate' or 'odc_engine run'")
    parser.add_argument("-o", dest="output", required=True, metavar="FILE", help="FILE.json.gz, or FILE.json")
    parser.add_argument("--minibatches", metavar="A-B", help="from A to B, numbered from 0 (default: the first three)")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> None:
    from pathlib import Path

    from odcsim import timeline
    from odcsim.pages import perfetto

    read = timeline.read(args.timeline)
    chosen = perfetto.window(args.minibatches, read) if args.minibatches is not None else ()
    count = perfetto.write(read, args.output, chosen)
    print(
        f"{args.output}: {count:,} events, {Path(args.output).stat().st_size / 1e6:.2f} MB; open it in ui.perfetto.dev"
    )

"""`odcsim report`: timelines as a page of pictures."""

import argparse
from typing import Any


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "report",
        help="pictures of timelines: idle by part, and one minibatch as Gantt charts",
        description="Write a self-contained HTML page about timelines of 'odcsim simulate' or 'odc_engine run'.",
    )
    parser.add_argument("timelines", nargs="+", metavar="TIMELINE", help="files to show beside each other")
    parser.add_argument("--html", required=True, metavar="FILE", help="the page to write")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> None:
    from pathlib import Path

    from odcsim import timeline
    from odcsim.pages.report import write_timelines

    write_timelines([timeline.read(path) for path in args.timelines], args.html)
    print(f"{args.html}: {Path(args.html).stat().st_size / 1e6:.1f} MB")

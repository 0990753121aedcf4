"""`odcsim report`: timelines as a page of pictures."""

import argparse
from pathlib import Path
from typing import Any

from odcsim.cli import options


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "report",
        help="draw timelines: idle time, Gantt charts, CSV of steps",
        description="Write a self-contained HTML page about timelines of 'odcsim simulate' or 'odc_engine run', a "
        "picture of one minibatch, or a CSV line for each step. Give at least one output.",
        examples=("odcsim report run.npz --html run.html",),
    )
    parser.add_argument("timelines", nargs="+", metavar="TIMELINE", help="timeline files to show side by side")
    parser.add_argument("--html", metavar="FILE", help="page to write")
    parser.add_argument("--svg", metavar="FILE", help="picture of one minibatch to write, for a pull request")
    parser.add_argument("--steps", metavar="FILE", help="CSV to write, a line for each step, for W&B or TensorBoard")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> None:
    from odcsim import timeline
    from odcsim.errors import InputError

    if not (args.html or args.svg or args.steps):
        raise InputError("no output is given", fix="give --html FILE, --svg FILE or --steps FILE")
    timelines = [timeline.read(path) for path in args.timelines]
    if args.html is not None:
        from odcsim.show.pages.answer_pages import write_timelines

        write_timelines(timelines, args.html)
        _tell(args.html)
    if args.svg is not None:
        from odcsim.show.pages.answer_pages import write_picture

        write_picture(timelines, args.svg)
        _tell(args.svg)
    if args.steps is not None:
        import io

        from odcsim.results.metrics import steps
        from odcsim.support.outputs import write_text

        titles = [t.about.title for t in timelines]
        alike = len(set(titles)) < len(titles)
        runs = [f"{title} ({path})" if alike else title for title, path in zip(titles, args.timelines, strict=True)]
        lines = [line for t, run in zip(timelines, runs, strict=True) for line in steps(t, run)]
        options.write_csv(lines, out := io.StringIO())
        write_text(Path(args.steps), out.getvalue())
        print(f"{args.steps}: {len(lines):,} steps of {len(timelines)} timeline{'s' if len(timelines) > 1 else ''}")


def _tell(path: str) -> None:
    size = Path(path).stat().st_size
    print(f"{path}: {size / 1e6:.1f} MB" if size >= 1e5 else f"{path}: {size / 1e3:.0f} kB")

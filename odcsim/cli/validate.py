"""`odcsim validate`: a prediction held against real runs of the same schedule."""

import argparse
from typing import TYPE_CHECKING, Any

from odcsim.cli import options

if TYPE_CHECKING:
    from odcsim.results.validation import Validation


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "validate",
        help="compare a prediction with real runs of the same schedule",
        description="Measure a prediction's error against real runs of the same schedule: step time, idle time and "
        "its parts, finish times, seconds of each kind of work. Several runs show the noise.",
        examples=("odcsim validate predicted.npz measured.npz --tolerance 0.05",),
    )
    parser.add_argument("predicted", metavar="PREDICTED", help="a timeline of 'odcsim simulate'")
    parser.add_argument(
        "measured", nargs="+", metavar="MEASURED", help="timelines of 'odc_engine run', one for each run"
    )
    parser.add_argument(
        "--tolerance",
        type=options.amount,
        metavar="T",
        help="exit with 1 if the median error of step time is larger (a fraction: 0.03)",
    )
    parser.add_argument("--json", action="store_true", help="print all errors as JSON")
    parser.add_argument("--html", metavar="FILE", help="also write a page with a figure")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    from odcsim import timeline
    from odcsim.results.validation import validate
    from odcsim.say import terminal, validation_words

    validation = validate(timeline.read(args.predicted), [timeline.read(path) for path in args.measured])
    if args.html is not None:
        from odcsim.show.pages.answer_pages import write_validation

        write_validation(validation, args.html)
    if args.json:
        options.print_json(validation.as_json())
    else:
        terminal.show(validation_words.answer(validation))
    return _judge(validation, args.tolerance)


def _judge(validation: "Validation", tolerance: float | None) -> int:
    """1 where the prediction is further off than tolerated, and a line that says so."""
    import sys

    if tolerance is None or validation.makespan.median <= tolerance:
        return 0
    kind = max(validation.kinds, key=lambda k: abs(k.error_points))
    print(
        f"odcsim validate: FAILED: median makespan error {validation.makespan.median:.2%} is over the tolerance of "
        f"{tolerance:.2%}; {kind.kind} is furthest off ({kind.error_points:+.2f} points of device time)",
        file=sys.stderr,
    )
    return 1

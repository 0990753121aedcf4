"""The `odcsim` command: a module for each subcommand. Heavy imports wait until it runs, so that help stays quick."""

import gc
import os
from collections.abc import Sequence
from importlib import import_module

from odcsim.support.command import Parser, status

DOORS = {
    "decide": ("advise", "compare", "sweep", "break_even", "explore", "rl"),
    "diagnose": ("audit", "diagnose", "report", "trace_json"),
    "calibrate": ("fit", "validate"),
    "schedule": ("trace", "balance", "check", "simulate"),
    "settings": ("flags", "catalog", "completion", "demo"),
}
COMMANDS = tuple(name for names in DOORS.values() for name in names)


def build_parser() -> Parser:
    parser = Parser(
        prog="odcsim",
        description="Predict how much time uneven sequence lengths cost in LLM training (SFT, RL), and what wins it "
        "back: a better balancer, or on-demand communication. Start with 'odcsim demo'.",
        doors={door: [name.replace("_", "-") for name in names] for door, names in DOORS.items()},
    )
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", parser_class=Parser)
    for name in COMMANDS:
        import_module(f"odcsim.cli.{name}").add(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")  # pyarrow's own takes a gigabyte that nothing is in
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # no matrix here is worth threads, which wait for it busily
    gc.set_threshold(100_000, 20, 20)  # plans are tuples by the hundred thousand, none of them in a cycle
    return status("odcsim", lambda: _main(argv))


def _main(argv: Sequence[str] | None) -> int | None:
    parser = build_parser()
    args = parser.parse_args(argv)
    if args.version:
        from odcsim import __version__

        print(__version__)
        return 0
    if not hasattr(args, "run"):
        parser.print_help()
        return 0
    from odcsim.support.outputs import check_outputs

    check_outputs(args)
    code: int | None = args.run(args)
    return code

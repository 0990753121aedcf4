"""The `odc_engine` command: a module for each subcommand. torch loads only where one needs it."""

from collections.abc import Sequence
from importlib import import_module

from odc_engine.errors import EngineError
from odcsim.support.command import Parser, status

DOORS = {"train": ("doctor", "run", "verify"), "measure": ("profile", "bandwidth")}
COMMANDS = tuple(name for names in DOORS.values() for name in names)


def build_parser() -> Parser:
    parser = Parser(
        prog="odc_engine",
        description="Run odcsim's schedules for real, on CPU processes or GPUs, and measure this machine.",
        doors=DOORS,
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=Parser)
    for name in COMMANDS:
        import_module(f"odc_engine.cli.{name}").add(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    return status("odc_engine", lambda: _main(argv), EngineError)


def _main(argv: Sequence[str] | None) -> int | None:
    from odcsim.support.outputs import check_outputs

    args = build_parser().parse_args(argv)
    check_outputs(args)
    code: int | None = args.run(args)
    return code

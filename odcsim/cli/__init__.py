"""The `odcsim` command: a module for each subcommand. Heavy imports wait until it runs, so that help stays quick."""

from argparse import Namespace
from collections.abc import Sequence
from importlib import import_module

from odcsim.command import Parser, status

COMMANDS = (
    "demo",
    "trace",
    "advise",
    "compare",
    "explore",
    "balance",
    "check",
    "simulate",
    "report",
    "trace_json",
    "fit",
    "validate",
    "flags",
    "rl",
    "catalog",
    "completion",
)

# What arguments that may name a file to read are called, in any command.
INPUTS = tuple(
    "trace source sources schedule timeline timelines predicted measured name model gpu profile cluster lengths "
    "tokenizer plan rows".split()
)
PAGES = ("", ".html", ".htm")  # without a suffix it may be a pipe


def build_parser() -> Parser:
    parser = Parser(prog="odcsim", description="Predict what uneven sequence lengths cost in data-parallel training.")
    parser.add_argument("--version", action="store_true", help="print the version and leave")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", parser_class=Parser)
    for name in COMMANDS:
        import_module(f"odcsim.cli.{name}").add(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
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
    return _run(args)


def _run(args: Namespace) -> int | None:
    """What cannot be written is refused before the work whose result it would be."""
    from pathlib import Path

    from odcsim.errors import InputError
    from odcsim.files import check_apart, check_writable

    read = [path for name in INPUTS for path in _listed(getattr(args, name, None))]
    for name in ("output", "html"):
        if (path := getattr(args, name, None)) is not None:
            check_writable(Path(path))
            check_apart(Path(path), read)
    if (page := getattr(args, "html", None)) and Path(page).suffix.lower() not in PAGES:
        raise InputError("is no name of a page", where=page, fix="pages are HTML: name it FILE.html")
    code: int | None = args.run(args)
    return code


def _listed(value: str | list[str] | None) -> list[str]:
    return value if isinstance(value, list) else [value] if value else []

"""Reference of the command line, from the parsers that read it."""

import argparse
from collections.abc import Iterator
from importlib import import_module

WIDE = 100  # columns of a usage line


def page(package: str) -> str:
    """Every command of `odcsim` or `odc_engine`, with what it takes."""
    parser = import_module(f"{package}.cli").build_parser()
    commands = [part for name, command in _below(parser) for part in _command(f"{package} {name}", command)]
    return "\n\n".join([f"# The command `{package}`", parser.description or "", *commands]) + "\n"


def _below(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Commands, and those beneath them under both names."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, command in action.choices.items():
                yield name, command.complete()
                yield from ((f"{name} {inner}", below) for inner, below in _below(command))


def _command(name: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    yield f"## {name}"
    yield _text(parser.description or "")
    formatter = argparse.HelpFormatter(parser.prog, width=WIDE)
    formatter.add_usage(parser.usage, parser._actions, parser._mutually_exclusive_groups)
    yield f"```text\n{formatter.format_help().strip()}\n```"
    rows = [row for action in parser._actions for row in _row(parser, action)]
    if rows:
        yield "\n".join(["| argument | what it says |", "|---|---|", *rows])
    if examples := getattr(parser, "examples", ()):
        yield "\n".join(["```sh", *examples, "```"])


def _row(parser: argparse.ArgumentParser, action: argparse.Action) -> Iterator[str]:
    """A line of the table, for what is no command beneath and not hidden."""
    hidden = action.help == argparse.SUPPRESS or isinstance(action, argparse._HelpAction) or action.dest == "help_all"
    if hidden or isinstance(action, argparse._SubParsersAction):
        return
    formatter = parser._get_formatter()
    said = formatter._expand_help(action) if action.help else ""
    yield f"| `{formatter._format_action_invocation(action)}` | {_text(said)} |".replace("\n", " ")


def _text(words: str) -> str:
    """Plain words, in which nothing is markup."""
    for mark in "\\`*_<|[":
        words = words.replace(mark, f"\\{mark}" if mark != "<" else "&lt;")
    return words

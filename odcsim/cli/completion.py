"""`odcsim completion`: what a shell has to know to complete commands, flags and names of the catalogue."""

import argparse
from typing import Any

from odcsim.support.command import Parser

SHELLS = ("bash", "zsh")
_NAMED = {"--model": "model_names", "--gpu": "gpu_names", "--gpus": "gpu_names"}  # of the catalogue
_SCRIPT = """_odcsim() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD - 1]}} words=
    case "${{COMP_WORDS[1]}} $before" in
{values}
    esac
    if [ -z "$words" ]; then
        if [ "$COMP_CWORD" -eq 1 ]; then words="{commands}"
        else case "${{COMP_WORDS[1]}}" in
{flags}
        esac; fi
    fi
    COMPREPLY=($(compgen -W "$words" -- "$word"))
}}
complete -o default -F _odcsim odcsim"""


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "completion",
        help="print a script for tab completion in bash or zsh",
        description="Print a script that completes commands, flags, models and GPUs. Add the example to ~/.bashrc or "
        "~/.zshrc.",
        examples=('eval "$(odcsim completion bash)"',),
    )
    parser.add_argument("shell", choices=SHELLS, help="your shell")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> None:
    if args.shell == "zsh":
        print("autoload -Uz compinit bashcompinit && compinit && bashcompinit")
    print(script())


def script() -> str:
    """A bash function, which zsh runs too. File names follow where nothing else fits."""
    from odcsim import catalog
    from odcsim.cli import build_parser

    parsers = _commands(build_parser())
    values, flags = [], []
    for name, parser in parsers.items():
        words = [*_commands(parser)]  # what may follow: commands beneath, and flags
        for action in parser._actions:
            words += [flag for flag in action.option_strings if len(flag) > 2]
            for flag in action.option_strings:
                known = getattr(catalog, _NAMED[flag])() if flag in _NAMED else action.choices or ()
                if choices := " ".join(map(str, known)):
                    values.append(f'        "{name} {flag}") words="{choices}" ;;')
        flags.append(f'        {name}) words="{" ".join(words)}" ;;')
    return _SCRIPT.format(values="\n".join(values), commands=" ".join(parsers), flags="\n".join(flags))


def _commands(parser: Parser) -> dict[str, Parser]:
    inner = next((a for a in parser._actions if isinstance(a, argparse._SubParsersAction)), None)
    return {} if inner is None else {name: command.complete() for name, command in inner.choices.items()}

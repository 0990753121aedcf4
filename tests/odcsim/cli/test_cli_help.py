"""What `--help` of a command shows: first what one needs, on one screen, and all of it with `--help-all`."""

import argparse
import shlex

import pytest

import odc_engine.cli
import odcsim.cli
from odcsim.cli import COMMANDS, DOORS, main

LINES, WIDE = 40, 80


def below(parser, name=""):
    """Every command, and those beneath it, by the words that call it."""
    yield name.strip(), parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for word, inner in action.choices.items():
                yield from below(inner, f"{name} {word}")


PARSERS = {"odcsim": odcsim.cli.build_parser, "odc_engine": odc_engine.cli.build_parser}
EVERY = [f"{program} {words}".strip() for program, build in PARSERS.items() for words, _ in below(build())]
MAINS = {"odcsim": odcsim.cli.main, "odc_engine": odc_engine.cli.main}


def parser_of(command):
    program, _, words = command.partition(" ")
    return dict(below(PARSERS[program]()))[words].filled()


def shown(capsys, monkeypatch, command, *flags):
    monkeypatch.setenv("COLUMNS", str(WIDE))
    program, *words = command.split()
    with pytest.raises(SystemExit) as end:
        MAINS[program]([*words, *flags])
    assert end.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("command", EVERY)
def test_the_help_of_every_command_is_one_screen(command, capsys, monkeypatch):
    lines = shown(capsys, monkeypatch, command, "--help").splitlines()
    assert len(lines) <= LINES
    assert [line for line in lines if len(line) > WIDE] == []
    assert lines[0].startswith(f"usage: {command}")
    assert "--help" in lines[-1]
    assert not [line for line in lines if "None" in line]


@pytest.mark.parametrize("command", EVERY)
def test_every_option_is_in_the_whole_help_with_its_text(command, capsys, monkeypatch):
    told = " ".join(shown(capsys, monkeypatch, command, "--help-all").split())
    parser = parser_of(command)
    for action in parser._actions if parser._subparsers is None else ():
        assert [flag for flag in action.option_strings if flag not in told] == []
        words = parser._get_formatter()._expand_help(action)
        assert words.replace(" ", "").replace("-", "") in told.replace(" ", "").replace("-", "")


@pytest.mark.parametrize("command", EVERY)
def test_every_command_says_what_it_answers_and_what_each_argument_is(command):
    parser = parser_of(command)
    assert parser.description
    assert parser.description.endswith(".")
    named = [action for action in parser._actions if not isinstance(action, argparse._SubParsersAction)]
    assert [action.dest for action in named if not action.help] == []
    short = [action.help.partition("; ")[0] for action in named]  # what the short help says of it
    assert [words for words in short if words.count("(") != words.count(")")] == []
    assert parser.examples or parser._subparsers is not None


@pytest.mark.parametrize("command", EVERY)
def test_what_has_to_be_given_is_in_the_short_help(command):
    """No option that a command line needs is left to `--help-all`."""
    parser = parser_of(command)
    either = [a for group in parser._mutually_exclusive_groups if group.required for a in group._group_actions]
    needed = {a.dest for a in parser._actions if a.required and not getattr(a, "rare", False)}
    assert needed >= {a.dest for a in parser._actions if a.required}
    assert len([a for a in either if not getattr(a, "rare", False)]) == len(either)


@pytest.mark.parametrize("command", EVERY)
def test_examples_are_commands_that_are_understood(command):
    for example in parser_of(command).examples:
        for part in example.split(" | "):
            words = shlex.split(part)
            if words[0] == "torchrun":
                words = words[words.index("-m") + 1 :]
            if words[0] in PARSERS:
                PARSERS[words[0]]().parse_args(words[1:])


CHAIN = ("trace info", "trace make", "balance", "check", "simulate", "report", "trace-json", "catalog show", "diagnose")


def test_examples_work_when_typed_one_after_the_other(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for command in CHAIN:
        words = shlex.split(parser_of(f"odcsim {command}").examples[0])[1:]
        assert main([*words, *(("--minibatches", "4") if command == "balance" else ())]) == 0, words
        assert capsys.readouterr().out


def test_every_command_stands_behind_one_door(capsys, monkeypatch):
    told = shown(capsys, monkeypatch, "odcsim", "--help")
    names = [line.split()[0] for line in told.splitlines() if line.startswith("  ")]
    assert names == [name.replace("_", "-") for name in COMMANDS]
    assert [f"\n{door}:\n" in told for door in DOORS] == [True] * len(DOORS)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("compare x --modle y", "unknown flag --modle; did you mean --model?"),
        ("compare x --minibach=3", "unknown flag --minibach; did you mean --minibatch?"),
        ("trace info x --colum c --cutof 3 --jsn", "unknown flag --jsn; did you mean --json?"),
        ("catalog list --quite-other", "unknown flag --quite-other; for example: odcsim catalog list"),
        ("compre x", "argument COMMAND: invalid choice: 'compre'; did you mean 'compare'?"),
        ("balance x --balancer lbmini", "argument --balancer: invalid choice: 'lbmini'; did you mean 'lb-mini'?"),
    ],
)
def test_what_is_mistyped_is_one_line_with_what_was_meant(words, told, capsys):
    with pytest.raises(SystemExit) as end:
        main(words.split())
    assert end.value.code == 2
    [line] = capsys.readouterr().err.splitlines()
    assert told in line
    assert line.endswith("--help'")


def test_words_of_a_script_are_its_own():
    """`odc_engine verify --script train.py --lr 3` passes on what follows."""
    for flag in ("--script", "--scr"):
        words = ["verify", flag, "train.py", "--lr", "3"]
        assert odc_engine.cli.build_parser().parse_args(words).script == words[2:]

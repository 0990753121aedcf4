"""What every option and every help owes its reader, asked of all commands at once; words are in tests/approved."""

import argparse
import re
import shlex
import shutil
import subprocess

import pytest
from every_command import commands

import odc_engine.cli
import odcsim.cli
from odcsim.checking.plan_check import check
from odcsim.cli import COMMANDS, main
from odcsim.cli.completion import script
from odcsim.decide.fitted import fit
from odcsim.question import FIELDS, question_of
from odcsim.reading import load
from odcsim.show.explore.controls import READ, read_link
from odcsim.support.values import Given

LINES, WIDE = 40, 80
PARSERS = commands()
PROGRAMS = {"odcsim": odcsim.cli, "odc_engine": odc_engine.cli}
TOKENS = re.compile(r"\btokens?\b")  # what counts tokens says so in its help


def helped(command, flag, capsys):
    program, *words = command.split()
    with pytest.raises(SystemExit) as end:
        PROGRAMS[program].main([*words, flag])
    assert end.value.code == 0
    return capsys.readouterr().out


def test_help_is_one_screen_and_all_of_it_names_every_option(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(WIDE))
    for command in [*PROGRAMS, *PARSERS]:
        lines = helped(command, "--help", capsys).splitlines()
        assert len(lines) <= LINES, command
        assert max(map(len, lines)) <= WIDE, command
        assert lines[0].startswith(f"usage: {command}")
        assert "None" not in " ".join(lines), command
    for command, parser in PARSERS.items():
        assert (parser.description or "").endswith("."), command
        told = re.sub(r"[\s-]", "", helped(command, "--help-all", capsys))
        either = [a for group in parser._mutually_exclusive_groups if group.required for a in group._group_actions]
        for action in parser._actions:
            words, short = parser._get_formatter()._expand_help(action), (action.help or "").partition("; ")[0]
            assert all(re.sub(r"[\s-]", "", one) in told for one in (*action.option_strings, words)), (command, words)
            assert short, (command, action.dest)
            assert short.count("(") == short.count(")"), (command, action.dest)
            needed = action.required or action in either
            assert not (needed and getattr(action, "rare", False)), (command, action.dest)


def test_examples_are_understood():
    for command, parser in PARSERS.items():
        assert parser.examples, command
        for example in parser.examples:
            for part in example.split(" | "):
                words = shlex.split(part)
                words = words[words.index("-m") + 1 :] if words[0] == "torchrun" else words
                if words[0] in PROGRAMS:
                    PROGRAMS[words[0]].build_parser().parse_args(words[1:])
    for flag in ("--script", "--scr"):  # passes on what follows
        words = ["verify", flag, "train.py", "--lr", "3"]
        assert odc_engine.cli.build_parser().parse_args(words).script == words[2:]


CHAIN = ("trace info", "trace make", "balance", "check", "simulate", "report", "trace-json", "catalog show", "diagnose")


def test_examples_work_when_typed_one_after_the_other(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for command in CHAIN:
        words = shlex.split(PARSERS[f"odcsim {command}"].examples[0])[1:]
        assert main([*words, *(("--minibatches", "4") if command == "balance" else ())]) == 0, words
        assert capsys.readouterr().out


def completed(*words):
    """What bash offers for the last of these words."""
    line = " ".join(f"'{word}'" for word in words)
    ask = f'COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; _odcsim; echo "${{COMPREPLY[@]}}"'
    done = subprocess.run(["bash", "-c", f"{script()}\n{ask}"], capture_output=True, text=True, check=True)
    return done.stdout.split()


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
def test_a_shell_completes_what_the_parser_knows():
    assert set(completed("odcsim", "")) == {name.replace("_", "-") for name in COMMANDS}
    for words, offered in {
        "comp": "compare completion", "compare x --minibatch": "--minibatch --minibatches", "trace m": "make",
        "compare x --gpu mi3": "mi300x mi325x mi355x", "balance plan --pri": "",
        "balance plan --balancer lb-m": "lb-micro lb-mini",
    }.items():  # fmt: skip
        assert completed("odcsim", *words.split(" ")) == offered.split()


def test_of_tokens_8k_is_8192_and_of_all_else_8000():
    """A rate is written as logs write it: 11k tokens in a second are 11,000."""
    seen = set()
    for command, parser in PARSERS.items():
        for option in parser._actions:
            if not option.option_strings or option.type is None:
                continue
            try:
                [read] = value if isinstance(value := option.type("8k"), tuple) else [value]
            except (ValueError, argparse.ArgumentTypeError):
                continue  # no count: a time, a share, one of a few
            if isinstance(read, int | float):
                assert read == (8192 if TOKENS.search(option.help) else 8000), (command, option.option_strings)
                seen.add(option.option_strings[0])
    assert {"--truncate", "--drop-over", "--max-tokens", "--cutoff", "--minibatch", "--samples", "--prompts"} <= seen


TEXTS = {"8k": (8192, 8000), "0.5K": (512, 500), "2M": (2**21, 2 * 10**6), "3Ki": (3072, 3072), "65,536": (65536,) * 2}
COUNTS = [name for name, about in FIELDS.items() if about.type is int]


def test_a_flag_python_a_file_and_a_link_read_a_count_alike():
    for name in COUNTS:
        for text, (tokens, others) in TEXTS.items():
            count = tokens if name in ("truncate", "drop_over", "max_tokens") else others
            assert FIELDS[name].from_text(text) == count
            assert getattr(question_of({"trace": "longalign", name: text}), name) == count
            assert FIELDS[name].from_file(Given(name, text)) == count
            if name in READ:
                assert getattr(read_link(f"?{name}={text}"), name) == count
    assert load("fixed:length=9k,samples=2k", truncate="8k").lengths.tolist() == [8192] * 2000
    assert check([[[0], [1]]], max_tokens="2k").max_tokens == 2048
    run = {"trace": "sharegpt", "model": "tiny", "gpu": "a100", "devices": 2, "minibatches": 2}
    rates = [fit(**run, measured_tokens_per_second=rate).profile.factor for rate in ("8k", 8000)]
    assert rates[0] == rates[1]

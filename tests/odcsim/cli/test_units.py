"""Of tokens k is 1,024, of all else 1,000, wherever a number is typed: options, Python, files, links."""

import argparse
import re

import pytest

import odc_engine.cli
import odcsim.cli
from odcsim.checking.asking import check
from odcsim.decide.fitted import fit
from odcsim.decide.sweeps import keys
from odcsim.question import FIELDS, question_of
from odcsim.reading import load
from odcsim.show.explore.asked import READ
from odcsim.show.explore.heard import linked
from odcsim.support.checked import Given

# What counts tokens says so in its help. A rate is written as logs write it: 11k tokens in a second are 11,000.
TOKENS = re.compile(r"\btokens?\b")


def options_of(parser):
    """Every option that takes a value, of a command and of those below it."""
    for action in parser.filled()._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from options_of(below)
        elif action.option_strings and action.type is not None:
            yield parser.prog, action


EVERY = [(name, a) for cli in (odcsim.cli, odc_engine.cli) for name, a in options_of(cli.build_parser())]


@pytest.mark.parametrize(("command", "option"), EVERY, ids=[f"{c} {a.option_strings[0]}" for c, a in EVERY])
def test_every_option_reads_8k_as_what_it_counts(command, option):
    try:
        [read] = value if isinstance(value := option.type("8k"), tuple) else [value]
    except (ValueError, argparse.ArgumentTypeError):
        return  # no count: a time, a share, one of a few
    if isinstance(read, int | float):
        assert read == (8192 if TOKENS.search(option.help) else 8000), f"{command} {option.option_strings[0]}"


def test_both_kinds_are_among_them():
    names = {a.option_strings[0] for _, a in EVERY}
    assert {"--truncate", "--drop-over", "--max-tokens", "--cutoff"} <= names
    assert {"--minibatch", "--minibatches", "--global-batch", "--samples", "--sample", "--steps", "--prompts"} <= names
    assert {c for c, a in EVERY if a.option_strings[0] == "--max-tokens"} >= {"odcsim check", "odc_engine profile"}


TEXTS = {
    "8k": (8192, 8000),
    "0.5K": (512, 500),
    "2M": (2**21, 2 * 10**6),
    "3Ki": (3072, 3072),
    "65,536": (65536, 65536),
}
COUNTS = [name for name, about in FIELDS.items() if about.values.type is int]


@pytest.mark.parametrize("name", COUNTS)
def test_a_flag_python_a_file_and_a_link_agree(name):
    for text, (tokens, others) in TEXTS.items():
        count = tokens if name in ("truncate", "drop_over", "max_tokens") else others
        assert FIELDS[name].values.said(text) == count
        assert getattr(question_of({"trace": "longalign", name: text}), name) == count
        assert keys.read(name, Given(name, text)) == {name: count}
        if name in READ:
            assert getattr(linked(f"?{name}={text}"), name) == count


def test_functions_that_ask_no_question_agree():
    assert load("fixed:length=9k,samples=2k", truncate="8k").lengths.tolist() == [8192] * 2000
    assert check([[[0], [1]]], max_tokens="2k").max_tokens == 2048
    run = {"trace": "sharegpt", "model": "tiny", "gpu": "a100", "devices": 2, "minibatches": 2}
    rates = [fit(**run, measured_tokens_per_second=rate).profile.factor for rate in ("8k", 8000)]
    assert rates[0] == rates[1]


OF = "--model tiny --gpu a100 --devices 2"
ONE = f"{OF} --minibatch 1 --minibatches 1"
SHORT = "fixed:length=1k,samples=64"


@pytest.mark.parametrize(
    "words",
    [
        f"trace info {SHORT} --truncate 2k",
        f"compare {SHORT} {ONE} --drop-over 2k",
        f"compare {SHORT} {ONE} --max-tokens 2k",
        f"break-even {SHORT} {OF} --minibatch 1 --max-tokens 1k --drop-over 2k",
        f"rl {SHORT} {OF} --prompts 2 --rollouts 2 --steps 1 --max-tokens 1k --truncate 2k",
        f"fit --measured-tokens-per-second 8k --trace {SHORT} {ONE} --drop-over 2k -o PATH",
        f"balance {SHORT} {ONE} --max-tokens 1k --balancer native --drop-over 2k -o PATH",
        "check PLAN --max-tokens 2k",
    ],
)
def test_an_answer_prints_the_tokens_that_were_understood(words, tmp_path, capsys):
    (tmp_path / "plan.json").write_text("[[[0], [1]]]")
    places = {"PATH": tmp_path / "out", "PLAN": tmp_path / "plan.json"}
    assert odcsim.cli.main([str(places.get(word, word)) for word in words.split()]) == 0
    assert "2,048 tokens" in capsys.readouterr().out

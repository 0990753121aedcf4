"""What is written never takes the place of what is read, and what is quoted never steers the terminal."""

import argparse
import os

import pytest

from odcsim.cli import INPUTS, build_parser, main

SETTING = "--model r1-distill-qwen-1.5b --gpu a100 --devices 2 --minibatch 2".split()
OVER = {
    "balance": ["balance", "IN", *SETTING, "--balancer", "native", "-o", "IN"],
    "compare": ["compare", "IN", *SETTING, "--html", "IN"],
    "make": ["trace", "make", "IN", "-o", "IN"],
    "simulate": ["simulate", "IN", "--sync", "on-demand", "--gpu", "a100", "-o", "IN"],
    "fit": ["fit", "other.csv", "IN", "--lengths", "x.csv", "-o", "IN"],
    "lengths of traces": ["fit", "other.csv", "--lengths", "IN", "-o", "IN"],
    "validate": ["validate", "other.csv", "other.csv", "IN", "--html", "IN"],
    "report": ["report", "other.csv", "IN", "--html", "IN"],
    "trace-json": ["trace-json", "IN", "-o", "IN"],
    "a profile": ["compare", "other.csv", *SETTING, "--profile", "IN", "--html", "IN"],
    "a cluster": ["compare", "other.csv", *SETTING, "--cluster", "IN", "--html", "IN"],
}


@pytest.mark.parametrize("link", ["same", "./same", "symbolic", "hard"])
@pytest.mark.parametrize("argv", OVER.values(), ids=OVER)
def test_no_command_writes_over_what_it_reads(argv, link, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("in.html", "other.csv"):
        (tmp_path / name).write_text("length\n5\n6\n7\n8\n")
    output = {"same": "in.html", "./same": "./in.html"}.get(link, "link.html")
    if link in ("symbolic", "hard"):
        (os.symlink if link == "symbolic" else os.link)("in.html", "link.html")
    *start, last = argv
    assert last == "IN"
    assert main([*("in.html" if word == "IN" else word for word in start), output]) == 2
    assert capsys.readouterr().err == (
        f"odcsim: error: {output.removeprefix('./')}: is what this command reads; write to another file\n"
    )
    assert (tmp_path / "in.html").read_text() == "length\n5\n6\n7\n8\n"


def positionals(parser):
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                if getattr(command, "_fill", None):
                    command._fill(command)
                yield from positionals(command)
        elif not action.option_strings and not action.choices:  # one of a few words is no file
            yield action.dest


def test_every_argument_without_a_flag_is_known_as_an_input():
    assert set(positionals(build_parser())) <= set(INPUTS)


@pytest.mark.parametrize("name", ["a.pdf", "a.csv", "a.png"])
def test_a_page_is_named_as_one(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["compare", "longalign", *SETTING, "--html", name]) == 2
    assert f"{name}: is no name of a page; pages are HTML: name it FILE.html" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.csv", "\x1b[31mid,\x07text\n1,2\n"), ("a.csv", "length\n\x1b]0;title\x07\n"), ("a.json", '{"\\u009b2J": [1]}'),
     ("a.jsonl", '{"\\u202etxt": 1}\n')],
)  # fmt: skip
def test_what_a_file_holds_does_not_steer_the_terminal(name, content, tmp_path, capsys):
    (tmp_path / name).write_text(content)
    assert main(["trace", "info", str(tmp_path / name)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.isprintable()

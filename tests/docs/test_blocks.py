"""Blocks of code in pages: those that no test runs are at least commands and programs that are there.

`console` blocks are run by test_docs.py, and programs with a name by commands of their page or by a test that names
them. What is left is parsed: `sh` by the parsers of the commands, python by Python.
"""

import ast
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from textwrap import dedent

import pytest
from scripts import ROOT

import odc_engine.cli
import odcsim.cli

PAGES = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
FENCE = re.compile(r"^( *)```(\w*)(?: (\S+))?\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
LANGUAGES = {"console", "sh", "python", "text", "toml", "json", "jsonl", "csv", "sql"}
PARSERS = {"odcsim": odcsim.cli.build_parser, "odc_engine": odc_engine.cli.build_parser}
PYTHON = {"python", "pytest", "torchrun"}  # the program is among their words
# Not ours, or not here yet.
OTHERS = set("ssh pip source eval export echo head srun sbatch kubectl nvidia-cuda-mps-control gpu-kit/run".split())
OTHERS |= {path.relative_to(ROOT).as_posix() for path in (ROOT / "docs/launch").glob("*.sh")}
MADE = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
TESTS = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests/docs").glob("*.py"))


def name(page):
    return page.relative_to(ROOT).as_posix()


def blocks(page, language) -> list[tuple[str, str]]:
    """The name of a block's file, if it has one, and what is in it."""
    found = FENCE.findall(page.read_text(encoding="utf-8"))
    return [(file, dedent(body)) for _, kind, file, body in found if kind == language]


def having(language):
    return pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, language)], ids=name)


def commands(script: str) -> Iterator[list[str]]:
    """Each command of a block as its words, without what it is given of the environment and where its output goes."""
    for line in script.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|>")
        lexer.whitespace_split, lexer.commenters = True, "#"
        part: list[str] = []
        for word in [*lexer, ";"]:
            if word in (";", "&&", "||", "|"):
                if part:
                    yield part[: part.index(">")] if ">" in part else part
                part = []
            elif part or not re.match(r"\w+=", word):
                part.append(word)


def parsed(words: list[str]) -> str:
    """What is wrong with a command of ours. Of one that leaves something out (`...`) flags alone are looked at."""
    parser = PARSERS[words[0]]()
    if "..." not in words:
        try:
            parser.parse_args(words[1:])
        except SystemExit as refused:
            return "" if refused.code in (0, None) else " ".join(words)
        return ""
    [inner] = [action for action in parser._actions if isinstance(action.choices, dict)]
    known = inner.choices[words[1]]._option_string_actions
    return " ".join(word for word in words if word.startswith("--") and word not in known)


def wrong(words: list[str], page) -> str:
    ours = next((at for at, word in enumerate(words) if word in PARSERS), None)
    if ours is not None and words[0] in (*PARSERS, "torchrun", "srun"):
        return parsed(words[ours:])
    if words[0] == "make":
        return "" if words[1] in MADE else words[1]
    if words[0] in PYTHON:
        files = [word for word in words[1:] if word.endswith(".py")]
        named = {file for file, _ in blocks(page, "python")}
        return " ".join(file for file in files if file not in named and not (ROOT / file).exists())
    return "" if words[0] in OTHERS else words[0]


def test_a_script_is_split_into_its_commands():
    script = "make a && X=1 odcsim b c \\\n    --d 'e f'   # g\nodcsim h > i.json; pip j\n"
    assert list(commands(script)) == [
        ["make", "a"],
        ["odcsim", "b", "c", "--d", "e f"],
        ["odcsim", "h"],
        ["pip", "j"],
    ]


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("odcsim trace info a.csv", ""),
        ("odcsim trace info a.csv --no-such-flag", "odcsim trace info a.csv --no-such-flag"),
        ("odcsim balance longalign ... --no-such-flag -o s.jsonl", "--no-such-flag"),
        ("torchrun --no-python odc_engine run s.jsonl --no-such-flag", "odc_engine run s.jsonl --no-such-flag"),
        ("make nothing-of-this-name", "nothing-of-this-name"),
        ("python docs/studies/no_such.py", "docs/studies/no_such.py"),
        ("frobnicate", "frobnicate"),
    ],
)
def test_what_is_wrong_with_a_command_is_told(command, said, capsys):
    [words] = commands(command)
    assert wrong(words, ROOT / "README.md") == said
    capsys.readouterr()


def test_every_block_has_a_language_that_says_what_is_done_with_it():
    kinds = {(name(page), kind) for page in PAGES for _, kind, _, _ in FENCE.findall(page.read_text(encoding="utf-8"))}
    assert {pair for pair in kinds if pair[1] not in LANGUAGES} == set()


@having("sh")
def test_commands_that_are_not_run_are_ones_that_the_parsers_take(page, capsys):
    scripts = [script for _, script in blocks(page, "sh")]
    assert [said for script in scripts for words in commands(script) if (said := wrong(words, page))] == []
    capsys.readouterr()


@having("python")
def test_programs_are_run_by_their_page_or_by_a_test_and_fragments_are_python(page):
    typed = " ".join(script for kind in ("console", "sh") for _, script in blocks(page, kind))
    for file, program in blocks(page, "python"):
        ast.parse(program)
        assert not file or f"python {file}" in typed or file in TESTS, f"{file} is run by nobody"


@pytest.mark.parametrize("language", ["toml", "json", "jsonl", "csv"])
def test_every_file_that_a_page_shows_is_read_by_a_command_of_it(language):
    for page in [page for page in PAGES if page.name != "log.md"]:  # whose programs make up names
        typed = " ".join(script for _, script in blocks(page, "console"))
        programs = " ".join(program for _, program in blocks(page, "python"))
        assert [file for file, _ in blocks(page, language) if not file or file not in typed + programs] == []


@pytest.mark.slow
def test_the_program_of_the_readme_runs():
    [(_, program)] = blocks(ROOT / "README.md", "python")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert 1 < float(done.stdout) < 2

"""Rules on every page: what it links and names is there, its blocks of code are run or at least parsed, and it is not
long. Commands in `console` blocks are run by test_docs.py, programs with a name by their page or by a test.
"""

import ast
import re
import shlex
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from textwrap import dedent

import pytest
from public import missing, private
from scripts import ROOT
from sources import Files, Source, everything, pages, planted, programs

import odc_engine.cli
import odcsim.cli

HERE = "tests/docs/test_all_pages.py"
HISTORY = {"docs/log.md", "CHANGELOG.md"}  # names what was there then
WORDS = 2500  # ten minutes
LONGER = {"docs/log.md"}  # dated results, one entry for each: looked up, not read from beginning to end
DATA = {"toml", "json", "jsonl", "csv", "yaml"}
LANGUAGES = {"console", "sh", "python", "text", "sql", *DATA}
PARSERS = {"odcsim": odcsim.cli.build_parser, "odc_engine": odc_engine.cli.build_parser}
PYTHON = {"python", "pytest", "torchrun"}  # the program is among their words
# Not ours, or not here yet.
OTHERS = set("ssh pip source eval export echo head srun sbatch kubectl nvidia-cuda-mps-control gpu-kit/run".split())
OTHERS |= {path.relative_to(ROOT).as_posix() for path in (ROOT / "docs/launch").glob("*.sh")}
MADE = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


def read(files: Files) -> Files:
    """Pages that are read from their beginning."""
    return [page for page in pages(files) if page.name.startswith("docs/") or page.name == "README.md"]


def code(page: Source) -> list[tuple[int, str]]:
    """Its programs, and the line before each."""
    return [(line, dedent(body)) for line, language, _, body in page.blocks if language == "python"]


def typed(page: Source, *languages: str) -> str:
    return " ".join(body for _, language, _, body in page.blocks if language in languages)


def unknown_languages(files: Files) -> list[str]:
    """The language of a block says what is done with it."""
    return [page.at(line, kind) for page in pages(files) for line, kind, *_ in page.blocks if kind not in LANGUAGES]


def mistyped_commands(files: Files) -> list[str]:
    """Commands that are not run are ones that the parsers take."""
    blocks = [
        (page, line, dedent(body)) for page in pages(files) for line, kind, _, body in page.blocks if kind == "sh"
    ]
    said = [(page, line, wrong(words, page)) for page, line, body in blocks for words in commands(body)]
    return [page.at(line, what) for page, line, what in said if what]


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


def wrong(words: list[str], page: Source) -> str:
    ours = next((at for at, word in enumerate(words) if word in PARSERS), None)
    if ours is not None and words[0] in (*PARSERS, "torchrun", "srun"):
        return refused(words[ours:])
    if words[0] == "make":
        return "" if words[1] in MADE else words[1]
    if words[0] in PYTHON:
        named = {file for _, language, file, _ in page.blocks if language == "python"}
        scripts = [word for word in words[1:] if word.endswith(".py")]
        return " ".join(file for file in scripts if file not in named and not (ROOT / file).exists())
    return "" if words[0] in OTHERS else words[0]


def refused(words: list[str]) -> str:
    """What is wrong with a command of ours. Of one that leaves something out (`...`) flags alone are looked at."""
    parser = PARSERS[words[0]]()
    if "..." not in words:
        try:
            parser.parse_args(words[1:])
        except SystemExit as end:
            return "" if end.code in (0, None) else " ".join(words)
        return ""
    [inner] = [action for action in parser._actions if isinstance(action.choices, dict)]
    known = inner.choices[words[1]]._option_string_actions
    return " ".join(word for word in words if word.startswith("--") and word not in known)


def programs_that_nobody_runs(files: Files) -> list[str]:
    """Those with a name; fragments are Python at least."""
    tests = "\n".join(one.text for one in programs(everything(), "tests/docs") if one.name != HERE)
    found = []
    blocks = [(page, *block) for page in pages(files) for block in page.blocks if block[1] == "python"]
    for page, line, _, file, body in blocks:
        if file and f"python {file}" not in typed(page, "console", "sh") and file not in tests:
            found.append(page.at(line, f"{file} is run by nobody"))
        try:
            ast.parse(dedent(body))
        except SyntaxError as error:
            found.append(page.at(line + (error.lineno or 0), str(error)))
    return found


def files_that_nobody_reads(files: Files) -> list[str]:
    """A file that a page shows is read by a command of it; programs of the log make up names."""
    some = [page for page in pages(files) if page.name != "docs/log.md"]
    shown = [(page, *block) for page in some for block in page.blocks if block[1] in DATA]
    unread = [each for each in shown if not each[3] or each[3] not in typed(each[0], "console", "python")]
    return [page.at(line, f"{file or language} is read by nobody") for page, line, language, file, _ in unread]


def private_names(files: Files) -> list[str]:
    """Whoever copies from a page or a notebook copies what stays; the log records experiments on what is inside."""
    some = [page for page in read(files) if page.name != "docs/log.md"]
    found = [page.at(line + n, name) for page in some for line, body in code(page) for n, name in private(body)]
    return found + [one.at(*each) for one in programs(files, "notebooks") for each in private(one.tree)]


def missing_names(files: Files) -> list[str]:
    """Also what a benchmark or a study asks for only when it is run in full, and what the log takes from inside."""
    found = [page.at(line + n, name) for page in pages(files) for line, body in code(page) for n, name in missing(body)]
    others = programs(files, "docs/studies", "tests/benchmarks", "traces", "notebooks")
    return found + [one.at(*each) for one in others for each in missing(one.tree)]


def dead_links(files: Files) -> list[str]:
    found = []
    for page in pages(files):
        for match in re.finditer(r"\]\((?!https?://)([^)\s]+)\)", page.text):
            path, _, anchor = match[1].partition("#")
            target = (ROOT / page.name).parent / path if path else ROOT / page.name
            if (path and not target.exists()) or (anchor and anchor not in headings(target.read_text("utf-8"))):
                found.append(page.at(page.line(match.start()), match[1]))
    return found


@cache
def headings(page: str) -> set[str]:
    """Anchors as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", page, flags=re.MULTILINE | re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def missing_tests(files: Files) -> list[str]:
    """A test that a page names, `tests/a/test_b.py::test_c`, or a file of tests."""
    tests = programs(everything(), "tests")
    known = {f"{one.name}::{node.name}" for one in tests for node in one.every(ast.FunctionDef)}
    return missing_of(files, r"`(tests/[\w/.]+|tests/[\w/]+\.py::test_\w+)`", known)


def missing_modules(files: Files) -> list[str]:
    return missing_of(files, r"`(odcsim/[\w/]+(?:\.\w+)?)`")


def missing_of(files: Files, names: str, known: set[str] | frozenset[str] = frozenset()) -> list[str]:
    """Names that are no files here, nor known."""
    some = [page for page in pages(files) if page.name not in HISTORY]
    found = [(page, match) for page in some for match in re.finditer(names, page.text)]
    gone = [(page, match) for page, match in found if match[1] not in known and not (ROOT / match[1]).exists()]
    return [page.at(page.line(match.start()), match[1]) for page, match in gone]


DROPPED = (  # from words to read: code, tables, comments and pictures; of a link, its address
    re.compile(r"^(`{3,}|~{3,}).*?^\1[`~]*\s*?$|^ +(`{3,}).*?^ +\2\s*?$", re.MULTILINE | re.DOTALL),
    re.compile(r"<!--.*?-->", re.DOTALL),
    re.compile(r"^\|.*$", re.MULTILINE),
    re.compile(r"!\[[^\]]*\]\([^)]*\)"),
)


def words(text: str) -> int:
    for pattern in DROPPED:
        text = pattern.sub("", text)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    return len([word for word in text.split() if any(map(str.isalnum, word))])


def long_pages(files: Files) -> list[str]:
    """Exceptions are: a page that was shortened is held to the limit from then on."""
    counts = [(page, words(page.text)) for page in read(files)]
    found = [page.at(1, f"{count} words") for page, count in counts if (count > WORDS) != (page.name in LONGER)]
    lines = ((page, page.text.count("\n")) for page in pages(files, "docs/howto"))
    return [*found, *(page.at(1, f"a recipe of {count} lines") for page, count in lines if count >= 200)]


def pages_without_an_answer(files: Files) -> list[str]:
    """A page begins with a title and a paragraph that says what it answers."""
    found = []
    for page in read(files):
        text = re.sub(r"<!--.*?-->", "", page.text, flags=re.DOTALL)
        title, _, body = text.strip().partition("\n")
        if not title.startswith("# ") or re.match(r"```|~~~|\||[-*+] |\d+\. |!\[|<|#", body.strip()):
            found.append(page.at(1, f"{title}, {body.strip().splitlines()[0]}"))
    return found


def pages_without_an_index(files: Files) -> list[str]:
    """An index links every page of its folder, by the title that the page has where it lists nothing else."""
    every = {page.name: page for page in pages(files, "docs")}
    found = []
    for name, page in every.items():
        folder, _, own = name.rpartition("/")
        above = folder if own != "index.md" else folder.rpartition("/")[0]
        index = every.get(f"{above}/index.md")
        if above and not (index and f"]({name.removeprefix(above + '/')})" in index.text):
            found.append(page.at(1, f"no link in {above}/index.md"))
        for title, link in re.findall(r"^- \[(.*)\]\((\S+)\)", page.text, re.MULTILINE) if own == "index.md" else ():
            linked = every.get(f"{folder}/{link}")
            if folder != "docs" and not (linked and linked.text.startswith(f"# {title}\n")):
                found.append(page.at(1, f"{link} is not called {title}"))
    return found


def page(text: str) -> dict[str, str]:
    return {"docs/a.md": text}


SH = """# A page

```sh
make a && X=1 odcsim trace info b.csv \\
    --no-such-flag  # c
odcsim trace info a.csv > i.json; frobnicate
odcsim balance longalign ... --such -o s.jsonl
torchrun --no-python odc_engine run s.jsonl --such
python docs/studies/no_such.py
```
"""
SAID = ("a", "odcsim trace info b.csv --no-such-flag", "frobnicate", "--such", "odc_engine run s.jsonl --such")
STARTS = ("```", "| a |", "- a", "1. a", "![a](b)", "## a")
CODE = "# A page\n\n```python {}\n{}\n```\n"
LINKS = "[a](b.md)\n[c](d.md#e) [f](index.md#g) [h](https://i.j/#k)"
LONG = {"docs/a.md": "# A\n\n" + "five words [here](a.md) ![no](a.png) <!-- no --> are read\n" * 501}
LONG |= {"docs/howto/b.md": "# B\n" + "| no |\n" * 199}
UNLISTED = {"docs/b/c.md": "# C\n", "docs/b/index.md": "# B\n\n- [D](c.md)\n", "docs/a.md": "", "docs/index.md": ""}
TESTS = "`tests/docs/test_docs.py::test_none`\n\n`tests/a.py`, `tests/docs`"
STARTING = {f"docs/{n}.md": f"# a\n\n{start}\n\nb" for n, start in enumerate(STARTS)}
NO_LINK, NOT_CALLED = "no link in docs/index.md", "docs/b/index.md:1: c.md is not called D"
GONE = page(CODE.format("a.py", "from odcsim import b")) | {"traces/c.py": "\nimport odcsim.d"}
RULES = {  # each with pages that break it, and what is said of them
    unknown_languages: (page("\n```\na\n```\n"), ["docs/a.md:2: "]),
    mistyped_commands: (page(SH), [f"docs/a.md:3: {said}" for said in (*SAID, "docs/studies/no_such.py")]),
    programs_that_nobody_runs: (page(CODE.format("no_such.py", "1")), ["docs/a.md:3: no_such.py is run by nobody"]),
    files_that_nobody_reads: (page("\n```toml a.toml\n```\n"), ["docs/a.md:2: a.toml is read by nobody"]),
    private_names: (page(CODE.format("a.py", "import odcsim.cost")), ["docs/a.md:4: odcsim.cost"]),
    missing_names: (GONE, ["docs/a.md:4: odcsim.b", "traces/c.py:2: odcsim.d"]),
    dead_links: (page(LINKS), ["docs/a.md:1: b.md", "docs/a.md:2: d.md#e", "docs/a.md:2: index.md#g"]),
    missing_tests: (page(TESTS), ["docs/a.md:1: tests/docs/test_docs.py::test_none", "docs/a.md:3: tests/a.py"]),
    missing_modules: (page("`odcsim/cost.py`, `odcsim/no.py`"), ["docs/a.md:1: odcsim/no.py"]),
    long_pages: (LONG, ["docs/a.md:1: 2506 words", "docs/howto/b.md:1: a recipe of 200 lines"]),
    pages_without_an_answer: (STARTING, [f"docs/{n}.md:1: # a, {start}" for n, start in enumerate(STARTS)]),
    pages_without_an_index: (UNLISTED, [f"docs/b/index.md:1: {NO_LINK}", NOT_CALLED, f"docs/a.md:1: {NO_LINK}"]),
}


@pytest.mark.parametrize("rule", RULES)
def test_it_sees_what_breaks_it_and_nothing_does(rule, capsys):
    if rule in (private_names, missing_names) and not (find_spec("torch") and find_spec("triton")):
        pytest.skip("names are looked up in the engine, which needs torch and triton")
    files, said = RULES[rule]
    assert rule(planted(files)) == said
    assert (broken := rule(everything())) == [], "\n".join(broken)
    capsys.readouterr()

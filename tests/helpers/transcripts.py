"""Approved texts: files of commands, each with what it printed when somebody last read it and approved.

    python tests/helpers/transcripts.py [NAME ...]    run the commands and write what they print now; read it as a diff

A line `$ COMMAND` runs a command in a folder that has a copy of tests/approved/files; what stands between it and the
next is what it printed, and `[2]` how it ended where that was not 0. Commands of the project run in this process, and
what comes behind a ` | ` in a shell; `page FILE` prints the words of an HTML page; `NAME='...'` names words for later
`$NAME`; all others are the shell's. A line `>>> CODE` is Python's. Lines that begin with `## ` are the reader's.
"""

import ast
import contextlib
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from unittest.mock import patch

import every_command

FOLDER = Path(__file__).parents[1] / "approved"
SURROUNDINGS = {"COLUMNS": "80", "NO_COLOR": "1", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
ASKED = ("$ ", ">>> ", "... ", "## ")


def renewed(transcript: str) -> str:
    """The transcript with what its commands print now."""
    names: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder, patch.dict(os.environ, SURROUNDINGS):
        shutil.copytree(FOLDER / "files", folder, dirs_exist_ok=True)
        with contextlib.chdir(folder):
            parts = [f"{asked}\n{printed(asked, names)}" for asked in _asked(transcript)]
    return "".join(parts).replace(folder, "FOLDER")


def _asked(transcript: str) -> Iterator[str]:
    """Commands, and the reader's lines with the empty one before them."""
    lines = transcript.splitlines()
    for number, line in enumerate(lines):
        if line.startswith(ASKED):
            if line.startswith("## ") and number and not lines[number - 1].startswith("## "):
                line = f"\n{line}"
            more = lines[number + 1 :] if line.startswith((">>> ", "$ ")) else []
            for further in more:
                if not further.startswith("... "):
                    break
                line += f"\n{further}"
            if not line.startswith("... "):
                yield line


def printed(asked: str, names: dict[str, Any]) -> str:
    text = asked.lstrip("\n")
    if text.startswith("## "):
        return ""
    body = "\n".join(line.split(" ", 1)[1] for line in text.splitlines())
    said, code = _python(body, names) if text.startswith(">>> ") else _command(body)
    lines = re.sub(r"(\d\.\d{6})\d{4,}", r"\1", said.expandtabs()).splitlines()  # digits that all machines share
    return "".join(f"{line.rstrip()}\n" for line in [*lines, *([f"[{code}]"] if code else [])])


def _python(code: str, names: dict[str, Any]) -> tuple[str, int]:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        try:
            *before, last = ast.parse(code).body
            exec(compile(ast.Module(before, []), "<transcript>", "exec"), names)
            if isinstance(last, ast.Expr):
                value = eval(compile(ast.Expression(last.value), "<transcript>", "eval"), names)
                print(*[] if value is None else [repr(value)], sep="")
            else:
                exec(compile(ast.Module([last], []), "<transcript>", "exec"), names)
        except (ImportError, NameError):  # of the transcript, which is to be mended and not approved
            raise
        except Exception as error:
            print(f"{type(error).__name__}: {error}")
    return out.getvalue().rstrip("\n"), 0


def _command(line: str) -> tuple[str, int]:
    line = os.path.expandvars(line)
    first, _, rest = line.partition(" | ")
    words = shlex.split(first)
    if (name := re.fullmatch(r"([A-Z]+)=(.*)", words[0], re.DOTALL)) is not None:
        os.environ[name[1]], said, code, rest = name[2], "", 0, ""
    elif words[0] == "page":
        page = Path(words[1])
        said, code = (words_of(page.read_text(encoding="utf-8")), 0) if page.exists() else (f"no {page}", 1)
    elif words[0] in ("odcsim", "odc_engine"):
        said, code = _ours(words)
    else:
        rest, said, code = line, "", 0
    if rest:
        done = subprocess.run(["sh", "-c", rest], input=said, capture_output=True, text=True, check=False)
        said, code = done.stdout + done.stderr, done.returncode or code
    return said, code


def _ours(words: list[str]) -> tuple[str, int]:
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out), patch.object(sys, "argv", words):
        code = every_command.main(words)
    return out.buffer.getvalue().decode(), code  # type: ignore[attr-defined]


class _Words(HTMLParser):
    """What a reader of a page sees: a line for each piece of text, and none of scripts and styles."""

    def __init__(self) -> None:
        super().__init__()
        self.lines, self.line, self.hidden = list[str](), "", 0

    def handle_starttag(self, tag: str, _attrs: Any) -> None:
        self.hidden += tag in ("script", "style")
        if tag in BLOCKS:
            self.end()

    def handle_endtag(self, tag: str) -> None:
        self.hidden -= tag in ("script", "style")
        if tag in BLOCKS:
            self.end()

    def handle_data(self, data: str) -> None:
        self.line += "" if self.hidden else re.sub(r"\s+", " ", data)

    def end(self) -> None:
        self.lines += [self.line.strip()] if self.line.strip() else []
        self.line = ""


BLOCKS = set("p div h1 h2 h3 h4 li tr table section header footer summary details title option label text".split())


def words_of(page: str) -> str:
    reader = _Words()
    reader.feed(page)
    reader.end()
    return "\n".join(reader.lines)


def main(names: list[str]) -> None:
    for path in sorted(FOLDER.glob("*.txt")):
        if not names or path.stem in names:
            before = path.read_text(encoding="utf-8")
            after = renewed(before)
            print(f"{path.stem}: {'as it was' if after == before else 'changed'}", flush=True)
            path.write_text(after, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])

"""Run the commands that the pages show and put what they print beneath them.

    python docs/studies/refresh.py [PAGE ...]      (default: the README and every page under docs)

A page is one session, top to bottom, in an empty folder of its own. Two kinds of blocks take part in it:

- `console`: a line that starts with `$ ` is a command (a backslash continues it), the lines up to the next are what it
  prints. In those lines `...` stands for any text, and alone on a line for any number of lines.
- a language with a name behind it (`toml cluster.toml`): a file of that name, written into the folder.

Output that a page already shows rightly, wildcards included, stays as it is. tests/docs/test_docs.py runs the same
check.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

DOCS = Path(__file__).parents[1]
ANY = "..."
_FENCE = re.compile(r"^```(\w+)(?: (\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Shown:
    """One command of a page and the output printed there; `start` and `end` are the output's place in the text."""

    command: str
    output: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class File:
    """A file that the page tells its reader to write."""

    name: str
    content: str


def parse(text: str) -> Iterator[Shown | File]:
    """The commands and files of a page, in order."""
    for block in _FENCE.finditer(text):
        language, name, body = block.groups()
        if language == "console":
            yield from _commands(body, block.start(3))
        elif name:
            yield File(name, body)


def _commands(body: str, at: int) -> Iterator[Shown]:
    found: list[Shown] = []
    for line in body.splitlines(keepends=True):
        at += len(line)
        if found and not found[-1].output and found[-1].command.endswith("\\\n"):
            found[-1] = Shown(found[-1].command + line, "", at, at)
        elif line.startswith("$ "):
            found.append(Shown(line[2:], "", at, at))
        elif found:
            found[-1] = replace(found[-1], output=found[-1].output + line, end=at)
    yield from found


def run(command: str, folder: Path) -> str:
    """What a command prints on both streams, without spaces at line ends; failing is an error."""
    known = ("PATH", "HOME", "LANG", "TMPDIR", "SYSTEMROOT")
    env = {name: os.environ[name] for name in known if name in os.environ}
    env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{env.get('PATH', '')}"
    env |= {"PYTHONUTF8": "1", "PYTHONWARNINGS": "error"}
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command}"],
        cwd=folder, env=env, text=True, encoding="utf-8", stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"exit status {done.returncode} of: {command}{done.stdout}")
    return tidy(done.stdout)


def tidy(output: str) -> str:
    """No spaces at line ends and no empty lines around: a page keeps neither."""
    lines = [line.rstrip() for line in output.splitlines()]
    text = "\n".join(lines).strip("\n")
    return text + "\n" if text else ""


def matches(shown: str, printed: str) -> bool:
    """Whether the page tells the truth about what was printed."""
    pattern = ""
    for line in tidy(shown).splitlines():
        if line.strip() == ANY:
            pattern += r"(?:.*\n)*?"
        else:
            pattern += ".*?".join(map(re.escape, line.split(ANY))) + r"\n"
    return re.fullmatch(pattern, printed) is not None


def session(text: str) -> Iterator[tuple[Shown, str]]:
    """Every command of a page with what it prints."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part in parse(text):
            if isinstance(part, File):
                (folder / part.name).write_text(part.content, encoding="utf-8")
            else:
                yield part, run(part.command, folder)


def abridged(shown: str, printed: str) -> str:
    """What is printed, as short as the page had it: without lines that it left out, and with wildcards in those that it
    shortened. Spaces of columns and the length of rules are nobody's words."""

    def plain(line: str) -> str:
        return re.sub(r"[─-]{4,}", "----", " ".join(line.split()))

    kept = [line for line in tidy(shown).splitlines() if line.strip() != ANY]
    patterns = [(line, ".*?".join(map(re.escape, plain(line).split(ANY)))) for line in kept]
    whole = len(kept) == len(tidy(shown).splitlines())
    lines: list[str] = []
    for line in printed.splitlines():
        known = next((old for old, pattern in patterns if re.fullmatch(pattern, plain(line))), None)
        if not line and lines[-1:] == [ANY]:
            continue
        if known is not None or whole:
            lines.append(known if known is not None and ANY in known else line)
        elif lines[-1:] != [ANY]:
            lines.append(ANY)
    short = "\n".join(lines) + "\n"
    return short if ANY in shown and matches(short, printed) else printed


def refreshed(text: str) -> str:
    """The page with every output that no longer holds replaced by what the command prints now."""
    results = [(shown, printed) for shown, printed in session(text) if not matches(shown.output, printed)]
    for shown, printed in reversed(results):
        text = text[: shown.start] + abridged(shown.output, printed) + text[shown.end :]
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("pages", nargs="*", type=Path, metavar="PAGE", help="default: the README and every page")
    for page in parser.parse_args().pages or [*sorted(DOCS.rglob("*.md")), DOCS.parent / "README.md"]:
        before = page.read_text(encoding="utf-8")
        after = refreshed(before)
        if after != before:
            page.write_text(after, encoding="utf-8")
        print(f"{page.name}: {'rewritten' if after != before else 'holds'}")


if __name__ == "__main__":
    main()

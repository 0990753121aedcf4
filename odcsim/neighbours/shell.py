"""Scripts that start a run, read without running anything: variables and arrays put in, and the words of the command
that starts the trainer."""

import ast
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import takewhile

from odcsim.errors import InputError

ARRAY = re.compile(r"^[ \t]*(\w+)(\+?)=\(([^()]*(?:\([^()]*\)[^()]*)*)\)", re.MULTILINE)
SCALAR = re.compile(
    r"^[ \t]*(?:export[ \t]+|local[ \t]+|declare[ \t]+(?:-\w+[ \t]+)?)?(\w+)="
    r"(\"[^\"\n]*\"|'[^'\n]*'|\$\(\([^\n]*?\)\)|[^\s;&|()]*)",
    re.MULTILINE,
)
SUM = re.compile(r"\$\(\(([^()]*(?:\([^()]*\)[^()]*)*)\)\)")
USE = re.compile(r"\$\{(\w+)(?:\[[@*]\])?(?::?[-=]([^{}]*))?\}|\$(\w+)")
QUOTED = re.compile(r'"\$\{(\w+)\[[@*]\]\}"')  # each word of an array by itself
ROUNDS = 8  # variables in variables
JOINED = re.compile(r"[ \t]*\\[ \t]*\n[ \t]*")
OVERRIDE = re.compile(r"[+~]{0,2}[\w.@/]+=")  # of hydra
SUBCOMMAND = re.compile(r"[a-z][a-z-]+:[a-z]+")  # of tyro
STOPS = re.compile(r"\|\|?&?$|&&?$|;$|&?\d*>")  # of a command's own words: a pipe, a file, or another command
NUMBERS = (ast.Expression, ast.BinOp, ast.UnaryOp, ast.Constant, ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Div,
           ast.Mod, ast.USub)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Command:
    """Words behind a program, and those before it: its launcher's."""

    program: str
    before: tuple[str, ...]
    after: tuple[str, ...]


def commands(text: str, where: str) -> Iterator[list[str]]:
    """The words of every line that is a command."""
    whole = JOINED.sub(" ", "\n".join(_uncommented(line) for line in text.splitlines()))
    arrays: dict[str, str] = {}
    for name, more, body in ARRAY.findall(whole):
        lines = [re.sub(r"(?:^|\s)#.*$", "", line) for line in body.split("\n")]
        arrays[name] = (f"{arrays.get(name, '')} " if more else "") + " ".join(lines)
    rest = ARRAY.sub("", whole)
    names: dict[str, str] = {}
    for name, value in SCALAR.findall(rest):  # one after the other, as a shell does: A=${A:-1} has its old value in it
        names[name] = value.strip("'") if value.startswith("'") else fill(value.strip('"'), names | arrays)
    names |= arrays
    for line in rest.splitlines():
        filled = fill(line, names)
        if filled.strip():
            try:
                words = shlex.split(filled, comments=True)
            except ValueError as error:
                raise InputError(f"cannot be read as a command ({error})", where=where, fix="see its quotes") from None
            yield words


def _uncommented(line: str) -> str:
    """Without a comment that is a line, or that stands behind a line that goes on."""
    return "" if line.lstrip().startswith("#") else re.sub(r"\\[ \t]+#.*$", r"\\", line)


def fill(text: str, names: Mapping[str, str]) -> str:
    """With every variable that the script sets; others are left out, as a shell does with what is not set."""
    text = QUOTED.sub(lambda m: names.get(m[1], ""), text)
    for _ in range(ROUNDS):
        before = text
        text = USE.sub(lambda m: names.get(m[1] or m[3], m[2] if m[2] is not None else ""), text)
        text = SUM.sub(lambda m: _sum(m[1], names), text)
        if text == before:
            break
    return text


def _sum(text: str, names: Mapping[str, str]) -> str:
    """Arithmetic of a shell; what is none stays as it is."""
    words = re.sub(r"\b[A-Za-z_]\w*\b", lambda m: names.get(m[0], "0"), text)
    try:
        tree = ast.parse(words.strip().replace("/", "//"), mode="eval")
        if len(words) > 200 or not all(isinstance(node, NUMBERS) for node in ast.walk(tree)):
            return text
        return str(eval(compile(tree, "", "eval"), {"__builtins__": {}}))
    except (SyntaxError, ZeroDivisionError, TypeError, ValueError):
        return text


def find(text: str, where: str, programs: Mapping[str, str]) -> Command | None:
    """The first command that starts one of these programs, which are words or several in a row."""
    for words in commands(text, where):
        for program in programs:
            wanted = program.split()
            for at in range(len(words) - len(wanted) + 1):
                first, *others = words[at : at + len(wanted)]
                if _ends(first, wanted[0]) and others == wanted[1:]:
                    after = takewhile(lambda word: not STOPS.match(word), words[at + len(wanted) :])
                    return Command(program, tuple(words[:at]), tuple(after))
    return None


def _ends(word: str, program: str) -> bool:
    return word == program or word.endswith(f"/{program}")


def flags_of(words: tuple[str, ...]) -> tuple[dict[str, str | None], list[str]]:
    """Flags with their values, of which one may have none or several; and words that are of no flag."""
    found: dict[str, str | None] = {}
    others: list[str] = []
    name = ""
    for word in words:
        if (word.startswith("--") and len(word) > 2) or (word.startswith("-") and len(word) == 2 and word[1].isalpha()):
            name, equals, value = word.partition("=")
            found[name] = value if equals else None
            name = "" if equals else name
        elif OVERRIDE.match(word) and (not name or found[name] is not None or "." in word.partition("=")[0]):
            key, _, value = word.partition("=")
            found[key] = value
        elif SUBCOMMAND.fullmatch(word):
            others.append(word)
        elif name:
            before = found[name]
            found[name] = word if before is None else f"{before} {word}"
        else:
            others.append(word)
    return found, others

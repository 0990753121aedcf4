"""Where a command may write: over and into nothing that it reads, and over no other kind of file unasked.

Asked before the work whose result it would be.
"""

import os
import re
from argparse import Namespace
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from odcsim.errors import InputError
from odcsim.support.files import check_apart, check_writable

# What arguments that may name a file or a folder to read are called, in any command: lengths, and all else.
DATA = ("trace", "source", "sources", "lengths", "plan")
INPUTS = (
    *DATA,
    *"schedule timeline timelines predicted measured name model gpu profile cluster tokenizer rows grid".split(),
    "recipe_file",
)
OUTPUTS = ("output", "html", "steps", "svg")
# What goes there, where it is no matter of the command.
_WRITTEN = {"html": "page", "steps": "table", "svg": "picture"}
# Endings of what is written, the usual one first. Others that are not known are somebody's own; a pipe has none.
_ENDINGS = {
    "page": (".html", ".htm"),
    "picture": (".svg",),
    "table": (".csv", ".tsv", ".txt"),
    "archive": (".npz",),
    "schedule": (".jsonl", ".json"),
    "profile": (".json",),
    "JSON": (".json",),
    "events": (".json", ".gz"),
}
_KNOWN = {
    *(ending for endings in _ENDINGS.values() for ending in endings),
    *".npy .parquet .arrow .idx .zip .toml .yaml .yml .md .py .xml .pdf .png .jpg .jpeg".split(),
}
_NAMED = {"archive": "a timeline", "events": "trace events", "JSON": "JSON"}
# Kinds of files by how they begin. What is none of them is text, or somebody's own.
_BEGINS = {
    "page": re.compile(rb"\s*<(!doctype )?html", re.IGNORECASE),
    "archive": re.compile(rb"PK\x03\x04"),
    "array": re.compile(rb"\x93NUMPY"),
    "Parquet": re.compile(rb"PAR1"),
    "gzip": re.compile(rb"\x1f\x8b"),
    "schedule": re.compile(rb'\s*\{\s*"format": "odcsim schedule"'),
    "profile": re.compile(rb'\s*\{\s*"format": "odcsim profile"'),
    "JSON": re.compile(rb"\s*[\[{]"),
}
_BY_SUFFIX = {".npy": "array", ".parquet": "Parquet", ".gz": "gzip", ".json": "JSON", ".jsonl": "JSON"}


def check_outputs(args: Namespace) -> None:
    """`args.writes` is the kind of what goes to `args.output`; where it is not said, the name's suffix says it."""
    _check_named(args)
    read = [path for name in INPUTS for path in _listed(getattr(args, name, None))]
    data = [path for name in DATA for path in _listed(getattr(args, name, None))]
    written: list[str] = []
    for name in OUTPUTS:
        if isinstance(text := getattr(args, name, None), str):  # --steps of `rl` is a number
            path, kind = Path(text), _WRITTEN.get(name) or str(getattr(args, "writes", ""))
            check_writable(path)
            check_apart(path, read)
            _check_twice(path, written)
            _check_outside(path, data)
            _check_ending(path, kind)
            _check_kind(path, kind if kind in _BEGINS else _BY_SUFFIX.get(path.suffix, "text"), args)
            written.append(text)


def _check_named(args: Namespace) -> None:
    """An empty name would be the folder that somebody is in."""
    for name in (*INPUTS, *OUTPUTS, "against", "per_device"):
        value = getattr(args, name, None)
        if "" in (value if isinstance(value, list) else [value]):
            raise InputError(f"the name for {name.replace('_', ' ')} is empty", fix="give one")


def _check_twice(path: Path, written: Iterable[str]) -> None:
    """Of two outputs in one place the first would be lost, whatever links lead there."""
    for name in written:
        if _is_same(path, Path(name)) and not path.is_char_device():  # which keeps nothing
            raise InputError(f"is written to twice, as {name}, too", where=str(path), fix="name two files")


def _is_same(path: Path, other: Path) -> bool:
    """Files that are not there yet are the same where their names lead to one place."""
    if path.exists() and other.exists():
        return path.samefile(other)
    return os.path.realpath(path) == os.path.realpath(other)


def _check_ending(path: Path, kind: str) -> None:
    """A name that says another kind of file would be opened as what it is not."""
    suffix, own = path.suffix.lower(), _ENDINGS.get(kind, ())
    if not own or suffix in own or (suffix not in _KNOWN and (kind != "page" or not suffix)):
        return
    problem = "is no name of a page" if kind == "page" else f"is no name for {_NAMED.get(kind, f'a {kind}')}"
    fix = "pages are HTML: name it FILE.html" if kind == "page" else f"name it FILE{own[0]}"
    raise InputError(problem, where=str(path), fix=fix)


def _check_outside(path: Path, folders: Iterable[str]) -> None:
    """A dataset is all that lies in its folder: what is written there would be read the next time."""
    for name in folders:
        with suppress(OSError, ValueError):
            if Path(name).is_dir() and path.resolve().is_relative_to(Path(name).resolve()):
                raise InputError(f"is inside {name}, which this command reads", where=str(path), fix="write elsewhere")


def _check_kind(path: Path, kind: str, args: Namespace) -> None:
    """Where a command has a flag for it, somebody may want it all the same."""
    force = getattr(args, "force", None)
    if force or not path.is_file():
        return
    try:
        with path.open("rb") as file:
            head = file.read(512)
    except OSError:
        return  # whether it may be replaced is its folder's to say
    if head and (found := kind_of(head)) != kind:
        fix = "name another file" if force is None else "name another file, or give --force"
        raise InputError(f"is there, and is no {kind} but {found}", where=str(path), fix=fix)


def kind_of(head: bytes) -> str:
    """Of a file that begins so."""
    return next((kind for kind, begin in _BEGINS.items() if begin.match(head)), "text" if _is_text(head) else "data")


def _is_text(head: bytes) -> bool:
    return b"\x00" not in head


def _listed(value: str | list[str] | None) -> list[str]:
    return value if isinstance(value, list) else [value] if value else []

"""Where a command may write: over and into nothing that it reads, and over nothing but what odcsim wrote unasked.

Asked before the work whose result it would be.
"""

import os
import re
import zlib
from argparse import Namespace
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from odcsim.errors import InputError
from odcsim.support.files import check_apart, check_new_folder, check_writable

# What arguments that may name a file or a folder to read are called, in any command: lengths, and all else.
DATA = ("trace", "source", "sources", "lengths", "plan")
INPUTS = (
    *DATA,
    *"schedule timeline timelines predicted measured name model gpu profile cluster tokenizer rows grid".split(),
    *("gpus", "recipe_file"),
)
OUTPUTS = ("output", "html", "steps", "svg", "per_device")


@dataclass(frozen=True, slots=True)
class OutputKind:
    """What a command writes. `begins`: how all that odcsim has written of it begins, and nothing of somebody else's;
    lengths say nothing of who wrote them."""

    named: str
    endings: tuple[str, ...] = ()  # the usual one first
    begins: str = ""
    only: bool = False  # no other ending will do


_HEAD, _TAIL = 512, 1 << 17  # bytes that tell what a file is
_TABLE = r"point,trace,|\{\"point\": \"|PAR1.*idle_parts\."
_PAGE = r'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<meta http-equiv="Content-Security-Policy"'
_KINDS = {
    "page": OutputKind("a page", (".html", ".htm"), _PAGE),
    "picture": OutputKind("a picture", (".svg",), r'<svg [^>]*role="img"[^>]*>\s*<title>Minibatch \d'),
    "steps": OutputKind("a table of steps", (".csv", ".tsv", ".txt"), "run,step,seconds,elapsed,"),
    "timeline": OutputKind("a timeline", (".npz",), r"PK\x03\x04.{26}header\.npy"),
    "schedule": OutputKind("a schedule", (".jsonl", ".json"), r'\s*\{\s*"format": "odcsim schedule"'),
    "profile": OutputKind("a profile", (".json",), r'\s*\{\s*"format": "odcsim profile"'),
    "events": OutputKind(
        "trace events", (".json", ".gz"), r'\{"traceEvents":\[\{"ph":"M","name":"process_name","pid":0,'
    ),
    "lengths": OutputKind("lengths", (".csv", ".jsonl", ".npy", ".parquet"), only=True),
    "points": OutputKind("a sweep's table", (".csv", ".jsonl", ".parquet"), _TABLE, only=True),
}
_INSIDE = ("config.json", "tokenizer*.json", "*.jinja", "*/*.jinja")  # what a model's folder is read for
# What goes there, where it is no matter of the command.
_WRITTEN = {"html": "page", "steps": "steps", "svg": "picture"}
# Other endings that are not known are somebody's own; a pipe has none.
_KNOWN = {
    *(ending for kind in _KINDS.values() for ending in kind.endings),
    *".npy .parquet .arrow .idx .zip .toml .yaml .yml .md .py .xml .pdf .png .jpg .jpeg".split(),
}


def check_outputs(args: Namespace) -> None:
    """`args.writes` is the kind of what goes to `args.output`."""
    _check_named(args)
    read = [path for name in INPUTS for path in _listed(getattr(args, name, None))]
    for folder in filter(None, (getattr(args, name, None) for name in ("model", "tokenizer"))):
        read += [str(path) for form in _INSIDE for path in Path(folder).glob(form)]
    data = [path for name in DATA for path in _listed(getattr(args, name, None))]
    written: list[str] = []
    for name in OUTPUTS:
        if not isinstance(text := getattr(args, name, None), str):  # --steps of `rl` is a number
            continue
        path = Path(text)
        if name == "per_device":
            check_new_folder(path)
        else:
            kind = _KINDS[_WRITTEN.get(name) or args.writes]
            check_writable(path)
            check_apart(path, read)
            _check_ending(path, kind)
            _check_own(path, kind, getattr(args, "force", None))
        _check_twice(path, written)
        _check_outside(path, data)
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


def _check_ending(path: Path, kind: OutputKind) -> None:
    """A name that says another kind of file would be opened as what it is not."""
    suffix, page = path.suffix.lower(), kind is _KINDS["page"]
    if suffix in kind.endings or (not kind.only and suffix not in _KNOWN and not (page and suffix)):
        return
    problem = "is no name of a page" if page else f"is no name for {kind.named}"
    names = ", ".join(f"FILE{ending}" for ending in kind.endings[: None if kind.only else 1])
    raise InputError(problem, where=str(path), fix=f"{'pages are HTML: ' if page else ''}name it {names}")


def _check_outside(path: Path, folders: Iterable[str]) -> None:
    """A dataset is all that lies in its folder: what is written there would be read the next time."""
    for name in folders:
        with suppress(OSError, ValueError):
            if Path(name).is_dir() and path.resolve().is_relative_to(Path(name).resolve()):
                raise InputError(f"is inside {name}, which this command reads", where=str(path), fix="write elsewhere")


def _check_own(path: Path, kind: OutputKind, force: bool | None) -> None:
    """Over what odcsim has written of this kind, anew; over whatever else is there only when told to. `force` is None
    where a command has no flag for it."""
    if force or not path.is_file():
        return
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD)
            if head.startswith(b"\x1f\x8b"):
                head = zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(head, _HEAD) or head
            elif head.startswith(b"PAR1"):  # which says at its end what it holds
                file.seek(max(0, path.stat().st_size - _TAIL))
                head += file.read(_TAIL)
    except (OSError, zlib.error):
        head = b"?"
    if head and not (kind.begins and re.match(kind.begins.encode(), head, re.DOTALL)):
        own = f", and is not {kind.named} that odcsim wrote" if kind.begins else ""
        fix = "move it away" if force is None else "name another file, or give --force"
        raise InputError(f"is there{own}", where=str(path), fix=fix)


def _listed(value: str | Sequence[str] | None) -> list[str]:
    return [value] if isinstance(value, str) and value else list(value or ())

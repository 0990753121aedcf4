"""Where a command may write: over and into nothing that it reads, and over no other kind of file unasked.

Asked before the work whose result it would be.
"""

import re
from argparse import Namespace
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from odcsim.errors import InputError
from odcsim.files import check_apart, check_writable

# What arguments that may name a file or a folder to read are called, in any command: lengths, and all else.
DATA = ("trace", "source", "sources", "lengths", "plan")
INPUTS = (
    *DATA,
    *"schedule timeline timelines predicted measured name model gpu profile cluster tokenizer rows grid".split(),
)
OUTPUTS = ("output", "html", "steps", "svg")
PAGES = ("", ".html", ".htm")  # without a suffix it may be a pipe
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
    read = [path for name in INPUTS for path in _listed(getattr(args, name, None))]
    data = [path for name in DATA for path in _listed(getattr(args, name, None))]
    for name in OUTPUTS:
        if isinstance(text := getattr(args, name, None), str):  # --steps of `rl` is a number
            path = Path(text)
            check_writable(path)
            check_apart(path, read)
            _check_outside(path, data)
            kind = "page" if name == "html" else getattr(args, "writes", "") or _BY_SUFFIX.get(path.suffix, "text")
            _check_kind(path, kind, getattr(args, "force", None))
    if (page := getattr(args, "html", None)) and Path(page).suffix.lower() not in PAGES:
        raise InputError("is no name of a page", where=page, fix="pages are HTML: name it FILE.html")


def _check_outside(path: Path, folders: Iterable[str]) -> None:
    """A dataset is all that lies in its folder: what is written there would be read the next time."""
    for name in folders:
        with suppress(OSError, ValueError):
            if Path(name).is_dir() and path.resolve().is_relative_to(Path(name).resolve()):
                raise InputError(f"is inside {name}, which this command reads", where=str(path), fix="write elsewhere")


def _check_kind(path: Path, kind: str, force: bool | None) -> None:
    """`force` is None where a command has no such flag."""
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

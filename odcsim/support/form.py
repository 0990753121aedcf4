"""JSON files of ours, by the dataclass they are read into: a value that it would not hold is named, never used.

Whole numbers start at their default, or at 1 where they have none; all others at 0. A text that may only be one of a
few is Annotated with them.
"""

import json
from dataclasses import MISSING, asdict, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_origin

from odcsim.errors import InputError, nearest
from odcsim.support.checked import Given, shown
from odcsim.support.files import reading, write_text
from odcsim.support.whole import read_text

T = TypeVar("T")


def write(content: Any, path: Path | str, form: str, version: int) -> None:
    text = json.dumps({"format": form, "version": version, **asdict(content)}, indent=1)
    write_text(Path(path), text + "\n")


def read(shape: type[T], path: Path | str, what: str, form: str, version: int) -> T:
    """The file at `path`, which is to be `what`."""
    where = str(path)
    with reading(path, missing=f"give the path of {what}", expected=f"{what} in JSON"):
        content = json.loads(read_text(path))
    if not isinstance(content, dict) or content.pop("format", None) != form:
        raise InputError(f"not {what}", where=where, fix=f'expected a JSON object with "format": "{form}"')
    if (other := content.pop("version", None)) != version:
        raise InputError(f"version {shown(other)} is not {version}", where=where, fix=f"make {what} again")
    return made(shape, Given("", content, where))


def made(shape: type[T], given: Given) -> T:
    """The dataclass `shape`, of an object that has its fields as keys."""
    known = {f.name: f for f in fields(shape)}  # type: ignore[arg-type]
    content = given.mapping()
    within, fix = f" in {given.name}" if given.name else "", f"known: {', '.join(known)}"
    if odd := sorted(set(content) - set(known)):
        like = nearest(odd[0][:40], list(known))
        raise InputError(f"unknown key {odd[0]!r:.40}{within}", where=given.where, fix=like)
    needed = (f.name for f in known.values() if f.default is MISSING)
    if missing := [name for name in needed if name not in content]:
        raise InputError(f"no {', '.join(missing)}{within}", where=given.where, fix=fix)
    return shape(**{name: _value(known[name].type, known[name].default, given.key(name)) for name in content})


def _value(kind: Any, default: Any, given: Given) -> Any:
    if is_dataclass(kind):
        return made(kind, given)  # type: ignore[arg-type]
    if kind is int:
        return given.whole(1 if default is MISSING else default)
    if kind is float:
        return float(given.number())
    if get_origin(kind) is tuple:
        return tuple(_value(get_args(kind)[0], MISSING, item) for item in given.items())
    if get_origin(kind) is Annotated:
        return given.value if given.value == default else given.one_of(get_args(kind)[1])
    return given.flag() if kind is bool else given.text()

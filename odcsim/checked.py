"""JSON files of ours, by the dataclass they are read into: a value that it would not hold is named, never used.

Whole numbers start at their default, or at 1 where they have none; all others at 0. A text that may only be one of a
few is Annotated with them.
"""

import json
from dataclasses import MISSING, asdict, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar, get_args, get_origin

from odcsim.errors import InputError
from odcsim.files import replacing

LARGEST = 1e15  # of any number: seconds beyond it are rubbish, and an int may not even fit a float
WORDS = {str: "a text", bool: "true or false", dict: "an object", list: "a list"}
T = TypeVar("T")


def write(content: Any, path: Path | str, form: str, version: int) -> None:
    with replacing(Path(path)) as temporary:
        text = json.dumps({"format": form, "version": version, **asdict(content)}, indent=1)
        temporary.write_text(text + "\n", encoding="utf-8")


def read(shape: type[T], path: Path | str, what: str, form: str, version: int) -> T:
    """The file at `path`, which is to be `what`."""
    where = str(path)
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError("no such file", where=where, fix=f"give the path of {what}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"cannot be read ({error})", where=where, fix=f"expected {what} in JSON") from None
    if not isinstance(content, dict) or content.pop("format", None) != form:
        raise InputError(f"not {what}", where=where, fix=f'expected a JSON object with "format": "{form}"')
    if (found := content.pop("version", None)) != version:
        raise InputError(f"version {found!r:.40} is not {version}", where=where, fix=f"make {what} anew")
    made: T = _object(shape, content, "", where)
    return made


def _object(shape: Any, content: Any, place: str, where: str) -> Any:
    known = {f.name: f for f in fields(shape)}
    within = f" in {place}" if place else ""
    if odd := sorted(set(_typed(dict, content, place, where)) - set(known)):
        raise InputError(f"unknown key {odd[0]!r:.40}{within}", where=where, fix=f"known: {', '.join(known)}")
    needed = (f.name for f in known.values() if f.default is MISSING)
    if missing := [name for name in needed if name not in content]:
        raise InputError(f"no {', '.join(missing)}{within}", where=where, fix=f"known: {', '.join(known)}")
    values = {
        name: _value(known[name].type, known[name].default, value, f"{place}.{name}" if place else name, where)
        for name, value in content.items()
    }
    return shape(**values)


def _value(kind: Any, default: Any, value: Any, place: str, where: str) -> Any:
    if is_dataclass(kind):
        return _object(kind, value, place, where)
    if kind in (int, float):
        return _number(kind, default if kind is int else 0, value, place, where)
    if get_origin(kind) is tuple:
        rows = enumerate(_typed(list, value, place, where))
        return tuple(_value(get_args(kind)[0], MISSING, row, f"{place}[{i}]", where) for i, row in rows)
    if get_origin(kind) is Annotated:
        few = get_args(kind)[1]
        return value if value in (*few, default) else _refuse(value, place, where, f"one of {', '.join(few)}")
    return _typed(kind, value, place, where)


def _number(kind: type, default: Any, value: Any, place: str, where: str) -> Any:
    least = 1 if default is MISSING else default
    if type(value) not in (int, kind) or not least <= value < LARGEST:
        _refuse(value, place, where, f"expected a {'whole ' if kind is int else ''}number from {least}")
    return kind(value)


def _typed(kind: type, value: Any, place: str, where: str) -> Any:
    return value if isinstance(value, kind) else _refuse(value, place, where, f"expected {WORDS[kind]}")


def _refuse(value: Any, place: str, where: str, fix: str) -> NoReturn:
    shown = "huge" if type(value) is int and abs(value) >= LARGEST else f"{value!r:.40}"
    raise InputError(f"{place} is {shown}", where=where, fix=fix)

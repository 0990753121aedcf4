"""What was timed on a machine, before any fit: one small JSON file, written by whoever measures.

Repeats stand as rows of their own, since how far they lie apart says how far to trust them.
"""

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from odcsim.errors import InputError
from odcsim.files import replacing
from odcsim.profile import DTYPES, LARGEST, TRANSFERS

FORMAT = "odcsim measurements"
VERSION = 1
COMPUTES = ("forward", "backward", "head", "embed", "microbatch")  # of one layer, except the last: all compute at once
CONSTANTS = ("meeting", "publish", "optimizer", "overhead")
_DECIMAL = ("squares", "seconds")
_OPTIONAL = ("longest", "microbatches", "samples", "alone", "computing")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Compute:
    """One timed call. `squares` is the sum that the model's attention makes of the samples' lengths."""

    kind: str
    tokens: int
    squares: float
    seconds: float
    longest: int = 0  # tokens of the longest sample; 0: squares over tokens, which it has at least
    microbatches: int = 1  # that were timed together
    samples: int = 0  # how many there were; 0: not known
    alone: bool = False  # no other device and no transfer at work: shows what those cost, and is not fitted


@dataclass(frozen=True, slots=True)
class Transfer:
    """One timed transfer of a unit of so many bytes, all shards together."""

    kind: str
    devices: int
    bytes: int
    seconds: float
    computing: bool = False  # devices computed meanwhile


@dataclass(frozen=True, slots=True)
class Constant:
    """Seconds of what neither tokens nor bytes change."""

    kind: str
    devices: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Measurements:
    model: str
    gpu: str  # the device's name, of the catalogue where it has it
    compute: tuple[Compute, ...]
    transfers: tuple[Transfer, ...] = ()
    constants: tuple[Constant, ...] = ()
    hardware: str = ""
    versions: str = ""
    date: str = ""
    dtype: str = ""
    transport: str = ""
    notes: str = ""


def write(measurements: Measurements, path: Path | str) -> None:
    with replacing(Path(path)) as temporary:
        content = {"format": FORMAT, "version": VERSION, **asdict(measurements)}
        temporary.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def read(path: Path | str) -> Measurements:
    path = Path(path)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError("no such file", where=str(path), fix="give a file of measurements") from None
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"cannot be read ({error})", where=str(path), fix="expected measurements in JSON") from None
    if not isinstance(content, dict) or content.pop("format", None) != FORMAT:
        raise InputError("not measurements", where=str(path), fix=f'expected a JSON object with "format": "{FORMAT}"')
    if (version := content.pop("version", None)) != VERSION:
        raise InputError(f"version {version!r:.40} is not {VERSION}", where=str(path), fix="measure anew")
    return _from_json(content, str(path))


def _from_json(content: dict[str, Any], where: str) -> Measurements:
    known = [f.name for f in fields(Measurements)]
    if odd := sorted(set(content) - set(known)):
        raise InputError(f"unknown keys {', '.join(odd)}", where=where, fix=f"known: {', '.join(known)}")
    if missing := [name for name in ("model", "gpu", "compute") if name not in content]:
        raise InputError(f"no {', '.join(missing)}", where=where, fix="measure anew")
    rows: dict[str, Any] = {
        "compute": _rows(content.pop("compute"), Compute, COMPUTES, "compute", where),
        "transfers": _rows(content.pop("transfers", []), Transfer, TRANSFERS, "transfers", where),
        "constants": _rows(content.pop("constants", []), Constant, CONSTANTS, "constants", where),
    }
    for name, value in content.items():
        if not isinstance(value, str):
            raise InputError(f"{name} is {value!r:.40}", where=where, fix="expected a text")
    if content.get("dtype") and content["dtype"] not in DTYPES:
        raise InputError(f"dtype {content['dtype']!r:.40}", where=where, fix=f"one of {', '.join(DTYPES)}")
    return Measurements(**content, **rows)


def _rows(rows: Any, shape: type[T], kinds: tuple[str, ...], name: str, where: str) -> tuple[T, ...]:
    if not isinstance(rows, list):
        raise InputError(f"{name} is {rows!r:.40}", where=where, fix="expected a list")
    return tuple(_row(row, shape, kinds, f"{name}[{i}]", where) for i, row in enumerate(rows))


def _row(row: Any, shape: type[T], kinds: tuple[str, ...], place: str, where: str) -> T:
    if not isinstance(row, dict):
        raise InputError(f"{place} is {row!r:.40}", where=where, fix="expected an object")
    known = [f.name for f in fields(shape)]  # type: ignore[arg-type]
    if odd := sorted(set(known) - set(_OPTIONAL) - set(row)) or sorted(set(row) - set(known)):
        raise InputError(f"{place} misses or does not know '{odd[0]}'", where=where, fix=f"known: {', '.join(known)}")
    if row["kind"] not in kinds:
        raise InputError(f"{place}.kind is {row['kind']!r:.40}", where=where, fix=f"one of {', '.join(kinds)}")
    for key, value in row.items():
        if key in ("alone", "computing"):
            if not isinstance(value, bool):
                raise InputError(f"{place}.{key} is {value!r:.40}", where=where, fix="true or false")
        elif key != "kind":
            _check(key, value, f"{place}.{key}", where)
    return shape(**row)


def _check(key: str, value: Any, place: str, where: str) -> None:
    """Seconds must be above zero: a timer that saw nothing has measured nothing."""
    decimal, least = key in _DECIMAL, 0 if key in ("squares", "longest", "samples", "seconds") else 1
    right = type(value) in ((int, float) if decimal else (int,))
    if not right or not least <= value < LARGEST or (key == "seconds" and not value):
        shown = "huge" if type(value) is int and abs(value) >= LARGEST else f"{value!r:.40}"
        wanted = "a number above zero" if key == "seconds" else f"a {'' if decimal else 'whole '}number from {least}"
        raise InputError(f"{place} is {shown}", where=where, fix=f"expected {wanted}")

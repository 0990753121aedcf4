"""Seconds that a model takes on a device: measured, published or estimated, with where they come from.

A profile is one small JSON file. It knows layers and microbatches, not schedules: odcsim.cost turns it into durations.
"""

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from odcsim.errors import InputError
from odcsim.files import replacing

FORMAT = "odcsim profile"
VERSION = 1
LARGEST = 1e15  # of any number in a profile: seconds beyond it are rubbish, and an int may not even fit a float
FIDELITIES = ("calibrated", "published fit", "catalogue", "extrapolated")


@dataclass(frozen=True, slots=True)
class Polynomial:
    """Seconds of a packed microbatch: a constant, its tokens, and the sum of its samples' squares."""

    constant: float = 0.0
    linear: float = 0.0
    quadratic: float = 0.0


@dataclass(frozen=True, slots=True)
class Profile:
    """Where each number of seconds comes from is said in `origin`; how far they may be off in `low` and `high`."""

    model: str
    gpu: str
    fidelity: str
    origin: str
    forward: Polynomial  # one layer
    backward: Polynomial  # one layer, recompute included
    head: Polynomial  # head and loss, forward and backward
    embed: Polynomial = Polynomial()  # embedding, forward; its backward takes the same
    notes: str = ""  # how the numbers were made, in full
    microbatch: float = 0.0  # constant per microbatch that is the model's own work
    overhead: float = 0.0  # constant per microbatch that is not: what a published fit could not tell apart
    optimizer: float = 0.0  # per minibatch, on this device's shard
    publish: float = 0.0  # per minibatch, one-sided syncs only
    node_transfers_included: bool = False  # the fit was made on a node whose transfers are in its numbers
    longest: int = 0  # tokens of the longest sample that the numbers were made from; 0: no limit known
    low: float = 1.0  # the true seconds may be this many times the ones above ...
    high: float = 1.0  # ... up to this many


def write(profile: Profile, path: Path | str) -> None:
    with replacing(Path(path)) as temporary:
        content = {"format": FORMAT, "version": VERSION, **asdict(profile)}
        temporary.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def read(path: Path | str) -> Profile:
    path = Path(path)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError("no such file", where=str(path), fix="give a profile's path") from None
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"cannot be read ({error})", where=str(path), fix="expected a profile in JSON") from None
    if not isinstance(content, dict) or content.pop("format", None) != FORMAT:
        raise InputError("not a profile", where=str(path), fix=f'expected a JSON object with "format": "{FORMAT}"')
    if (version := content.pop("version", None)) != VERSION:
        raise InputError(f"version {version!r} is not {VERSION}", where=str(path), fix="make the profile anew")
    return _from_json(content, str(path))


def _from_json(content: dict[str, Any], where: str) -> Profile:
    known = {f.name: f for f in fields(Profile)}
    if odd := sorted(set(content) - set(known)):
        raise InputError(f"unknown keys {', '.join(odd)}", where=where, fix=f"known: {', '.join(known)}")
    needed = ("model", "gpu", "fidelity", "origin", "forward", "backward", "head")
    if missing := [name for name in needed if name not in content]:
        raise InputError(f"no {', '.join(missing)}", where=where, fix="make the profile anew")
    values = {name: _value(name, value, where) for name, value in content.items()}
    if values["fidelity"] not in FIDELITIES:
        raise InputError(f"fidelity {values['fidelity']!r}", where=where, fix=f"one of {', '.join(FIDELITIES)}")
    profile = Profile(**values)
    if not 0 < profile.low <= 1 <= profile.high:
        raise InputError(f"range {profile.low} to {profile.high}", where=where, fix="low at most 1, high at least 1")
    return profile


def _value(name: str, value: Any, where: str) -> Any:
    if name in ("model", "gpu", "fidelity", "origin", "notes"):
        return _typed(name, value, str, where)
    if name == "node_transfers_included":
        return _typed(name, value, bool, where)
    if name in ("forward", "backward", "head", "embed"):
        terms = _typed(name, value, dict, where)
        if odd := sorted(set(terms) - {"constant", "linear", "quadratic"}):
            raise InputError(f"unknown key {odd[0]!r} in {name}", where=where, fix="constant, linear, quadratic")
        return Polynomial(**{term: _seconds(f"{name}.{term}", v, where) for term, v in terms.items()})
    seconds = _seconds(name, value, where)
    return int(seconds) if name == "longest" else seconds


def _typed(name: str, value: Any, kind: type, where: str) -> Any:
    if not isinstance(value, kind):
        raise InputError(f"{name} is {value!r}", where=where, fix=f"expected {kind.__name__}")
    return value


def _seconds(name: str, value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < LARGEST:
        shown = "huge" if isinstance(value, int) and abs(value) >= LARGEST else f"{value!r:.40}"
        raise InputError(f"{name} is {shown}", where=where, fix="expected a number, zero or more")
    return float(value)

"""Seconds that a model takes on a device: measured, published or estimated, with where they come from.

A profile is one small JSON file. It knows layers and microbatches, not schedules: odcsim.cost turns it into durations.
"""

import json
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from odcsim.errors import InputError
from odcsim.files import replacing

FORMAT = "odcsim profile"
VERSION = 1
LARGEST = 1e15  # of any number in a profile: seconds beyond it are rubbish, and an int may not even fit a float
FIDELITIES = ("calibrated", "published fit", "catalogue", "extrapolated")
TRANSFERS = ("gather", "push", "all-gather", "reduce-scatter")  # one-sided, and what a collective does instead
SHARDED = ("optimizer", "publish")  # work on a device's own shard
LOCAL = ("overhead", *SHARDED)  # work that needs nobody else
TIMINGS = (*TRANSFERS, "meeting", *LOCAL)
DTYPES = {"float32": 4, "bfloat16": 2, "float16": 2}  # bytes of a parameter on its way
_TEXTS = ("model", "gpu", "fidelity", "origin", "notes", "hardware", "versions", "date", "dtype", "transport")
_TERMS = ("forward", "backward", "head", "embed")
_ERRORS = tuple(f"{name}_error" for name in _TERMS)
_WHOLE = ("longest", "most_tokens")
_COEFFICIENTS = ("constant", "linear", "quadratic", "sample")
_NUMBERS = ("constant", "per_byte", "slowdown")  # of a timing


@dataclass(frozen=True, slots=True)
class Polynomial:
    """Seconds of a packed microbatch: a constant, its tokens, the sum of its samples' squares, and its samples."""

    constant: float = 0.0
    linear: float = 0.0
    quadratic: float = 0.0
    sample: float = 0.0  # where attention is a call for each sample


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds that depend on how many devices take part: a constant, and for transfers a part per byte of the unit."""

    kind: str
    devices: int
    constant: float = 0.0
    per_byte: float = 0.0
    slowdown: float = 1.0  # a transfer takes that many times longer while devices compute

    def at(self, devices: int) -> "Timing":
        """A guess for another number of devices: shards shrink with it, what arrives from others grows."""
        if self.kind in TRANSFERS and self.devices > 1:
            share = (devices - 1) / devices * self.devices / (self.devices - 1)
            return replace(self, devices=devices, per_byte=self.per_byte * share)
        if self.kind in SHARDED:
            return replace(self, devices=devices, constant=self.constant * self.devices / devices)
        return replace(self, devices=devices)


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
    overhead: float = 0.0  # constant per microbatch that is not: work between layers, or what a fit cannot tell apart
    optimizer: float = 0.0  # per minibatch, on this device's shard
    publish: float = 0.0  # per minibatch, one-sided syncs only
    node_transfers_included: bool = False  # the fit was made on a node whose transfers are in its numbers
    longest: int = 0  # tokens of the longest sample that the numbers were made from; 0: no limit known
    low: float = 1.0  # the true seconds may be this many times the ones above ...
    high: float = 1.0  # ... up to this many
    # What a measured profile adds; nothing below is needed.
    timings: tuple[Timing, ...] = ()  # they take the place of the cluster's rates, and of optimizer and publish
    most_tokens: int = 0  # of the fullest microbatch measured; 0: no limit known
    hardware: str = ""
    versions: str = ""
    date: str = ""
    dtype: str = ""  # of parameters on their way; empty: bfloat16
    transport: str = ""  # what moved the bytes
    jitter: float = 0.0  # standard deviation between repeats of one measurement, as a fraction
    interference: float = 1.0  # compute beside others took that many times what it took alone; it is in the numbers
    residual: float = 0.0  # median error of the fit on its own measurements, as a fraction ...
    worst_residual: float = 0.0  # ... and the largest
    forward_error: Polynomial = Polynomial()  # standard errors of the fitted coefficients
    backward_error: Polynomial = Polynomial()
    head_error: Polynomial = Polynomial()
    embed_error: Polynomial = Polynomial()

    def timing(self, kind: str, devices: int) -> Timing | None:
        """Measured seconds of this kind: between measured numbers of devices a straight line, beyond them a guess."""
        known = {t.devices: t for t in self.timings if t.kind == kind}
        if not known or devices in known:
            return known.get(devices)
        below = max((n for n in known if n < devices), default=None)
        above = min((n for n in known if n > devices), default=None)
        if below is None or above is None:
            return known[above if below is None else below].at(devices)  # type: ignore[index]
        share = (devices - below) / (above - below)
        one, other = known[below], known[above]
        constant, per_byte, slowdown = (
            (1 - share) * getattr(one, name) + share * getattr(other, name)
            for name in ("constant", "per_byte", "slowdown")
        )
        return Timing(kind, devices, constant, per_byte, slowdown)

    def measured_with(self, devices: int) -> bool:
        """Whether this many devices lie within those that timings were measured with."""
        counts = [t.devices for t in self.timings]
        return not counts or min(counts) <= devices <= max(counts)


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
    if values.get("dtype") and values["dtype"] not in DTYPES:
        raise InputError(f"dtype {values['dtype']!r}", where=where, fix=f"one of {', '.join(DTYPES)}")
    profile = Profile(**values)
    if not 0 < profile.low <= 1 <= profile.high:
        raise InputError(f"range {profile.low} to {profile.high}", where=where, fix="low at most 1, high at least 1")
    return profile


def _value(name: str, value: Any, where: str) -> Any:
    if name in _TEXTS:
        return _typed(name, value, str, where)
    if name == "node_transfers_included":
        return _typed(name, value, bool, where)
    if name == "timings":
        return _timings(_typed(name, value, list, where), where)
    if name in (*_TERMS, *_ERRORS):
        terms = _typed(name, value, dict, where)
        if odd := sorted(set(terms) - set(_COEFFICIENTS)):
            raise InputError(f"unknown key {odd[0]!r} in {name}", where=where, fix=", ".join(_COEFFICIENTS))
        return Polynomial(**{term: _seconds(f"{name}.{term}", v, where) for term, v in terms.items()})
    seconds = _seconds(name, value, where)
    return int(seconds) if name in _WHOLE else seconds


def _timings(rows: list[Any], where: str) -> tuple[Timing, ...]:
    found: dict[tuple[str, int], Timing] = {}
    for i, row in enumerate(rows):
        place = f"timings[{i}]"
        entry = dict(_typed(place, row, dict, where))
        kind, devices = entry.pop("kind", None), entry.pop("devices", None)
        if kind not in TIMINGS:
            raise InputError(f"{place}.kind is {kind!r:.40}", where=where, fix=f"one of {', '.join(TIMINGS)}")
        if type(devices) is not int or not 1 <= devices < LARGEST:
            raise InputError(f"{place}.devices is {devices!r:.40}", where=where, fix="a whole number from 1")
        if odd := sorted(set(entry) - set(_NUMBERS)):
            raise InputError(f"unknown key {odd[0]!r} in {place}", where=where, fix=", ".join(_NUMBERS))
        if (kind, devices) in found:
            raise InputError(f"{place} is a second {kind} of {devices} devices", where=where, fix="keep one")
        numbers = {name: _seconds(f"{place}.{name}", v, where) for name, v in entry.items()}
        found[kind, devices] = Timing(kind, devices, **numbers)
    return tuple(found.values())


def _typed(name: str, value: Any, kind: type, where: str) -> Any:
    if not isinstance(value, kind):
        raise InputError(f"{name} is {value!r}", where=where, fix=f"expected {kind.__name__}")
    return value


def _seconds(name: str, value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < LARGEST:
        shown = "huge" if isinstance(value, int) and abs(value) >= LARGEST else f"{value!r:.40}"
        raise InputError(f"{name} is {shown}", where=where, fix="expected a number, zero or more")
    return float(value)

"""Seconds that a model takes on a device: measured, published or estimated, with where they come from.

A profile is one small JSON file. It knows layers and microbatches, not schedules: odcsim.cost turns it into durations.
"""

from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from odcsim.errors import InputError
from odcsim.support.values import read_json, write_json

Floats = NDArray[np.float64]
FORMAT = "odcsim profile"
VERSION = 1
FIDELITIES = ("calibrated", "scaled", "published fit", "catalogue", "extrapolated")
TRANSFERS = ("gather", "push", "all-gather", "reduce-scatter")  # one-sided, and what a collective does instead
SHARDED = ("optimizer", "publish")  # work on a device's own shard
LOCAL = ("overhead", "settle", *SHARDED)  # work that needs nobody else, but for settle's meeting
TIMINGS = (*TRANSFERS, "meeting", *LOCAL)
DTYPES = {"float32": 4, "bfloat16": 2, "float16": 2}  # bytes of a parameter on its way


@dataclass(frozen=True, slots=True)
class Polynomial:
    """Seconds of a packed microbatch: a constant, its tokens, the sum of its samples' squares, and its samples; at
    least the floor, which is what launching it takes."""

    constant: float = 0.0
    linear: float = 0.0
    quadratic: float = 0.0
    sample: float = 0.0  # where attention is a call for each sample
    floor: float = 0.0

    def seconds(self, tokens: Floats, squares: Floats, samples: Floats) -> Floats:
        """Of microbatches that hold so much."""
        seconds: Floats = self.constant + self.linear * tokens + self.quadratic * squares
        if self.sample:
            seconds += self.sample * samples
        return np.maximum(seconds, self.floor, out=seconds) if self.floor else seconds


@dataclass(frozen=True, slots=True)
class Passes:
    """One layer's seconds, both ways, with the standard errors of the coefficients. Zeros where nothing is known."""

    forward: Polynomial = Polynomial()
    backward: Polynomial = Polynomial()
    forward_error: Polynomial = Polynomial()
    backward_error: Polynomial = Polynomial()


@dataclass(frozen=True, slots=True)
class ProfileBelow:
    """Somebody else's seconds for microbatches emptier than those of a fit. Zeros where nobody needs them."""

    forward: Polynomial = Polynomial()
    backward: Polynomial = Polynomial()
    head: Polynomial = Polynomial()
    embed: Polynomial = Polynomial()
    microbatch: float = 0.0
    copying: float = 0.0


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds that depend on how many devices take part: a constant, and for transfers a part per byte of the unit."""

    kind: Annotated[str, TIMINGS]
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
class ProfileRun:
    """The run that seconds were measured on, where what it had otherwise is not in them. Zeros: not known."""

    devices: int = 0
    nodes: int = 0
    sharding: str = ""
    length: float = 0.0  # tokens of the sample that a token is of, on average
    tokens: float = 0.0  # of a device in a minibatch, on average


@dataclass(frozen=True, slots=True)
class Profile:
    """Where each number of seconds comes from is said in `origin`; how far they may be off in `low` and `high`."""

    model: str
    gpu: str
    fidelity: Annotated[str, FIDELITIES]
    origin: str
    forward: Polynomial  # one layer
    backward: Polynomial  # one layer; with its forward once more where `recompute` says so
    head: Polynomial  # head and loss, forward and backward
    embed: Polynomial = Polynomial()  # embedding, forward; its backward takes the same
    recompute: bool = True
    notes: str = ""  # how the numbers were made, in full
    microbatch: float = 0.0  # constant per microbatch that is the model's own work
    overhead: float = 0.0  # constant per microbatch that is not: work between layers, as measured
    optimizer: float = 0.0  # per minibatch, on this device's shard
    publish: float = 0.0  # per minibatch, one-sided syncs only
    copying: float = 0.0  # share of compute that goes to transfers of layers while they are under way
    adapters: float = 0.0  # parameters of one layer's adapters where nothing else is trained; 0: all is
    node_transfers_included: bool = False  # the fit was made on a node whose transfers are in its numbers
    longest: int = 0  # tokens of the longest sample that the numbers were made from; 0: no limit known
    low: float = 1.0  # 90 % interval of the true seconds: from this many times the ones above ...
    high: float = 1.0  # ... up to this many
    # What a measured profile adds; nothing below is needed.
    timings: tuple[Timing, ...] = ()  # they take the place of the cluster's rates, and of optimizer, settle and publish
    most_tokens: int = 0  # of the fullest microbatch measured; 0: no limit known
    hardware: str = ""
    versions: str = ""
    date: str = ""
    dtype: Annotated[str, DTYPES] = ""  # of parameters on their way; empty: bfloat16
    transport: str = ""  # what moved the bytes
    jitter: float = 0.0  # standard deviation between repeats of one measurement, as a fraction
    swing: float = 0.0  # standard deviation of a device's speed from one spell to the next, as a fraction ...
    spell: float = 0.0  # ... and how many seconds a spell lasts; 0: not known
    slow: tuple[float, ...] = ()  # how many times the seconds above each device takes; empty: devices are alike
    interference: float = 1.0  # compute beside others took that many times what it took alone; it is in the numbers
    residual: float = 0.0  # median error of the fit on its own measurements, as a fraction ...
    worst_residual: float = 0.0  # ... and the largest
    forward_error: Polynomial = Polynomial()  # standard errors of the fitted coefficients
    backward_error: Polynomial = Polynomial()
    head_error: Polynomial = Polynomial()
    embed_error: Polynomial = Polynomial()
    kept: Passes = Passes()  # the same layer without recompute, where that was measured beside the rest
    factor: float = 0.0  # times what estimates say, where the seconds are no more than that
    fewest: int = 0  # tokens of the emptiest microbatch that the numbers were made from; 0: no limit known
    # Seconds of microbatches of half of those or less; between the two one becomes the other.
    below: ProfileBelow = ProfileBelow()
    run: ProfileRun = ProfileRun()
    kinds: tuple[str, ...] = ()  # how the figures are known that estimates were made from: fitted, assumed and others
    recipe: tuple[str, ...] = ()  # what of a recipe is in these seconds and not as usual, in words: "lora 16"

    @property
    def joined(self) -> bool:
        """Whether other seconds hold where microbatches are emptier than those that these were made from."""
        return bool(self.fewest) and self.below != ProfileBelow()

    def timing(self, kind: str, devices: int) -> Timing | None:
        """Measured seconds of this kind: between measured numbers of devices a straight line, beyond them a guess."""
        timings = {t.devices: t for t in self.timings if t.kind == kind}
        if not timings or devices in timings:
            return timings.get(devices)
        counts = sorted(timings)
        if not counts[0] < devices < counts[-1]:
            return timings[counts[0] if devices < counts[0] else counts[-1]].at(devices)
        names = "constant", "per_byte", "slowdown"
        values = ([getattr(timings[n], name) for n in counts] for name in names)
        return Timing(kind, devices, *(float(np.interp(devices, counts, of)) for of in values))

    def stretched(self, factor: float) -> "Profile":
        """With so many times the seconds of compute; what moves bytes stays as it is."""

        def longer(of: "Profile | ProfileBelow") -> dict[str, Any]:
            fits = {name: getattr(of, name) for name in ("forward", "backward", "head", "embed")}
            times = {name: Polynomial(*(factor * value for value in astuple(fit))) for name, fit in fits.items()}
            return {**times, "microbatch": factor * of.microbatch}

        below = replace(self.below, **longer(self.below))
        overhead, times = factor * self.overhead, factor * self.factor
        return replace(self, below=below, overhead=overhead, factor=times, **longer(self))


def write(profile: Profile, path: Path | str) -> None:
    write_json(profile, path, FORMAT, VERSION)


def read(path: Path | str) -> Profile:
    profile, where = read_json(Profile, path, "a profile", FORMAT, VERSION), str(path)
    if not 0 < profile.low <= 1 <= profile.high:
        raise InputError(f"range {profile.low} to {profile.high}", where=where, fix="low at most 1, high at least 1")
    pairs = [(t.kind, t.devices) for t in profile.timings]
    if twice := [i for i, pair in enumerate(pairs) if pair in pairs[:i]]:
        kind, devices = pairs[twice[0]]
        problem = f"timings[{twice[0]}] is a second {kind} of {devices} devices"
        raise InputError(problem, where=where, fix="keep one")
    return profile

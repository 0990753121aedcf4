"""What was timed on a machine, before any fit: one small JSON file, written by whoever measures.

Repeats stand as rows of their own, since how far they lie apart says how far to trust them.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from odcsim.errors import InputError
from odcsim.profile import DTYPES, TRANSFERS
from odcsim.support.values import read_json, write_json

FORMAT = "odcsim measurements"
VERSION = 1
KEPT = " kept"  # what a pass is called without recompute
# Of one layer, except the last, which is all compute at once.
COMPUTES = ("forward", "backward", "head", "embed", "forward kept", "backward kept", "microbatch")
SHORTEST, LONGEST = 1e-9, 1e9  # seconds
EXPECTED = f"expected a number above zero, of seconds from {SHORTEST:g} to {LONGEST:g}"
CONSTANTS = ("meeting", "settle", "publish", "optimizer", "overhead")


@dataclass(frozen=True, slots=True)
class Compute:
    """One timed call. `squares` is the sum that the model's attention makes of the samples' lengths."""

    kind: Annotated[str, COMPUTES]
    tokens: int
    squares: float
    seconds: float
    longest: int = 0  # tokens of the longest sample; 0: squares over tokens, which it has at least
    microbatches: int = 1  # that were timed together
    samples: int = 0  # how many there were; 0: not known
    alone: bool = False  # no other device and no transfer at work: shows what those cost, and is not fitted
    minibatch: int = 0  # of the run that it was read off, from 1; 0: not known, as are device and time
    device: int = 0
    at: float = 0.0  # its middle, in seconds since the minibatch began
    spell: int = 0  # of measuring that went on without a pause, from 1; 0: not known


@dataclass(frozen=True, slots=True)
class Transfer:
    """One timed transfer of a unit of so many bytes, all shards together."""

    kind: Annotated[str, TRANSFERS]
    devices: int
    bytes: int
    seconds: float
    computing: bool = False  # devices computed meanwhile


@dataclass(frozen=True, slots=True)
class Constant:
    """Seconds of what neither tokens nor bytes change."""

    kind: Annotated[str, CONSTANTS]
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
    dtype: Annotated[str, DTYPES] = ""
    transport: str = ""
    notes: str = ""


def write(measurements: Measurements, path: Path | str) -> None:
    write_json(measurements, path, FORMAT, VERSION)


def read(path: Path | str) -> Measurements:
    """Seconds must be above zero: a timer that saw nothing has measured nothing."""
    measurements = read_json(Measurements, path, "measurements", FORMAT, VERSION)
    for name in ("compute", "transfers", "constants"):
        for i, row in enumerate(getattr(measurements, name)):
            if not timed(row.seconds):
                problem = f"{name}[{i}].seconds is {row.seconds!r}"
                raise InputError(problem, where=str(path), fix=EXPECTED)
    return measurements


def timed(seconds: float) -> bool:
    """Whether it can be what a timer saw: no less than clocks tell, no more than anybody waits for."""
    return SHORTEST <= seconds <= LONGEST

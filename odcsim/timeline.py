"""When every device asked for and had each step of its program: what all executors produce and all readers read.

Nobody writes waiting down. A span records when the device could do nothing more for a step than wait or be served
(asked) and when it was done (had); who waited for whom follows from the others' spans of the same meeting.
"""

import json
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from odcsim.errors import InputError
from odcsim.program import Program
from odcsim.recipe import CHOICES, PART, Recipe, fields_of, nested
from odcsim.schedule import Schedule
from odcsim.support import budget
from odcsim.support.inputs import Archive, check_file
from odcsim.support.outputs import replacing
from odcsim.support.values import LARGEST, Given, build, column

__all__ = ["About", "Block", "Timeline", "read", "write"]

FORMAT = "odcsim timeline"
VERSION = 1
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
WRITE, ANEW = "write one with 'odcsim simulate'", "write it anew with 'odcsim simulate'"
ARRAYS = {"minibatches": "i", "counts": "i", "asked": "f", "had": "f", "takers": "i"}  # of a block, and their kinds


@dataclass(frozen=True, slots=True)
class Block:
    """Minibatches that share one program. Times [step, minibatch, device] are seconds from the minibatch's start."""

    program: Program
    minibatches: Ints  # their numbers in the schedule file
    counts: Ints  # microbatches that each device really ran [minibatch, device]
    asked: Floats = field(repr=False)
    had: Floats = field(repr=False)
    takers: Ints | None = field(default=None, repr=False)  # who ran each entry of queues [minibatch, entry], -1: none

    def present(self, step: int) -> NDArray[np.bool_]:
        """Which devices really ran this step: one with fewer microbatches passes the rest in no time."""
        return np.asarray(self.program.steps[step].microbatch < self.counts)

    def seconds(self, step: int) -> Floats:
        """Of a step on each device [minibatch, device]; of one that meets, from when its last device came."""
        began = self.asked[step]
        if self.program.steps[step].meets:
            began = began.max(axis=-1, keepdims=True)
        return np.asarray(np.maximum(self.had[step] - began, 0.0))

    def ran(self, schedules: Sequence[Schedule]) -> list[Schedule]:
        """The schedules of a file's minibatches that are here, without queues: as they came to be."""
        planned = [schedules[n] for n in self.minibatches]
        if self.takers is None:
            return planned
        return [s.realised(row[: len(s.queue)].tolist()) for s, row in zip(planned, self.takers, strict=True)]

    def taken(self, place: int, device: int) -> dict[int, int]:
        """The entries of the shared queue that a device ran, by the microbatches that they became."""
        if self.takers is None:
            return {}
        entries = np.flatnonzero(self.takers[place] == device).tolist()
        first = int(self.counts[place, device]) - len(entries)  # a device has its own before it takes any
        return dict(enumerate(entries, first))


@dataclass(frozen=True, slots=True)
class About:
    """What a timeline says of itself. Two timelines compare only where digest and recipe agree."""

    executor: str  # analytic | des | engine
    recipe: Recipe  # as it ran: on one node hybrid sharding is full
    balancer: str
    model: str
    digest: str  # of the schedule file
    fidelity: str
    hardware: str
    emulated: bool  # compute is a wait of the predicted length, not work
    devices: int
    max_tokens: int
    trace: str = ""
    nodes: int = 1  # that hybrid sharding tells apart; full sharding knows none

    @property
    def title(self) -> str:
        """What tells a timeline from others of the same samples."""
        return f"{self.recipe.sync} + {self.balancer}"

    def header(self) -> dict[str, Any]:
        """As a file says it: the recipe's choices stand among the rest."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "recipe"} | self.recipe.header()


@dataclass(frozen=True, slots=True)
class Timeline:
    """A whole run: blocks of minibatches, and what each minibatch carried."""

    about: About
    blocks: tuple[Block, ...]
    samples: Ints = field(repr=False)  # per minibatch
    tokens: Ints = field(repr=False)

    def block_of(self, minibatch: int) -> tuple[Block, int]:
        """The block that holds a minibatch, and where in it."""
        for block in self.blocks:
            places = np.flatnonzero(block.minibatches == minibatch)
            if places.size:
                return block, int(places[0])
        last = len(self.samples) - 1
        raise InputError(f"no minibatch {minibatch}", where="timeline", fix=f"they are numbered 0 to {last}")


def padded(takers: Sequence[Sequence[int]]) -> Ints:
    """Takers of queues as one array [minibatch, entry], -1 where a minibatch has fewer entries than others."""
    rows = np.full((len(takers), max(map(len, takers), default=0)), -1, dtype=np.int64)
    for row, of in zip(rows, takers, strict=True):
        row[: len(of)] = of
    return rows


def shortened(block: Block, program: Program) -> Block:
    """The block on a shorter program: without microbatches that no device ran."""
    keep = np.r_[0 : program.end, block.program.end : len(block.program.steps)]
    return replace(block, program=program, asked=block.asked[keep], had=block.had[keep])


def write(timeline: Timeline, path: Path | str) -> None:
    header = {"format": FORMAT, "version": VERSION, **timeline.about.header(), "blocks": len(timeline.blocks)}
    columns: dict[str, Any] = {"header": np.array(json.dumps(header))}
    columns |= {"samples": timeline.samples, "tokens": timeline.tokens}
    for i, block in enumerate(timeline.blocks):
        shape = (block.program.layers, block.program.microbatches)
        columns |= {f"{i}.shape": np.array(shape), f"{i}.steps": np.array(str(block.program))}
        arrays = {f"{i}.{name}": getattr(block, name) for name in ARRAYS}
        columns |= {name: values for name, values in arrays.items() if values is not None}
    with replacing(Path(path)) as out:
        np.savez(out, **columns)


def read(path: Path | str) -> Timeline:
    path = Path(path)
    if path.exists() and not path.is_dir():
        check_file(path)
    try:
        with budget.bounded(path), path.open("rb") as raw:
            if not zipfile.is_zipfile(raw):  # of such a file numpy says that it may be a pickle
                raise InputError("not a timeline", fix=WRITE)
            raw.seek(0)
            with Archive(raw, path) as columns:
                return _from_columns(columns)
    except FileNotFoundError:
        raise InputError("no such file", where=str(path), fix=WRITE) from None
    except InputError as error:
        raise InputError(error.problem, where=str(path), fix=error.fix) from None
    except Exception as error:  # numpy, zipfile, zlib and tokenize each raise kinds of their own over a damaged file
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"not a timeline ({reason})", where=str(path), fix=WRITE) from None


def _from_columns(columns: Any) -> Timeline:
    header = json.loads(str(columns["header"]))
    if header.pop("format", None) != FORMAT or header.pop("version", None) != VERSION:
        raise InputError("not a timeline of this version", fix=ANEW)
    count = int(header.pop("blocks"))
    # An old file knows fewer of a recipe's choices: it was run with the usual ones.
    recipe = nested({"sharding": "full"} | fields_of(header))
    rest = {name: value for name, value in header.items() if name not in (*CHOICES, PART)}
    about = build(About, Given("", rest | {"recipe": recipe}))
    blocks = tuple(_block(columns, i, about) for i in range(count))
    samples, tokens = (column(columns, name, "i", fix=ANEW) for name in ("samples", "tokens"))
    numbers = np.sort(np.concatenate([b.minibatches for b in blocks])) if blocks else np.array([])
    if not np.array_equal(numbers, np.arange(len(samples))) or samples.shape != tokens.shape:
        raise InputError("minibatches are missing or repeated", fix=ANEW)
    return Timeline(about, blocks, samples, tokens)


def _block(columns: Any, i: int, about: About) -> Block:
    """A block of a file, whose arrays are those of its program and of each other."""
    layers, microbatches = (int(n) for n in columns[f"{i}.shape"])
    there = {name: kind for name, kind in ARRAYS.items() if name != "takers" or f"{i}.takers" in columns}
    arrays = {name: column(columns, f"{i}.{name}", kind, fix=ANEW) for name, kind in there.items()}
    if layers * microbatches > len(arrays["asked"]):
        problem = f"block {i} is too short for {microbatches} microbatches of {layers} layers"
        raise InputError(problem, fix="write it anew")
    program = about.recipe.program(layers, microbatches)
    if str(program) != str(columns[f"{i}.steps"]):
        raise InputError("its steps are those of another version of odcsim", fix=ANEW)
    block = Block(program, **arrays)
    shape = (len(program.steps), len(block.minibatches), about.devices)
    if block.asked.shape != shape or block.had.shape != shape or block.counts.shape != shape[1:]:
        raise InputError(f"block {i} does not have the shape {shape}", fix=ANEW)
    if (takers := block.takers) is not None:  # a device, or none where a minibatch has fewer, and none more than it ran
        fits = takers.ndim == 2 and len(takers) == shape[1] and ((takers >= -1) & (takers < about.devices)).all()
        ran = [np.bincount(row[row >= 0], minlength=about.devices) for row in takers] if fits else []
        if not ran or (np.array(ran) > block.counts).any():
            raise InputError(f"block {i} names takers that its devices do not have", fix=ANEW)
    if not ((np.abs(block.asked) <= LARGEST).all() and (np.abs(block.had) <= LARGEST).all()):
        raise InputError(f"block {i} holds a time that is not finite, or beyond all reason", fix=ANEW)
    return block

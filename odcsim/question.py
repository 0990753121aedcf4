"""What is asked: one value, whose fields are declared once.

The flags of every command, `odcsim.ask`, the keys and columns of a sweep, the explorer's controls and links, and the
inputs that a result repeats follow from the fields here, as those of a step follow from the fields of `Recipe`. A new
field is a line here, and the place that acts on it.
"""

import argparse
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from odcsim.errors import InputError, unexpected
from odcsim.recipe import CHOICES, PART, USUAL, Recipe, recipe_of
from odcsim.support.numbers import SIZES, TOKENS, amount, human, whole

if TYPE_CHECKING:
    from odcsim.support.checked import Given

MOST = 10**12 - 1  # of any whole number
QUESTION, MACHINES, BATCH, STEP, ROWS = "data", "model and GPUs", "batch", "how a step runs", "output"
MINIBATCHES, MINIBATCH = 200, 4


@dataclass(frozen=True, slots=True)
class Values:
    """What a field may hold: read from a command line, from a file, or given in Python."""

    type: type
    expected: str
    least: float = 0.0
    most: float = math.inf
    among: tuple[str, ...] = ()
    tokens: bool = False  # it counts them, of which k is 1,024; of all else it is 1,000

    def said(self, text: str) -> Any:
        """On a command line. Numbers are written as people do: 16k, 5%."""
        units = TOKENS if self.tokens else SIZES
        if self.type is int:
            number = human(text, units)
            value = int(number) if number is not None and number.denominator == 1 else -1
            return whole(text, units) if self.least == 1 else self._within(value, text)
        return self._within(amount(text, units), text) if self.type is float else text

    def _within(self, value: float, text: str) -> Any:
        if not self.holds(value):
            raise argparse.ArgumentTypeError(f"'{text}' is not {self.expected}")
        return value

    def given(self, given: "Given") -> Any:
        """In a file, where numbers may be written as on a command line."""
        if self.type is bool:
            return given.flag()
        if self.type is str:
            return given.text() if given.text().strip() else given.refuse(f"expected {self.expected}")
        if isinstance(given.value, str):
            return self.read(given.name, given.value, given.where)
        value = given.whole(int(self.least), MOST) if self.type is int else float(given.number())
        return value if self.holds(value) else given.refuse(f"expected {self.expected}")

    def read(self, name: str, value: Any, where: str = "") -> Any:
        """In Python or in a file: a number may be written as on a command line."""
        if not isinstance(value, str) or self.type not in (int, float):
            return value
        try:
            return self.said(value)
        except argparse.ArgumentTypeError as error:
            raise InputError(f"{name}: {error}", where=where) from None

    def holds(self, value: Any) -> bool:
        if self.type in (bool, str):
            return isinstance(value, self.type) and (not self.among or value in self.among)
        number = hasattr(value, "__index__") or (self.type is float and isinstance(value, float))
        return number and not isinstance(value, bool) and self.least <= value <= self.most and value < math.inf


ABOVE = math.nextafter(0, 1)
TEXT = Values(str, "a name or a file")
COUNT = Values(int, "a whole number from 1", 1, MOST)
FROM_ZERO = Values(int, "a whole number from 0", 0, MOST)
LENGTH = Values(int, "a whole number from 1", 1, MOST, tokens=True)
LIMIT = Values(int, "a whole number from 0", 0, MOST, tokens=True)
AMOUNT = Values(float, "a number from 0")
POSITIVE = Values(float, "a number above 0", ABOVE)
FLAG = Values(bool, "true or false")


@dataclass(frozen=True, slots=True)
class Field:
    """How a field is asked for. `usual` None: whatever follows from the rest."""

    values: Values
    group: str
    usual: Any = None
    help: str = ""
    letter: str = ""  # that stands for the value in help
    example: str = ""  # what to give instead of a value that is refused
    lengths: bool = False  # it says how lengths are read
    file: bool = False  # it may name a file
    control: str = ""  # what the explorer calls it, which has a control for it
    stops: tuple[Any, ...] = ()  # of a slider
    brief: bool = False  # the short help tells of it

    def refuse(self, name: str, value: Any) -> None:
        if value is None and self.usual is None:
            return
        if not self.values.holds(value):
            fix = self.example or self.values.expected
            if self.values.type is int and (isinstance(value, bool) or not hasattr(value, "__index__")):
                fix = f"give {self.values.expected}"
            raise InputError(f"--{name.replace('_', '-')} is {value!r:.40}", fix=fix)


def _field(values: Values, group: str, usual: Any = None, **how: Any) -> Any:
    return field(default=usual, metadata={"asked": Field(values, group, usual, **how)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What holds of a question whether its names have been looked up or not."""

    minibatches: int = _field(
        COUNT, BATCH, MINIBATCHES, brief=True, letter="B", help="minibatches to simulate", example="give at least 1",
        control="minibatches drawn", stops=(4, 8, 16, 50, 200),
    )  # fmt: skip
    seed: int = _field(FROM_ZERO, BATCH, 0, letter="S", help="random seed of the shuffle")
    in_order: bool = _field(FLAG, BATCH, False, help="keep the recorded order, RL steps and groups")
    whole: bool = _field(
        FLAG, ROWS, False, help="the trace is the whole dataset, not a sample of it"
    )  # fmt: skip
    trainer: str | None = _field(
        TEXT, ROWS, brief=True, letter="T", help="rank what this trainer runs by itself, such as trl",
    )  # fmt: skip
    field: bool = _field(FLAG, ROWS, False, help="also compare the balancers of verl, TRL, NeMo-RL and torchtitan")
    price: float | None = _field(
        AMOUNT, ROWS, brief=True, letter="P", help="dollars per GPU-hour", control="dollars of a GPU-hour",
        example="give dollars for a GPU-hour, such as 2.5",
    )  # fmt: skip
    epochs: float | None = _field(
        POSITIVE, ROWS, brief=True, letter="E", help="epochs of the whole run, to tell its hours and cost",
        example="give more than 0, such as 3", control="epochs", stops=(1, 2, 3, 5, 10),
    )  # fmt: skip

    def __post_init__(self) -> None:
        for name, about in TERMS.items():
            about.refuse(name, getattr(self, name))

    def inputs(self) -> dict[str, Any]:
        """What was asked, by the names of the command line."""
        return {name: getattr(self, name) for name in TERMS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Question(Terms):
    """A question by names and paths, as somebody asks it. Nothing has been looked up."""

    trace: Any = _field(  # noqa: RUF009 - of any type, and as frozen as the rest
        TEXT, QUESTION, brief=True, lengths=True, file=True, letter="TRACE",
        control="lengths: a name, a file or a spec",
        help="a file of sequence lengths, a named trace, or a spec; names: 'odcsim trace list'",
    )  # fmt: skip
    column: str | None = _field(TEXT, QUESTION, lengths=True, letter="C", help="the file's column with the lengths")
    tokenizer: str | None = _field(
        TEXT, QUESTION, lengths=True, file=True, letter="DIR",
        help="tokenize texts and conversations with the tokenizer.json and chat template in DIR",
    )  # fmt: skip
    sample: int = _field(
        FROM_ZERO, QUESTION, 0, lengths=True, letter="N", help="tokenize only N rows, drawn at random; 0: all"
    )  # fmt: skip
    truncate: int | None = _field(
        LENGTH, QUESTION, brief=True, lengths=True, letter="T", help="truncate samples to T tokens"
    )
    drop_over: int | None = _field(
        LENGTH, QUESTION, lengths=True, letter="T", help="drop samples over T tokens; ids count the rest"
    )  # fmt: skip
    skip_bad: bool = _field(
        FLAG, QUESTION, False, lengths=True, help="skip rows that are no sample, and report them; ids count the rest"
    )  # fmt: skip
    model: str = _field(
        TEXT, MACHINES, "", brief=True, file=True, letter="M", control="model: a name or a config.json",
        help="a name of 'odcsim catalog list', or a config.json",
    )  # fmt: skip
    gpu: str | None = _field(
        TEXT, MACHINES, brief=True, file=True, letter="G", control="GPU",
        help="a name of 'odcsim catalog list', or a TOML file",
    )  # fmt: skip
    profile: str | None = _field(
        TEXT, MACHINES, brief=True, file=True, letter="F",
        help="measured times (JSON), instead of estimates",
        example="give a file, which odcsim.fit writes as its output",
    )  # fmt: skip
    devices: int = _field(
        COUNT, MACHINES, 8, brief=True, letter="N", help="number of GPUs (ranks)", example="give at least 1",
        control="devices", stops=(2, 4, 8, 16, 32, 64),
    )  # fmt: skip
    devices_per_node: int | None = _field(COUNT, MACHINES, letter="N", help="GPUs per node (usual for the GPU)")
    cluster: str | None = _field(
        TEXT, MACHINES, file=True, letter="FILE", help="TOML file: devices_per_node, nics_per_node, nic_gbit_s, ..."
    )  # fmt: skip
    on_demand_cost: float = _field(
        AMOUNT, STEP, 0.0, letter="S", example="give seconds of a minibatch, such as 1.3",
        help="seconds that another engine's on-demand adds to each minibatch beside transfers; nobody has proven any",
    )  # fmt: skip
    minibatch: int | None = _field(
        COUNT, BATCH, brief=True, letter="K", help="samples per GPU and optimizer step",
        example="give at least 1", control="samples per device and step", stops=(1, 2, 4, 8, 16),
    )  # fmt: skip
    global_batch: int | None = _field(
        COUNT, BATCH, brief=True, letter="B", help="samples per optimizer step, on all GPUs together"
    )
    max_tokens: int | None = _field(
        LIMIT, BATCH, brief=True, letter="T", help="token limit of a microbatch (the fastest that fits)"
    )  # fmt: skip
    recipe: Recipe = USUAL

    def __post_init__(self) -> None:
        for name, about in FIELDS.items():
            if name != "trace":  # lengths themselves may be given
                about.refuse(name, getattr(self, name))
        if self.minibatch and self.global_batch:
            fix = "one says the other: leave one out"
            raise InputError(f"--minibatch {self.minibatch} and --global-batch {self.global_batch}", fix=fix)

    @property
    def share(self) -> int:
        """Samples of a device in a minibatch."""
        if self.global_batch is None:
            return self.minibatch or MINIBATCH
        if self.global_batch % self.devices:
            fix = f"give a multiple of {self.devices}, such as {self.devices * -(-self.global_batch // self.devices)}"
            raise InputError(f"--global-batch {self.global_batch} does not divide by {self.devices} devices", fix=fix)
        return self.global_batch // self.devices


def _declared(kind: type[Terms]) -> dict[str, Field]:
    """Names and paths first, as one asks."""
    known = {f.name: f.metadata["asked"] for f in fields(kind) if "asked" in f.metadata}
    return {name: known[name] for name in sorted(known, key=lambda name: name in Terms.__dataclass_fields__)}


TERMS: Mapping[str, Field] = _declared(Terms)
FIELDS: Mapping[str, Field] = _declared(Question)
LENGTHS = tuple(name for name, about in FIELDS.items() if about.lengths)


def _said(name: str, value: Any) -> Any:
    """A number that is written as on a command line; and a path as text, where a field may name a file: of lengths a
    path says that it is none of their names."""
    if name == "trace" or name not in FIELDS:
        return value
    if FIELDS[name].file and isinstance(value, os.PathLike):
        return os.fspath(value)
    return FIELDS[name].values.read(f"--{name.replace('_', '-')}", value)


def question_of(words: Mapping[str, Any]) -> Question:
    """A question by the words of a command line or a grid, those of its recipe among them."""
    choices = {*CHOICES, PART}
    known = {*FIELDS, *choices, "recipe"}
    if odd := [name for name in words if name not in known]:
        raise unexpected("ask", odd[0], [*known])
    rest = {name: _said(name, value) for name, value in words.items() if name not in choices}
    return Question(**({"recipe": recipe_of(words)} | rest))

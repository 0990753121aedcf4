"""What is asked: one value, whose fields are declared once.

The flags of every command, `odcsim.ask`, the keys and columns of a sweep, the explorer's controls and links, and the
inputs that a result repeats follow from the fields here, as those of a step follow from the fields of `Recipe`. A new
field is a line here, and the place that acts on it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from odcsim.errors import InputError, unexpected
from odcsim.option import (
    AMOUNT,
    BATCH,
    COUNT,
    DATA,
    FLAG,
    FROM_ZERO,
    LENGTH,
    LIMIT,
    MACHINES,
    POSITIVE,
    ROWS,
    STEP,
    TEXT,
    flag,
    option,
    options_of,
)
from odcsim.recipe import CHOICES, PART, USUAL, Recipe, recipe_of

MINIBATCHES, MINIBATCH = 200, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What holds of a question whether its names have been looked up or not."""

    minibatches: int = option(COUNT, BATCH, MINIBATCHES, brief=True, letter="B", help="minibatches to simulate",
        example="give at least 1", control="minibatches drawn", stops=(4, 8, 16, 50, 200))  # fmt: skip
    seed: int = option(FROM_ZERO, BATCH, 0, letter="S", help="random seed of the shuffle")
    in_order: bool = option(FLAG, BATCH, False, help="keep the recorded order, RL steps and groups")
    group_by_length: bool = option(FLAG, BATCH, False,
        help="draw batches of samples alike in length, as transformers does where it is told so")  # fmt: skip
    whole: bool = option(FLAG, ROWS, False, help="the trace is the whole dataset, not a sample of it")
    trainer: str | None = option(TEXT, ROWS, brief=True, letter="T",
        help="rank what this trainer runs by itself, such as trl")  # fmt: skip
    field: bool = option(FLAG, ROWS, False, help="also compare the balancers of verl, TRL, NeMo-RL and torchtitan")
    price: float | None = option(AMOUNT, ROWS, brief=True, letter="P", help="dollars per GPU-hour",
        example="give dollars for a GPU-hour, such as 2.5", control="dollars of a GPU-hour")  # fmt: skip
    epochs: float | None = option(POSITIVE, ROWS, brief=True, letter="E",
        help="epochs of the whole run, to tell its hours and cost",
        example="give more than 0, such as 3", control="epochs", stops=(1, 2, 3, 5, 10))  # fmt: skip

    def __post_init__(self) -> None:
        self._refuse(TERMS)
        if self.in_order and self.group_by_length:
            raise InputError(
                "--in-order and --group-by-length", fix="each says which samples a batch has: leave one out"
            )

    def _refuse(self, options: Mapping[str, Any]) -> None:
        for name, about in options.items():
            value = getattr(self, name)
            if name != "trace" and not (value is None and about.usual is None):  # lengths themselves may be given
                about.refuse(flag(name), value)

    def inputs(self) -> dict[str, Any]:
        """What was asked, by the names of the command line."""
        return {name: getattr(self, name) for name in TERMS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Question(Terms):
    """A question by names and paths, as somebody asks it. Nothing has been looked up."""

    trace: Any = option(TEXT, DATA, brief=True, lengths=True, file=True, letter="TRACE",  # noqa: RUF009 - as frozen
        help="a file of sequence lengths, a named trace, or a spec; names: 'odcsim trace list'",
        control="lengths: a name, a file or a spec")  # fmt: skip
    column: str | None = option(TEXT, DATA, lengths=True, letter="C", help="the file's column with the lengths")
    tokenizer: str | None = option(TEXT, DATA, lengths=True, file=True, letter="DIR",
        help="tokenize texts and conversations with the tokenizer.json and chat template in DIR")  # fmt: skip
    sample: int = option(FROM_ZERO, DATA, 0, lengths=True, letter="N",
        help="tokenize only N rows, drawn at random; 0: all")  # fmt: skip
    truncate: int | None = option(LENGTH, DATA, brief=True, lengths=True, letter="T",
        help="truncate samples to T tokens")  # fmt: skip
    drop_over: int | None = option(LENGTH, DATA, lengths=True, letter="T",
        help="drop samples over T tokens; ids count the rest")  # fmt: skip
    skip_bad: bool = option(FLAG, DATA, False, lengths=True,
        help="skip rows that are no sample, and report them; ids count the rest")  # fmt: skip
    model: str = option(TEXT, MACHINES, "", brief=True, file=True, letter="M",
        help="a name of 'odcsim catalog list', or a config.json",
        control="model: a name or a config.json")  # fmt: skip
    gpu: str | None = option(TEXT, MACHINES, brief=True, file=True, letter="G",
        help="a name of 'odcsim catalog list', or a TOML file", control="GPU")  # fmt: skip
    profile: str | None = option(TEXT, MACHINES, brief=True, file=True, letter="F",
        help="measured times (JSON), instead of estimates",
        example="give a file, which odcsim.fit writes as its output")  # fmt: skip
    devices: int = option(COUNT, MACHINES, 8, brief=True, letter="N", help="number of GPUs (ranks)",
        example="give at least 1", control="devices", stops=(1, 2, 4, 8, 16, 32, 64))  # fmt: skip
    devices_per_node: int | None = option(COUNT, MACHINES, letter="N", help="GPUs per node (usual for the GPU)")
    cluster: str | None = option(TEXT, MACHINES, file=True, letter="FILE",
        help="TOML file: devices_per_node, nics_per_node, nic_gbit_s, ...")  # fmt: skip
    on_demand_cost: float = option(AMOUNT, STEP, 0.0, letter="S",
        help="seconds that another engine's on-demand adds to each minibatch beside transfers; nobody has proven any",
        example="give seconds of a minibatch, such as 1.3")  # fmt: skip
    minibatch: int | None = option(COUNT, BATCH, brief=True, letter="K",
        help="samples per GPU (or --context group) and step",
        example="give at least 1", control="samples per device and step", stops=(1, 2, 4, 8, 16))  # fmt: skip
    global_batch: int | None = option(COUNT, BATCH, brief=True, letter="B",
        help="samples per optimizer step, on all GPUs together")  # fmt: skip
    max_tokens: int | None = option(LIMIT, BATCH, brief=True, letter="T",
        help="token limit of a microbatch (the fastest that fits)")  # fmt: skip
    recipe: Recipe = USUAL

    def __post_init__(self) -> None:
        self._refuse(FIELDS)
        if self.minibatch and self.global_batch:
            fix = "one says the other: leave one out"
            raise InputError(f"--minibatch {self.minibatch} and --global-batch {self.global_batch}", fix=fix)

    @property
    def share(self) -> int:
        """Samples of a device in a minibatch, or of those that share each sequence."""
        if self.global_batch is None:
            return self.minibatch or MINIBATCH
        count = self.workers
        if self.global_batch % count:
            fix = f"give a multiple of {count}, such as {count * -(-self.global_batch // count)}"
            who = self.counted_workers
            raise InputError(f"--global-batch {self.global_batch} does not divide by {who}", fix=fix)
        return self.global_batch // count

    @property
    def workers(self) -> int:
        """Who each run microbatches of their own."""
        return self.recipe.workers(self.devices)

    @property
    def counted_workers(self) -> str:
        each = self.recipe.context
        return f"{self.workers} devices" if each == 1 else f"{self.workers} groups of {each} devices"


TERMS = options_of(fields(Terms))
# Names and paths first, as one asks.
FIELDS = {name: one for name, one in options_of(fields(Question)).items() if name not in TERMS} | TERMS
LENGTHS = tuple(name for name, about in FIELDS.items() if about.lengths)


def question_of(words: Mapping[str, Any]) -> Question:
    """A question by the words of a command line or a grid, those of its recipe among them."""
    names = {*FIELDS, *CHOICES, PART, "recipe"}
    if odd := [name for name in words if name not in names]:
        raise unexpected("ask", odd[0], [*names])
    values: dict[str, Any] = {"recipe": words["recipe"] if "recipe" in words else recipe_of(words)}
    for name in FIELDS:
        if name in words:  # of lengths a path says that it is none of their names
            values[name] = words[name] if name == "trace" else FIELDS[name].from_python(words[name])
    return Question(**values)

"""What is chosen about how one step of training is run: one value, passed on whole.

Both command lines, `odcsim.ask`, the header of a timeline and the inputs of a comparison follow from the fields here. A
new choice is a field, and the place that acts on it.
"""

from dataclasses import dataclass, field, fields
from typing import Any

from odcsim.errors import InputError, nearest
from odcsim.program import SHARDINGS, SYNCS, Program, program

ACCUMULATE = ("locked", "slots")
DTYPES = ("float32", "bfloat16")


@dataclass(frozen=True, slots=True)
class Choice:
    """How a field is asked for, and told."""

    usual: Any
    help: str = ""
    values: tuple[str, ...] = ()  # of a text; none: whatever the place that acts on it takes
    words: str = ""  # what follows a model's name where the value is not the usual one
    flag: bool = True  # command lines ask for it
    compared: bool = False  # a comparison tries every value; who runs but one has to say which
    engine: bool = False  # the engine's alone: predictions do not know it


def _chosen(usual: Any, **how: Any) -> Any:
    return field(default=usual, metadata={"choice": Choice(usual, **how)})


@dataclass(frozen=True, slots=True)
class Recipe:
    """The choices, with their usual values."""

    sync: str = _chosen("on-demand", values=SYNCS, compared=True)
    prefetch: str = _chosen("fsdp2", flag=False)
    recompute: bool = _chosen(
        True,
        help="layers keep their activations, and backward does not run their forward again",
        words="without recompute",
    )
    sharding: str = _chosen(
        "full",
        values=SHARDINGS,
        help="hybrid: every node holds all parameters, so that layers' transfers stay inside it",
    )
    accumulate: str = _chosen("locked", values=ACCUMULATE, engine=True, help="slots: the same bits always")
    # Of weights on their way, and what is computed in; masters and sums are fp32. A prediction takes its profile's.
    dtype: str = _chosen("float32", values=DTYPES, engine=True, help="to compute in and to move (float32)")

    def __post_init__(self) -> None:
        for name, choice in CHOICES.items():
            value = getattr(self, name)
            if type(value) is not type(choice.usual):
                raise InputError(f"{name} is {value!r}", fix=f"give a value such as {choice.usual!r}")
            if choice.values and value not in choice.values:
                raise InputError(f"unknown {name} '{value}'", fix=nearest(value, list(choice.values)))

    def program(self, layers: int, microbatches: int) -> Program:
        """The steps of a minibatch by this recipe."""
        return program(layers, microbatches, self.sync, self.prefetch, self.sharding)

    @property
    def words(self) -> str:
        """What is not as usual, behind a model's name."""
        return "".join(f" {CHOICES[name].words}" for name in self._unusual() if CHOICES[name].words)

    def inputs(self) -> dict[str, Any]:
        """What a comparison was asked, by the names of the command line."""
        return {name: getattr(self, name) for name in flags() if not CHOICES[name].compared}

    def header(self) -> dict[str, Any]:
        """What a file says, by name. The engine's own choices are left out where they are as usual."""
        unusual = self._unusual()
        return {name: getattr(self, name) for name, c in CHOICES.items() if not c.engine or name in unusual}

    def differs(self, other: "Recipe") -> list[str]:
        """The names of what a prediction by one would say falsely of the other."""
        return [n for n, c in CHOICES.items() if not c.engine and getattr(self, n) != getattr(other, n)]

    def _unusual(self) -> list[str]:
        return [name for name, choice in CHOICES.items() if getattr(self, name) != choice.usual]


CHOICES: dict[str, Choice] = {f.name: f.metadata.get("choice", Choice(f.default)) for f in fields(Recipe)}
USUAL = Recipe()


def flags(*, engine: bool = False) -> tuple[str, ...]:
    """The names of what a command line asks for: the simulator's, or the engine's."""
    return tuple(name for name, choice in CHOICES.items() if choice.flag and (engine or not choice.engine))


def flag(name: str) -> str:
    """How a command line asks for another value than the usual one."""
    word = name.replace("_", "-")
    return f"--no-{word}" if CHOICES[name].usual is True else f"--{word}"

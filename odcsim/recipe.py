"""What is chosen about how one step of training is run: one value, passed on whole.

What a step does are fields of `Recipe`. Which kernels and stack an estimate of its seconds assumes are fields of
`Kernels`, inside it: measured seconds are those of whatever ran. Both command lines, `odcsim.ask`, files of a recipe,
the header of a timeline and the inputs of a comparison follow from the fields of both, by their names alone. A new
choice is a field, and the place that acts on it.
"""

import argparse
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from odcsim.errors import InputError, nearest
from odcsim.option import STEP, Option, option, options_of, values_of
from odcsim.program import EXCHANGES, SHARDINGS, SYNCS, WHOLE, Program, program, sync_named
from odcsim.support.command import rare
from odcsim.support.printing import printable

if TYPE_CHECKING:
    from odcsim.model import Model
    from odcsim.support.values import Given

ACCUMULATE = ("locked", "slots")
RECOMPUTE = ("full", "operators", "layers", "none")
PRECISIONS = ("bf16", "fp8")
FAR = ("each", "hierarchical")
# Of each value, as people say it behind a model's name.
RECOMPUTE_WORDS = {
    "full": "with full recompute",
    "operators": "with selective recompute of cheap operators",
    "layers": "with recompute of every second layer",
    "none": "without recompute",
}
STACK_WORDS = {"tuned": "with a fused optimizer", "compiled": "with torch.compile", "plain": "without fused kernels"}
LOSS_WORDS = {"chunked": "with logits in chunks", "whole": "with all logits at once", "policy": "with a policy loss"}
# Of the matmuls of a forward that recompute by operator runs again: every second one is kept, and attention is.
SELECTIVE_MATMULS = 0.5
# What of a forward backward runs again: of its matmuls, of what it moves, of its attention.
AGAIN = {
    "full": (1.0, 1.0, 1.0),
    "operators": (SELECTIVE_MATMULS, 1.0, 0.0),
    "layers": (0.5, 0.5, 0.5),
    "none": (0.0, 0.0, 0.0),
}
# Bytes of a weight in 4 bits: a constant for each 64 weights in 8 bits, and for each 256 of these one in 32 ("double
# quantization": QLoRA, arXiv 2305.14314, section 3).
QUANTIZED = {"nf4": (4 + 8 / 64 + 32 / (64 * 256)) / 8}
LARGEST = 1e15  # of a number, as of any in a file
BY_RULE = "usual"  # the sharding of a recipe for which nobody chose one
# What else files have of two of the fields: recompute may be true or false there, and then `PART` says of what.
PART, SELECTIVE, COMPILE = "selective", ("no", "operators", "layers"), "compile"


def _choice(usual: Any, **facts: Any) -> Any:
    return option(Option(type(usual), most=LARGEST), STEP, usual, **facts)


@dataclass(frozen=True, slots=True)
class Kernels:
    """What an estimate assumes of the kernels and of the stack that calls them."""

    attention: str = _choice("usual", values=("usual", "fa2", "fa3", "cudnn", "sdpa", "eager", "triton"),
        estimated=True, words="with attention by {}",
        help="attention kernel; usual: what most people run on this GPU")  # fmt: skip
    stack: str = _choice("tuned", values=("tuned", "compiled", "plain"), beside={f"--{COMPILE}": "compiled"},
        estimated=True, words=STACK_WORDS,
        help="kernels beside attention and matmuls; tuned: fused optimizer and loss; compiled: torch.compile; plain: a "
        "trainer as it comes, nothing fused (tuned)")  # fmt: skip
    precision: str = _choice("bf16", values=PRECISIONS, estimated=True, words="in {}",
        help="precision of the layers' matmuls (bf16)")  # fmt: skip
    loss: str = _choice("chunked", values=("chunked", "whole", "policy"), estimated=True, words=LOSS_WORDS,
        help="logits; chunked: a part at a time, as Liger's fused loss; whole: those of a whole microbatch at once; "
        "policy: RL loss with entropy, in chunks (chunked)",
    )  # fmt: skip


KERNELS = tuple(f.name for f in fields(Kernels))


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a step does, with usual values."""

    sync: str = _choice("on-demand", values=SYNCS, compared=True,
        help="how ranks communicate; collective: FSDP as it is; deferred: gradients are reduced with the last "
        "microbatch alone (no_sync); on-demand: each rank gathers and pushes by itself, and all meet once a step",
    )  # fmt: skip
    prefetch: str = _choice("fsdp2", hidden=True)
    recompute: str = _choice("full", values=RECOMPUTE,
        also={"selective": "operators", True: "full", False: "none"},  # the first as Megatron calls it
        beside={"--no-recompute": "none", f"--{PART}": dict(zip(SELECTIVE, RECOMPUTE, strict=False))},
        searched=True, brief=True, control="recompute (activation checkpointing)", stops=RECOMPUTE,
        estimated=True, measured=("full", "none"),
        words=RECOMPUTE_WORDS,
        help="activation checkpointing (full); full: every layer; operators: selective, cheap operators alone; "
        "layers: every second layer",
    )  # fmt: skip
    sharding: str = _choice(BY_RULE, values=(BY_RULE, *SHARDINGS),
        searched=True, brief=True, control="sharding (full: FSDP, hybrid: HSDP, none: DDP)",
        stops=(BY_RULE, *SHARDINGS),
        help="sharding: FSDP (ZeRO-3), HSDP, DDP, or by rule (usual); hybrid (HSDP): every node holds all parameters; "
        "none (DDP): every GPU does; usual: predictions take hybrid where several nodes hold it")  # fmt: skip
    context: int = _choice(1, least=1, expected="a whole number from 1", predicted=True,
        words="with context parallelism over {} GPUs", example="give how many GPUs share each sequence, such as 4",
        help="context parallelism: groups of this many GPUs share each sequence, and all-gather keys and values (1)",
    )  # fmt: skip
    accumulate: str = _choice("locked", values=ACCUMULATE, engine=True,
        help="sums of gradients; locked: all ranks add into one, in any order; slots: one for each rank, bitwise "
        "reproducible (locked)")  # fmt: skip
    # Of weights on their way, and what is computed in; masters and sums are fp32. A prediction takes its profile's.
    dtype: str = _choice("float32", values=("float32", "bfloat16"), engine=True,
        help="type to compute and communicate in (float32)")  # fmt: skip
    kernels: Kernels = Kernels()
    optimizer: str = _choice("fp32", values=("fp32", "bf16", "8bit", "pure"),
        estimated=True, words="with AdamW moments in {}",
        help="type of AdamW's moments; pure: bf16, weights and gradients, too (fp32)")  # fmt: skip
    offload: bool = _choice(False, estimated=True, words="with states offloaded",
        help="keep optimizer states in host memory")  # fmt: skip
    lora: int = _choice(0, estimated=True, words="with adapters of rank {}",
        help="train only LoRA adapters of this rank")  # fmt: skip
    quantization: str = _choice("none", values=("none", *QUANTIZED), estimated=True, predicted=True,
        words="with frozen weights in {}",
        help="QLoRA: the weights below the adapters in 4 bits, nf4 with double quantization (none)")  # fmt: skip
    copies: str = _choice("kernels", values=("kernels", "engines"), estimated=True, words="with copy {}",
        help="what gathers parameters: SM kernels, or the GPU's copy engines (kernels)")  # fmt: skip
    exchange: str = _choice("end", values=EXCHANGES, hidden=True)
    reduce: str = _choice("fp32", values=("fp32", "bf16"), words="with gradients sent in {}",
        help="type in which gradients are sent (fp32)")  # fmt: skip
    reshard: bool = _choice(True, words="without resharding after forward",
        help="keep layers gathered from forward to backward: no second all-gather, more memory")  # fmt: skip
    streams: str = _choice("one", values=("one", "two"), predicted=True, words="with {} streams of collectives",
        help="NCCL streams; two: reduce-scatters do not wait for all-gathers (one)")  # fmt: skip
    far: str = _choice("each", values=FAR, words="with {} transfers",
        help="on-demand transfers between nodes; each: every GPU by itself; hierarchical: once for all GPUs of a node "
        "(each)")  # fmt: skip

    def __post_init__(self) -> None:
        for name, choice in CHOICES.items():
            choice.refuse(name, self.value(name))

    def by(self, **words: Any) -> "Recipe":
        """The same but for these choices, those of its kernels among them."""
        own = nested(words)
        return replace(self, **own | {"kernels": replace(self.kernels, **own["kernels"])})

    def value(self, name: str) -> Any:
        """Of a choice, the kernels' among them."""
        return getattr(self.kernels if name in KERNELS else self, name)

    def program(self, layers: int, microbatches: int) -> Program:
        """The steps of a minibatch by this recipe."""
        return program(
            layers,
            microbatches,
            self.sync,
            self.prefetch,
            sharding=self.sharded("full").sharding,
            exchange=self.exchange,
            reshard=self.reshard,
            streams=self.streams,
            hierarchical=self.hierarchical,
        )

    def workers(self, gpus: int) -> int:
        """Who each run microbatches of their own: a group of the GPUs that share each sequence is one."""
        if gpus % self.context:
            problem = f"--context {self.context} does not divide {gpus} devices"
            raise InputError(problem, fix="give how many GPUs share each sequence: a divisor of the devices")
        return gpus // self.context

    def sharded(self, how: str) -> "Recipe":
        """Sharded so, where nobody chose."""
        return replace(self, sharding=how) if self.sharding == BY_RULE else self

    def on(self, nodes: int) -> "Recipe":
        """As it is run: on one node hybrid sharding is full, and only who meets exchanges by layer. What a node brings
        in once it keeps, as under hybrid sharding, but nobody waits for all of it. Where neither a person chose the
        sharding nor a rule that knows memory, it is full, as FSDP2's is of one mesh."""
        return _on(self.sharded("full"), nodes)

    @property
    def one_sided(self) -> bool:
        """Whether devices gather and push by themselves, and meet at the ends of minibatches alone."""
        return not sync_named(self.sync).meets

    @property
    def hierarchical(self) -> bool:
        """Whether a node brings in what is far once, for all its devices."""
        return self.far == "hierarchical"

    @property
    def sent(self) -> int:
        """Bytes of a gradient's element on its way."""
        return 2 if self.reduce == "bf16" else 4

    @property
    def quantized(self) -> float:
        """Bytes of a layer's weight, at rest and on its way, where it is in few bits; 0: it is not."""
        return QUANTIZED.get(self.quantization, 0.0) if self.lora else 0.0

    @property
    def recomputes(self) -> bool:
        """Whether backward runs any of its layer's forward again."""
        return self.recompute != "none"

    @property
    def words(self) -> str:
        """What is not as usual, behind a model's name."""
        return self._phrases(self.unusual)

    @property
    def full_words(self) -> str:
        """The same, and full recompute, which is usual and what not everybody runs: an advice may choose less."""
        return self._phrases([name for name in CHOICES if name == "recompute" or name in self.unusual])

    def _phrases(self, names: Iterable[str]) -> str:
        words = ", ".join(filter(None, (CHOICES[name].phrase(self.value(name)) for name in names)))
        return f" {words}" if words else ""

    def check_quantization(self) -> None:
        """Refuse weights in few bits that are trained."""
        if self.quantization in QUANTIZED and not self.lora:
            problem = f"--quantization {self.quantization} without --lora"
            raise InputError(problem, fix="only frozen weights are quantized: add --lora 16")

    def check_adapters(self, model: "Model") -> None:
        """Refuse a rank that no weight has: of a slip of the finger the adapters would fill a machine."""
        if self.lora > model.hidden:
            problem = f"--lora {self.lora:,} is over the width of {model.name}"
            raise InputError(problem, fix=f"adapters have at most {model.hidden:,} columns")

    def inputs(self) -> dict[str, Any]:
        """What a comparison was asked, by the names of the command line."""
        return self.written(ASKED)

    def header(self) -> dict[str, Any]:
        """What a file says, by name. The engine's own choices are left out where they are as usual."""
        unusual = self.unusual
        return self.written(name for name, c in CHOICES.items() if not c.engine or name in unusual)

    def written(self, names: Iterable[str]) -> dict[str, Any]:
        """These fields as files have them: recompute is true or false, and `selective` says of what."""
        values = {name: self.value(name) for name in names}
        if "recompute" in values:
            values["recompute"] = self.recomputes
            values[PART] = self.recompute if self.recompute in SELECTIVE else "no"
        return values

    def differs(self, other: "Recipe") -> list[str]:
        """The names of what a prediction by one would say falsely of the other."""
        return [n for n, c in CHOICES.items() if not c.engine and self.value(n) != other.value(n)]

    @property
    def estimated(self) -> list[str]:
        """Non-default fields that a measured profile cannot account for."""
        names = [name for name in self.unusual if CHOICES[name].estimated]
        return [name for name in names if self.value(name) not in CHOICES[name].measured]

    @property
    def unusual(self) -> list[str]:
        """The names of what is not as most people run it."""
        return [name for name, choice in CHOICES.items() if self.value(name) != choice.usual]


# In the order of the fields, those of the kernels in their place.
CHOICES = options_of(one for of in fields(Recipe) for one in (fields(Kernels) if of.name == "kernels" else (of,)))
USUAL = Recipe()


@lru_cache(maxsize=256)
def _on(recipe: Recipe, nodes: int) -> Recipe:
    """Asked for with every transfer of every minibatch."""
    if recipe.one_sided and recipe.streams != "one":
        return _on(replace(recipe, streams="one"), nodes)  # it has both anyway
    if recipe.sharding == WHOLE:  # on demand nothing runs so: it gathers from shards
        return replace(recipe, sharding="full" if recipe.one_sided else WHOLE, exchange="end", far="each")
    if nodes == 1:
        return replace(recipe, sharding="full", exchange="end", far="each")
    if not recipe.one_sided:
        return replace(recipe, far="each", exchange=recipe.exchange if recipe.sharding == "hybrid" else "end")
    return replace(recipe, sharding="hybrid" if recipe.hierarchical else recipe.sharding, exchange="end")


def flags(*, engine: bool = False) -> tuple[str, ...]:
    """The names of what a command line asks for: the simulator's, or the engine's."""
    return tuple(n for n, c in CHOICES.items() if not (c.hidden or (c.predicted if engine else c.engine)))


def fields_of(words: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that words choose, of which files and older calls have recompute as true or false, with `selective`
    beside it. Without recompute nothing is left to select from."""
    chosen = {name: value for name, value in words.items() if name in CHOICES}
    if type(part := words.get(PART, "no")) is not str or part not in SELECTIVE:
        raise InputError(f"unknown {PART} '{part}'", fix=nearest(str(part), list(SELECTIVE)))
    again = chosen.get("recompute", PART in words or None)
    if again is False:
        chosen["recompute"] = "none"
    elif again is True or again == "full":
        chosen["recompute"] = "full" if part == "no" else part
    return chosen


def nested(chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Fields as a recipe has them: those of its kernels by themselves."""
    own = {name: value for name, value in chosen.items() if name not in KERNELS}
    return own | {"kernels": {name: value for name, value in chosen.items() if name in KERNELS}}


def recipe_of(words: Mapping[str, Any]) -> Recipe:
    """By the words of a command line, a file or a call."""
    return USUAL.by(**fields_of(words))


ASKED = tuple(name for name in flags() if not CHOICES[name].compared)  # of every comparison
SEARCHED = tuple(name for name in ASKED if CHOICES[name].searched)  # by an advice


# The same in a file, and on both command lines.

KEYS = (*(name for name, choice in CHOICES.items() if not choice.hidden), PART, COMPILE)


def read_key(key: str, given: "Given") -> dict[str, Any]:
    """What one of `KEYS` says in a file, of which `fields_of` makes fields."""
    if key == COMPILE:
        return {"stack": "compiled"} if given.flag() else {}
    return {key: given.one_of(SELECTIVE) if key == PART else CHOICES[key].from_file(given)}


def read_file(path: Path | str) -> dict[str, Any]:
    """The fields that a file chooses, in TOML. Those that one command alone acts on are read for all."""
    import tomllib

    from odcsim.support.inputs import read_text, reading
    from odcsim.support.values import Given

    words: dict[str, Any] = {}
    with reading(path, missing="give a recipe's TOML file", expected="TOML"):
        content = tomllib.loads(read_text(path))
    for key, value in content.items():
        if key not in KEYS:
            raise InputError(f"unknown key {key!r:.40}", where=str(path), fix=nearest(key, list(KEYS)))
        words |= read_key(key, Given(key, value, str(path)))
    return fields_of(words)


def add_recipe(parser: "argparse._ActionsContainer", names: Iterable[str]) -> None:
    """Flags that ask for these fields, and for a file of them: flags win."""
    chosen = tuple(names)
    words = "TOML file with values for these options"
    rare(parser.add_argument("--recipe", action=_File, const=chosen, metavar="FILE", help=words))
    for name in chosen:
        CHOICES[name].add_flag(parser, required=CHOICES[name].compared)


class _File(argparse.Action):
    """What a file chooses is not asked for again."""

    def __call__(self, parser: argparse.ArgumentParser, args: argparse.Namespace, path: Any, _: Any = None) -> None:
        try:
            words = read_file(path)
        except InputError as error:
            print(f"{parser.prog}: error: {printable(str(error))}", file=sys.stderr)
            raise SystemExit(2) from None
        if idle := ", ".join(name for name in words if name not in self.const):
            print(f"{parser.prog}: leaves out {idle} of {printable(str(path))}: no flag here", file=sys.stderr)
        args.recipe, args.recipe_file = {name: words[name] for name in words if name in self.const}, str(path)
        for action in parser._actions:
            action.required = action.required and action.dest not in words


def recipe_words(args: argparse.Namespace) -> dict[str, Any]:
    """What a command line says of a recipe, else its file: the rest is as usual."""
    return {**(args.recipe or {}), **values_of(args, CHOICES)}

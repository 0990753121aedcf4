"""What is chosen about how one step of training is run: one value, passed on whole.

What a step does are fields of `Recipe`. Which kernels and stack an estimate of its seconds assumes are fields of
`Kernels`, inside it: measured seconds are those of whatever ran. Both command lines, `odcsim.ask`, the header of a
timeline and the inputs of a comparison follow from the fields of both, by their names alone. A new choice is a field,
and the place that acts on it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from typing import Any

from odcsim.errors import InputError, nearest
from odcsim.program import EXCHANGES, SHARDINGS, SYNCS, Program, program, sync_named

ACCUMULATE = ("locked", "slots")
DTYPES = ("float32", "bfloat16")
RECOMPUTE = ("full", "operators", "layers", "none")
PART = "selective"  # a key beside `recompute`, which files have as true or false, and what it says
SELECTIVE = ("no", "operators", "layers")
ATTENTION = ("usual", "fa2", "fa3", "cudnn", "sdpa", "eager", "triton")
STACKS = ("tuned", "compiled", "plain")
PRECISIONS = ("bf16", "fp8")
LOSSES = ("chunked", "whole", "policy")
OPTIMIZERS = ("fp32", "bf16", "8bit", "pure")
COPIES = ("kernels", "engines")
REDUCE = ("fp32", "bf16")
STREAMS = ("one", "two")
FAR = ("each", "hierarchical")
BY_RULE = "usual"  # the sharding of a recipe for which nobody chose one


@dataclass(frozen=True, slots=True)
class Choice:
    """How a field is asked for, and told."""

    usual: Any
    help: str = ""
    values: tuple[str, ...] = ()  # of a text; none: whatever the place that acts on it takes
    words: str = ""  # what follows a model's name where the value is not the usual one; {} is the value
    none: str = ""  # the same of the value "none"
    flag: bool = True  # command lines ask for it
    compared: bool = False  # a comparison tries every value; who runs but one has to say which
    engine: bool = False  # the engine's alone: predictions do not know it
    predicted: bool = False  # predictions' alone: the engine does not run it
    searched: bool = False  # an advice chooses it
    brief: bool = False  # the short help tells of it
    control: str = ""  # what the explorer calls it, which has a control for it
    estimated: bool = False  # estimates know it; seconds that were measured hold what was chosen when they were
    measured: tuple[str, ...] = ()  # values of it that measured seconds know, too


def _chosen(usual: Any, **how: Any) -> Any:
    return field(default=usual, metadata={"choice": Choice(usual, **how)})


@dataclass(frozen=True, slots=True)
class Kernels:
    """What an estimate assumes of the kernels and of the stack that calls them."""

    attention: str = _chosen(
        "usual",
        values=ATTENTION,
        help="attention kernel; usual: what most people run on this GPU",
        words="with attention by {}",
        estimated=True,
    )
    stack: str = _chosen(
        "tuned",
        values=STACKS,
        help="software stack; compiled: torch.compile; plain: a trainer without fused kernels (tuned)",
        words="on a {} stack",
        estimated=True,
    )
    precision: str = _chosen(
        "bf16", values=PRECISIONS, help="precision of the layers' matmuls (bf16)", words="in {}", estimated=True
    )
    loss: str = _chosen(
        "chunked",
        values=LOSSES,
        help="whole: logits of a whole microbatch at once; policy: RL loss with entropy, in chunks (chunked)",
        words="with a {} loss",
        estimated=True,
    )


KERNELS = tuple(f.name for f in fields(Kernels))


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a step does, with usual values."""

    sync: str = _chosen("on-demand", values=SYNCS, compared=True, help="how ranks communicate and synchronize")
    prefetch: str = _chosen("fsdp2", flag=False)
    recompute: str = _chosen(
        "full",
        values=RECOMPUTE,
        help="activation checkpointing (full); full: every layer; operators: cheap ones; layers: every second layer",
        words="with recompute of {} alone",
        none="without recompute",
        searched=True,
        brief=True,
        control="recompute",
        estimated=True,
        measured=("full", "none"),
    )
    sharding: str = _chosen(
        BY_RULE,
        values=(BY_RULE, *SHARDINGS),
        help="sharding: FSDP (ZeRO-3), HSDP, or by rule (usual); hybrid (HSDP): every node holds all parameters; "
        "usual: predictions take it where several nodes hold it",
        searched=True,
        brief=True,
        control="sharding",
    )
    accumulate: str = _chosen(
        "locked", values=ACCUMULATE, engine=True, help="gradient sums; slots: bitwise reproducible (locked)"
    )
    # Of weights on their way, and what is computed in; masters and sums are fp32. A prediction takes its profile's.
    dtype: str = _chosen("float32", values=DTYPES, engine=True, help="type to compute and communicate in (float32)")
    kernels: Kernels = Kernels()
    optimizer: str = _chosen(
        "fp32",
        values=OPTIMIZERS,
        help="type of AdamW's moments; pure: bf16, weights and gradients, too (fp32)",
        words="with moments in {}",
        estimated=True,
    )
    offload: bool = _chosen(
        False, help="keep optimizer states in host memory", words="with states offloaded", estimated=True
    )
    lora: int = _chosen(
        0, help="train only LoRA adapters of this rank", words="with adapters of rank {}", estimated=True
    )
    copies: str = _chosen(
        "kernels",
        values=COPIES,
        help="gather with SM kernels or with copy engines (kernels)",
        words="with copy {}",
        estimated=True,
    )

    exchange: str = _chosen("end", values=EXCHANGES, flag=False)
    reduce: str = _chosen(
        "fp32", values=REDUCE, help="type in which gradients are sent (fp32)", words="with gradients sent in {}"
    )
    reshard: bool = _chosen(
        True,
        help="keep layers gathered from forward to backward: no second all-gather, more memory",
        words="without resharding after forward",
    )
    streams: str = _chosen(
        "one",
        values=STREAMS,
        help="NCCL streams; two: reduce-scatters do not wait for all-gathers (one)",
        words="with {} streams of collectives",
        predicted=True,
    )
    far: str = _chosen(
        "each",
        values=FAR,
        words="with {} transfers",
        help="on-demand transfers between nodes: each GPU fetches all; hierarchical: once per node (each)",
    )

    def __post_init__(self) -> None:
        for name, choice in CHOICES.items():
            value = self.value(name)
            if type(value) is not type(choice.usual) or (type(value) is int and value < 0):
                raise InputError(f"{name} is {value!r}", fix=f"give a value such as {choice.usual!r}")
            if choice.values and value not in choice.values:
                raise InputError(f"unknown {name} '{value}'", fix=nearest(value, list(choice.values)))

    def by(self, **words: Any) -> "Recipe":
        """The same but for these choices, those of its kernels among them."""
        own = nested(words)
        return replace(self, **own | {"kernels": replace(self.kernels, **own["kernels"])})

    def value(self, name: str) -> Any:
        """Of a choice, the kernels' among them."""
        return getattr(self.kernels if name in KERNELS else self, name)

    def program(self, layers: int, microbatches: int) -> Program:
        """The steps of a minibatch by this recipe."""
        settled = self.sharded("full")
        how = self.sync, self.prefetch, settled.sharding, self.exchange, self.reshard, self.streams, self.hierarchical
        return program(layers, microbatches, *how)

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
    def recomputes(self) -> bool:
        """Whether backward runs any of its layer's forward again."""
        return self.recompute != "none"

    @property
    def words(self) -> str:
        """What is not as usual, behind a model's name."""
        known = ((CHOICES[name], self.value(name)) for name in self._unusual())
        told = (c.none if c.none and value == "none" else c.words.format(value) for c, value in known)
        return "".join(f" {words}" for words in told if words)

    @property
    def told(self) -> str:
        """The same, and full recompute, which is usual and what not everybody runs: an advice may choose less."""
        return f"{' with full recompute' if self.recompute == 'full' else ''}{self.words}"

    def inputs(self) -> dict[str, Any]:
        """What a comparison was asked, by the names of the command line."""
        return self.written(ASKED)

    def header(self) -> dict[str, Any]:
        """What a file says, by name. The engine's own choices are left out where they are as usual."""
        unusual = self._unusual()
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
        known = {name: CHOICES[name] for name in self._unusual()}
        return [name for name, c in known.items() if c.estimated and self.value(name) not in c.measured]

    @property
    def usual(self) -> list[str]:
        """The names of what is as most people run it."""
        return [name for name, choice in CHOICES.items() if self.value(name) == choice.usual]

    def _unusual(self) -> list[str]:
        return [name for name, choice in CHOICES.items() if self.value(name) != choice.usual]


_ALL = [one for of in fields(Recipe) for one in (fields(Kernels) if of.name == "kernels" else (of,))]
CHOICES: dict[str, Choice] = {one.name: one.metadata["choice"] for one in _ALL}
USUAL = Recipe()


@lru_cache(maxsize=256)
def _on(recipe: Recipe, nodes: int) -> Recipe:
    """Asked for with every transfer of every minibatch."""
    if recipe.one_sided and recipe.streams != "one":
        return _on(replace(recipe, streams="one"), nodes)  # it has both anyway
    if nodes == 1:
        return replace(recipe, sharding="full", exchange="end", far="each")
    if not recipe.one_sided:
        return replace(recipe, far="each", exchange=recipe.exchange if recipe.sharding == "hybrid" else "end")
    return replace(recipe, sharding="hybrid" if recipe.hierarchical else recipe.sharding, exchange="end")


def flags(*, engine: bool = False) -> tuple[str, ...]:
    """The names of what a command line asks for: the simulator's, or the engine's."""
    other = "predicted" if engine else "engine"
    return tuple(name for name, choice in CHOICES.items() if choice.flag and not getattr(choice, other))


def fields_of(words: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that words choose, of which files and older calls have recompute as true or false, with `selective`
    beside it. Without recompute nothing is left to select from."""
    chosen = {name: value for name, value in words.items() if name in CHOICES}
    if type(part := words.get(PART, "no")) is not str or part not in SELECTIVE:
        raise InputError(f"unknown {PART} '{part}'", fix=nearest(str(part), list(SELECTIVE)))
    again = chosen.get("recompute", True)
    if type(again) is bool and len({"recompute", PART} & set(words)):
        chosen["recompute"] = "none" if not again else "full" if part == "no" else part
    elif again == "full" and part != "no":
        chosen["recompute"] = part
    return chosen


def nested(chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Fields as a recipe has them: those of its kernels by themselves."""
    own = {name: value for name, value in chosen.items() if name not in KERNELS}
    return own | {"kernels": {name: value for name, value in chosen.items() if name in KERNELS}}


def recipe_of(words: Mapping[str, Any]) -> Recipe:
    """By the words of a command line, a file or a call."""
    return USUAL.by(**fields_of(words))


def flag(name: str) -> str:
    """How a command line asks for another value than the usual one."""
    word = name.replace("_", "-")
    return f"--no-{word}" if CHOICES[name].usual is True else f"--{word}"


ASKED = tuple(name for name in flags() if not CHOICES[name].compared)  # of every comparison
SEARCHED = tuple(name for name in ASKED if CHOICES[name].searched)  # by an advice

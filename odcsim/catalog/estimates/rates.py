"""What GPUs of one family reach inside a training step, and how far estimates may be off.

A family has few coefficients, each with a meaning; odcsim/catalog/rates.toml holds their values and sources, and
odcsim.catalog.estimates.compute turns them into seconds of a model's layers.

A run is of one family of GPUs, and may be of experts, of adapters, in fp8 and more. What each kind adds to the variance
of the logarithm of a step's seconds is learnt from runs whose publisher had no part in the estimate
(`make published`), from a start that stands for what nobody covers.
"""

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from odcsim.model import Model
from odcsim.recipe import Recipe

FILE = Path(__file__).parents[1] / "rates.toml"
OTHER = "cdna4"  # of a GPU that is in no family: nobody published a run on it
# Attention kernels that keep no matrix of scores were timed at heads of 128. At 64 they reach less of it, and at 256
# again (FlashAttention-3, arXiv 2407.08608, figures 5 and 6, the curves of FlashAttention-2 at 16K tokens).
SMALL_HEADS, LARGE_HEADS = (64, 0.87), (192, 0.89)
INTERVAL = 1.645  # standard deviations on either side of the median that hold 90 %
# What a kind adds where nobody published a run, as a standard deviation; a family of GPUs by itself adds FAMILY.
FAMILY = 0.12
STARTS = {"compiled": 0.05, "plain": 0.15, "experts": 0.2, "adapters": 0.1, "nf4": 0.1, "fp8": 0.1, "policy": 0.15}
STARTS |= {"groups": 0.15}  # context parallelism
WEIGHS = 2  # publishers that a start weighs as much as


@dataclass(frozen=True, slots=True)
class Attention:
    """One attention kernel on one family, by the FLOPs that a causal mask leaves."""

    forward: float  # share of the datasheet's FLOP/s that long samples reach ...
    backward: float
    short_forward: float  # ... and the length at which a sample reaches half of it
    short_backward: float
    kind: str  # how they are known


@dataclass(frozen=True, slots=True)
class Precision:
    """What the matmuls of layers run in."""

    faster: float = 1.0  # how many times as fast as in bf16 a large one runs, casts apart
    cast: float = 0.0  # bytes that casts move for each element of a token in a layer's three matmuls
    cast_weight: float = 0.0  # ... and for each of a weight in each pass


@dataclass(frozen=True, slots=True)
class Spread:
    """What one kind of run adds: the standard deviation of the logarithm of a step's seconds, and who showed it."""

    deviation: float
    publishers: int


@dataclass(frozen=True, slots=True)
class Rates:
    """Shares and seconds, and how far runs are off that had no part in them."""

    family: str
    matmul: float  # share of the best matmul anybody measured that large matmuls reach inside a step
    narrow: float  # a matmul whose smaller side is as wide as this takes twice as long as its FLOPs say
    moved: float  # share of the memory's bandwidth that work reaches which only moves bytes
    copying: float  # share of compute that goes to the kernels of a collective while it is under way
    usual: str  # the attention kernel that most people run
    kinds: Mapping[str, str]  # how the figures above are known: fitted, measured, chosen, assumed or datasheet
    attention: Mapping[str, Attention] = field(default_factory=lambda: MappingProxyType({}))
    precisions: Mapping[str, Precision] = field(default_factory=lambda: MappingProxyType({}))  # beside bf16
    spreads: Mapping[str, Spread] = field(default_factory=lambda: MappingProxyType({}))  # by kind of run

    def head_share(self, head_dim: int) -> float:
        """What heads of this size reach of the rates of attention."""
        if head_dim <= SMALL_HEADS[0]:
            return SMALL_HEADS[1]
        return LARGE_HEADS[1] if head_dim >= LARGE_HEADS[0] else 1.0


@cache
def _table() -> Mapping[str, Any]:
    return tomllib.loads(FILE.read_text(encoding="utf-8"))


def families() -> list[str]:
    """Of GPUs."""
    return list(_table()["families"])


def family_of(gpu: str) -> str:
    """The family of a GPU of the catalogue."""
    return next((name for name, row in _table()["families"].items() if gpu in row["gpus"]), OTHER)


@cache
def rates(family: str) -> Rates:
    """What one family reaches."""
    table = _table()
    row = table["families"][family]
    precisions, kernels = {}, {}
    for name, (cast, cast_weight) in table["precisions"].items():
        if name in row and row[name][0]:
            precisions[name] = Precision(row[name][0], cast, cast_weight)
    for name, by_family in table["attention"].items():
        if family in by_family:
            forward, backward, short_forward, short_backward, kind, _ = by_family[family]
            kernels[name] = Attention(forward, backward, short_forward, short_backward, kind)
    return Rates(
        family,
        matmul=float(row["matmul"][0]),
        narrow=float(row["narrow"][0]),
        moved=float(row["moved"][0]),
        copying=float(row["copying"][0]),
        usual=row["usual"],
        kinds=MappingProxyType({name: of[1] for name, of in row.items() if name not in ("gpus", "usual")}),
        attention=MappingProxyType(kernels),
        precisions=MappingProxyType(precisions),
        spreads=spreads(),
    )


def figures(family: str) -> dict[str, tuple[float, str, str]]:
    """Every coefficient of a family: its value, how it is known, and from where."""
    sources = _table()["sources"]
    row = _table()["families"][family]
    return {
        name: (float(of[0]), of[1], sources[of[2]]["title"])
        for name, of in row.items()
        if isinstance(of, list) and name != "gpus"
    }


@cache
def spreads() -> Mapping[str, Spread]:
    """What kinds of runs add to the spread, as far as somebody published one."""
    known = {kind: Spread(deviation, publishers) for kind, (deviation, publishers) in _table()["spreads"].items()}
    return MappingProxyType(known)


def kinds(family: str, model: Model, recipe: Recipe) -> list[str]:
    """What kinds of runs this is, its family of GPUs first. Linear and sparse attention lean on young kernels as
    experts do."""
    own = {
        recipe.kernels.stack: recipe.kernels.stack in STARTS,
        "experts": bool(model.experts or not model.splits),
        "adapters": bool(recipe.lora),
        "groups": recipe.context > 1,
        recipe.quantization: bool(recipe.quantized),
        recipe.kernels.loss: recipe.kernels.loss in STARTS,
        recipe.kernels.precision: "precision" in recipe.unusual,
    }
    return [family, *(name for name, true in own.items() if true)]


def widen(one: Spread) -> float:
    """The deviation of a normal curve whose 90 % reach as far as Student's t does, by what it was learnt from."""
    degrees = one.publishers + WEIGHS
    cubed, fifth = (INTERVAL**3 + INTERVAL) / 4, (5 * INTERVAL**5 + 16 * INTERVAL**3 + 3 * INTERVAL) / 96
    return one.deviation * (1 + (cubed / degrees + fifth / degrees**2) / INTERVAL)


def together(spreads: Mapping[str, Spread], named: Sequence[str]) -> float:
    """Of a run of these kinds: standard deviation of the logarithm of a step's seconds."""
    return math.hypot(*(widen(spreads.get(name, Spread(STARTS.get(name, FAMILY), 0))) for name in named))

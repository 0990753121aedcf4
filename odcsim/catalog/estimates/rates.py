"""What GPUs of one family reach inside a training step: few coefficients, each with a meaning.

The catalogue holds their values and sources (odcsim/catalog/rates.toml); odcsim.catalog.estimates.compute turns them
into seconds of a model's layers.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from odcsim.catalog.estimates.spreads import Spread

# Attention kernels that keep no matrix of scores were timed at heads of 128. At 64 they reach less of it, and at 256
# again (FlashAttention-3, arXiv 2407.08608, figures 5 and 6, the curves of FlashAttention-2 at 16K tokens).
SMALL_HEADS, LARGE_HEADS = (64, 0.87), (192, 0.89)


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

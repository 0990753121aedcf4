"""The coefficients that published runs decide: where each enters, where it starts, and how sure of that one is.

A new one is a line of COEFFICIENTS, where it is a field of Rates or of Network, the share of an attention kernel, or
how much faster matmuls are in a precision.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from types import MappingProxyType

from published_cells import Cell
from published_step import Network, closed

from odcsim.catalog.estimates.rates import Attention, Rates, rates
from odcsim.recipe import PRECISIONS

NETWORK = tuple(field.name for field in fields(Network))
FITTED = ("ampere", "blackwell", "hopper", "hopper-141gb")  # families that runs are known of


@dataclass(frozen=True, slots=True)
class Coefficient:
    """What runs decide: a field of Rates or of Network, or the share of an attention kernel."""

    enters: str
    prior: float
    sure: float  # standard deviation of its logarithm
    family: str = ""  # of GPUs; without one, those of FITTED

    @property
    def name(self) -> str:
        return f"{self.family} {self.enters}".strip()

    def touches(self, cell: Cell) -> bool:
        """Whether a run's seconds can depend on it."""
        kernels = cell.recipe.kernels
        if self.enters in NETWORK:
            return cell.cluster.nodes > 1
        if cell.gpu.family not in ((self.family,) if self.family else FITTED):
            return False
        if self.enters in rates(cell.gpu.family).attention:
            return kernels.attention == self.enters
        return self.enters not in PRECISIONS or kernels.precision == self.enters

    def entered(self, known: Rates, value: float) -> Rates:
        """A kernel keeps the ratio of its backward to its forward; a family without fp8 stays without."""
        if (kernel := known.attention.get(self.enters)) is not None:
            return replace(known, attention=MappingProxyType({**known.attention, self.enters: _at(kernel, value)}))
        if self.enters not in PRECISIONS:
            return replace(known, **{self.enters: value})
        faster = {name: replace(of, faster=value) for name, of in known.precisions.items() if name == self.enters}
        return replace(known, precisions=MappingProxyType({**known.precisions, **faster}))

    def held(self) -> float:
        """What the catalogue holds."""
        if self.enters in NETWORK:
            return float(getattr(Network.usual(), self.enters))
        known = rates(self.family or FITTED[-1])
        if self.enters in PRECISIONS:
            return known.precisions[self.enters].faster
        kernel = known.attention.get(self.enters)
        return float(getattr(known, self.enters)) if kernel is None else kernel.forward


def _at(kernel: Attention, forward: float) -> Attention:
    return replace(kernel, forward=forward, backward=forward * kernel.backward / kernel.forward)


COEFFICIENTS = (
    Coefficient("matmul", 0.88, 0.12, "ampere"),  # large matmuls beside the best one measured
    Coefficient("matmul", 0.88, 0.12, "hopper"),
    Coefficient("matmul", 0.88, 0.12, "hopper-141gb"),
    Coefficient("matmul", 0.88, 0.12, "blackwell"),
    Coefficient("triton", 0.35, 0.3, "ampere"),  # half of FlashAttention-2, which replaced it
    Coefficient("triton", 0.18, 0.3, "hopper"),
    Coefficient("narrow", 100.0, 0.4),
    Coefficient("moved", 0.65, 0.15),  # plain copies reach 0.9; strided reads, casts and reductions less
    Coefficient("copying", 0.18, 0.4),  # 24 of 132 multiprocessors
    Coefficient("fp8", 2.0, 0.1),
    Coefficient("nic_share", 0.5, 0.3),  # of what bus bandwidths are published: a third to nine tenths
    Coefficient("hop", 2e-6, 0.7),
)


@dataclass(frozen=True, slots=True)
class Fitted:
    """Coefficients by name."""

    values: Mapping[str, float]

    def rates(self, cell: Cell) -> Rates:
        found = rates(cell.gpu.family)
        for one in COEFFICIENTS:
            if one.enters not in NETWORK and one.touches(cell):
                found = one.entered(found, self.values[one.name])
        return found

    def but(self, name: str, value: float) -> "Fitted":
        return Fitted({**self.values, name: value})

    @property
    def network(self) -> Network:
        return Network(**{name: self.values[name] for name in NETWORK})

    def seconds(self, cell: Cell) -> float:
        return closed(cell, self.rates(cell), self.network)


def priors() -> Fitted:
    """What is known without any step."""
    return Fitted({one.name: one.prior for one in COEFFICIENTS})


def shipped() -> Fitted:
    """What the catalogue holds."""
    return Fitted({one.name: one.held() for one in COEFFICIENTS})

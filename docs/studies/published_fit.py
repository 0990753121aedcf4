"""The coefficients of odcsim/catalog/rates.toml that published runs decide, and what runs left out say of them.

Least squares on the logarithm of seconds. Each coefficient starts at what is known without any step (a prior, and how
sure of it one can be), so that a source which says nothing of it leaves it there. Many runs of one source on one family
of GPUs weigh no more than a few: they share their source's luck.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray
from published_cells import Cell, sources
from published_step import Network, closed
from scipy.optimize import least_squares

from odcsim.catalog.estimates.rates import Rates
from odcsim.catalog.rates import rates

Floats = NDArray[np.float64]
FEW = 8  # runs of one source on one family that count in full
OFF = 0.1  # how far one run may well be off, as a fraction
FAMILIES = ("ampere", "hopper", "hopper-141gb")
# Coefficient: where it starts, and the standard deviation of its logarithm. All families share those without a family.
PRIORS: Mapping[str, tuple[float, float]] = {
    **{f"{family} matmul": (0.88, 0.12) for family in FAMILIES},  # large matmuls beside the best one measured
    "ampere triton": (0.35, 0.3),  # half of FlashAttention-2, which replaced it
    "hopper triton": (0.18, 0.3),
    "narrow": (100.0, 0.4),
    "moved": (0.65, 0.15),  # plain copies reach 0.9; strided reads, casts and reductions less
    "copying": (0.18, 0.4),  # 24 of 132 multiprocessors
    "fp8": (1.45, 0.15),
    "nic_share": (0.5, 0.3),  # of what bus bandwidths are published: a third to nine tenths
    "hop": (2e-6, 0.7),
}
ROUNDED = 2  # digits that the catalogue holds


@dataclass(frozen=True, slots=True)
class Fitted:
    """Coefficients by name."""

    values: Mapping[str, float]

    def rates(self, family: str) -> Rates:
        known, v = rates(family), self.values
        shared = {name: v[name] for name in ("narrow", "moved", "copying")}
        fp8 = v["fp8"] if known.fp8 else 0.0
        return replace(known, matmul=v[f"{family} matmul"], fp8=fp8, **shared, attention=self._attention(known))

    def _attention(self, known: Rates) -> Mapping[str, object]:
        """A fitted kernel keeps the ratio of its backward to its forward."""
        share = self.values.get(f"{known.family} triton")
        if share is None:
            return known.attention
        kernel = known.attention["triton"]
        fitted = replace(kernel, forward=share, backward=share * kernel.backward / kernel.forward)
        return MappingProxyType({**known.attention, "triton": fitted})

    @property
    def network(self) -> Network:
        return Network(self.values["nic_share"], self.values["hop"])

    def seconds(self, cell: Cell) -> float:
        return closed(cell, self.rates(cell.gpu.family), self.network)


def shipped() -> Fitted:
    """What the catalogue holds."""
    values = {f"{family} matmul": rates(family).matmul for family in FAMILIES}
    values |= {f"{family} triton": rates(family).attention["triton"].forward for family in ("ampere", "hopper")}
    known, default = rates("hopper"), Network.usual()
    values |= {"narrow": known.narrow, "moved": known.moved, "copying": known.copying, "fp8": known.fp8}
    return Fitted(values | {"nic_share": default.nic_share, "hop": default.hop})


def fit(cells: Sequence[Cell]) -> Fitted:
    """The coefficients that these runs decide, rounded as the catalogue holds them."""
    names = list(PRIORS)
    start, sure = (np.array([PRIORS[name][i] for name in names]) for i in (0, 1))
    count = Counter((c.source, c.gpu.family) for c in cells)
    weights = np.array([min(1.0, FEW / count[c.source, c.gpu.family]) ** 0.5 for c in cells]) / OFF

    def residuals(logs: Floats) -> Floats:
        tried = Fitted(dict(zip(names, (start * np.exp(logs)).tolist(), strict=True)))
        return np.concatenate([weights * np.log(ratios(tried, cells)), logs / sure])

    found = start * np.exp(least_squares(residuals, np.zeros(len(names))).x)
    return Fitted({name: float(f"{value:.{ROUNDED}g}") for name, value in zip(names, found, strict=True)})


def ratios(fitted: Fitted, cells: Sequence[Cell]) -> Floats:
    """Predicted over published seconds."""
    return np.array([fitted.seconds(cell) / cell.seconds for cell in cells])


def left_out(cells: Sequence[Cell]) -> dict[str, Fitted]:
    """For each source the coefficients that all others decide."""
    return {name: fit([c for c in cells if c.source != name]) for name in sources(cells)}

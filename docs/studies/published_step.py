"""Seconds of a published run's step: simulated, and by a closed form that a fit can afford.

All devices of such a run do the same, so its step is as long as a device's: the sum over its layers of compute or
transfers, whichever takes longer, and what nothing hides. tests/docs/test_published_page.py holds the two together.
"""

from dataclasses import dataclass, fields, replace

from published_cells import Cell

from odcsim.catalog.estimates import compute
from odcsim.catalog.estimates.rates import Rates
from odcsim.cluster import Cluster
from odcsim.cost import Cost
from odcsim.executors.simulation import usage
from odcsim.profile import Polynomial
from odcsim.program import sync_named
from odcsim.schedule import Schedule


@dataclass(frozen=True, slots=True)
class Network:
    """What collectives reach between nodes."""

    nic_share: float
    hop: float

    @classmethod
    def usual(cls) -> "Network":
        return cls(*(next(f.default for f in fields(Cluster) if f.name == name) for name in ("nic_share", "hop")))


def cost(cell: Cell, rates: Rates, network: Network | None = None) -> Cost:
    profile = compute.estimate(cell.model, cell.gpu, rates, cell.cluster.gpus, cell.recipe)
    cluster = cell.cluster if network is None else replace(cell.cluster, nic_share=network.nic_share, hop=network.hop)
    return Cost(cell.model, profile, cluster, cell.recipe)


def simulated(cell: Cell, rates: Rates, network: Network | None = None) -> float:
    devices, each = cell.cluster.gpus, cell.sequences * cell.microbatches
    microbatches = [
        [
            tuple(range(d * each + m * cell.sequences, d * each + (m + 1) * cell.sequences))
            for m in range(cell.microbatches)
        ]
        for d in range(devices)
    ]
    schedule = Schedule.of((cell.sequence,) * (devices * each), microbatches)
    return float(usage([schedule], cost(cell, rates, network)).makespan[0])


def closed(cell: Cell, rates: Rates, network: Network | None = None) -> float:
    how = cost(cell, rates, network)
    fixed, layers = how.transfers(one_sided=False), cell.model.layers
    last, back = _microbatch(cell, how, pushes=True)
    before = _microbatch(cell, how, pushes=sync_named(how.ran.sync).push_every_microbatch)[0]
    summed = layers * fixed["sum layer"] if how.ran.exchange == "layers" else 0.0
    after = max(0.0, summed - back) + (fixed["sum layer"] + fixed["sum root"] if summed else 0.0)
    optimizer = how.profile.optimizer * (how.cluster.nodes if summed else 1)
    return (cell.microbatches - 1) * before + last + after + optimizer + fixed["meeting"]


def _microbatch(cell: Cell, how: Cost, *, pushes: bool) -> tuple[float, float]:
    """Its seconds, and those of its backward through all layers."""
    fixed, p = how.transfers(one_sided=False), how.profile
    gather, push = fixed["gather layer"], fixed["push layer"] if pushes else 0.0
    forward, backward = (_takes(fit, cell) for fit in (p.forward, p.backward))
    forward += p.copying * min(forward, gather)
    backward += p.copying * min(backward, gather + push)
    back = cell.model.layers * max(backward, gather + push)
    rest = _takes(p.head, cell) + 2 * _takes(p.embed, cell) + p.microbatch
    shown = fixed["gather root"] + gather + push + (fixed["push root"] if pushes else 0.0)
    return cell.model.layers * max(forward, gather) + back + shown + rest, back


def _takes(fit: Polynomial, cell: Cell) -> float:
    tokens, squares = cell.tokens, cell.sequences * float(cell.model.squares(cell.sequence))
    return max(fit.floor, fit.constant + fit.linear * tokens + fit.quadratic * squares)

"""lb-mini: only the loads of the devices matter, counts are free. On-demand sync alone can run it."""

from odcsim.balance.lb_micro import equal_counts
from odcsim.heuristics.balancer import Balancer, Deal, Work
from odcsim.heuristics.karmarkar_karp import differencing
from odcsim.heuristics.packing import packed
from odcsim.heuristics.remembered import remembered
from odcsim.heuristics.swaps import even_out
from odcsim.heuristics.uneven import by_speed


def lb_mini(work: Work) -> Deal:
    """The right one wherever devices meet once per minibatch; most of its gain comes at 2 to 4 samples per device."""
    if work.speeds is not None:
        return Deal(by_speed(work.weights, work.tokens, work.speeds, work.max_tokens))
    weights, tokens = work.weights.tolist(), work.tokens.tolist()
    return Deal([packed(group, weights, tokens, work.max_tokens) for group in free_counts(weights, work.devices)])


@remembered
def free_counts(weights: list[float], devices: int) -> list[list[int]]:
    """The samples of each device: free counts, or equal ones where those spread less or peak lower."""
    free = even_out(differencing(weights, devices), weights)
    equal = equal_counts(weights, devices)
    (low, high), (equal_low, equal_high) = _range(free, weights), _range(equal, weights)
    return free if high <= equal_high and high - low <= equal_high - equal_low else equal


def _range(groups: list[list[int]], weights: list[float]) -> tuple[float, float]:
    loads = [sum([weights[i] for i in group]) for group in groups]
    return min(loads), max(loads)


BALANCER = Balancer(
    "lb-mini",
    lb_mini,
    "even totals: the published one",
    free_counts=True,
    speeds=True,
    published=True,
    stands_for=("on-demand",),
)

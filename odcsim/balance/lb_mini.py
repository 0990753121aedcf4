"""lb-mini: only the loads of the devices matter, counts are free. On-demand sync alone can run it."""

from odcsim.balance.lb_micro import equal_counts
from odcsim.balance.search.karmarkar_karp import differencing
from odcsim.balance.search.packing import Microbatch, packed
from odcsim.balance.search.swaps import even_out


def lb_mini(weights: list[float], tokens: list[int], devices: int, max_tokens: int) -> list[list[Microbatch]]:
    """The right one wherever devices meet once per minibatch; most of its gain comes at 2 to 4 samples per device."""
    return [packed(group, weights, tokens, max_tokens) for group in free_counts(weights, devices)]


def free_counts(weights: list[float], devices: int) -> list[list[int]]:
    """The samples of each device: free counts, or equal ones where those spread less or peak lower."""
    free = even_out(differencing(weights, devices), weights)
    equal = equal_counts(weights, devices)
    (low, high), (equal_low, equal_high) = _range(free, weights), _range(equal, weights)
    return free if high <= equal_high and high - low <= equal_high - equal_low else equal


def _range(groups: list[list[int]], weights: list[float]) -> tuple[float, float]:
    loads = [sum([weights[i] for i in group]) for group in groups]
    return min(loads), max(loads)

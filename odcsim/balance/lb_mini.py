"""lb-mini: only the loads of the devices matter, counts are free. On-demand sync alone can run it."""

import numpy as np

from odcsim.balance.balancer import Balancer, Deal, Work
from odcsim.balance.karmarkar_karp import differencing, many_parts
from odcsim.balance.lb_micro import equal_counts
from odcsim.balance.packed_rows import Floats, pack_each
from odcsim.balance.remembered import remembered
from odcsim.balance.swaps import added_up, even_out, even_out_held
from odcsim.balance.trades import Held, hold, laid
from odcsim.balance.uneven import by_speed
from odcsim.balance.wide import differencing_wide


def lb_mini(work: Work) -> Deal:
    """The right one wherever devices meet once per minibatch; most of its gain comes at 2 to 4 samples per device."""
    if work.speeds is not None:
        return Deal(by_speed(work.weights, work.tokens, work.speeds, work.max_tokens))
    return Deal(pack_each(free_counts(work.weights, work.devices), work.weights, work.tokens, work.max_tokens))


@remembered
def free_counts(weights: Floats, devices: int) -> Held:
    """The samples of each device: free counts, or equal ones where those spread less or peak lower."""
    free, equal = _free(weights, devices), equal_counts(weights, devices)
    (low, high), (equal_low, equal_high) = _range(free, weights), _range(equal, weights)
    return free if high <= equal_high and high - low <= equal_high - equal_low else equal


def _free(weights: Floats, devices: int) -> Held:
    if many_parts(len(weights), devices) and devices < len(weights):
        return even_out_held(hold(differencing_wide(weights, devices), devices)[:, :-1], weights)
    listed = weights.tolist()
    return laid(even_out(differencing(listed, devices), listed), len(listed))


def _range(held: Held, weights: Floats) -> tuple[float, float]:
    loads = added_up(np.append(weights, 0.0)[held])
    return float(loads.min()), float(loads.max())


BALANCER = Balancer(
    "lb-mini",
    lb_mini,
    "even totals: the published one",
    free_counts=True,
    speeds=True,
    published=True,
    stands_for=lambda sync: sync.uneven,
)

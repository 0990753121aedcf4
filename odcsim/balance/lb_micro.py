"""lb-micro: equal sample counts, equal microbatch counts. What the paper compares with, and runs with every sync."""

from odcsim.balance.balancer import Balancer, Deal, Work
from odcsim.balance.karmarkar_karp import differencing_equal, many_parts
from odcsim.balance.packed_rows import Floats, Whole, pack_alike
from odcsim.balance.remembered import remembered
from odcsim.balance.swaps import even_out, even_out_held
from odcsim.balance.trades import Held, hold, laid
from odcsim.balance.wide import differencing_equal_wide
from odcsim.flat import Flat


@remembered
def equal_counts(weights: Floats, devices: int) -> Held:
    """The samples of each device: as many as any other (within one), loads as even as that and the swaps allow."""
    if many_parts(len(weights), devices):
        part, turn = differencing_equal_wide(weights, devices)
        return even_out_held(hold(part, devices, turn)[:, :-1], weights)
    listed = weights.tolist()
    return laid(even_out(differencing_equal(listed, devices), listed), len(listed))


def lb_micro(work: Work) -> Deal:
    """The right one to know what plain load balancing brings to a collective run; sorted-slice is the stronger there.

    It evens out the devices' totals and leaves to chance which microbatches meet in one step.
    """
    return Deal(_packed(work.weights, work.tokens, work.devices, work.max_tokens))


@remembered
def _packed(weights: Floats, tokens: Whole, devices: int, max_tokens: int) -> Flat:
    return pack_alike(equal_counts(weights, devices), weights, tokens, max_tokens)


BALANCER = Balancer(
    "lb-micro",
    lb_micro,
    "even totals, as many samples on each device: the published rival",
    published=True,
    stands_for=lambda sync: sync.meets and sync.push_every_microbatch,
)

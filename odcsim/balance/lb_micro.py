"""lb-micro: equal sample counts, equal microbatch counts. What the paper compares with, and runs with every sync."""

from collections import deque

from odcsim.heuristics.balancer import Balancer, Deal, Work
from odcsim.heuristics.karmarkar_karp import differencing_equal
from odcsim.heuristics.packing import Microbatch, fewest, pack
from odcsim.heuristics.remembered import remembered
from odcsim.heuristics.swaps import even_out


@remembered
def equal_counts(weights: list[float], devices: int) -> list[list[int]]:
    """The samples of each device: as many as any other (within one), loads as even as that and the swaps allow."""
    return even_out(differencing_equal(weights, devices), weights)


def lb_micro(work: Work) -> Deal:
    """The right one to know what plain load balancing brings to a collective run; sorted-slice is the stronger there.

    It evens out the devices' totals and leaves to chance which microbatches meet in one step.
    """
    return Deal(_packed(work.weights.tolist(), work.tokens.tolist(), work.devices, work.max_tokens))


@remembered
def _packed(weights: list[float], tokens: list[int], devices: int, max_tokens: int) -> list[list[Microbatch]]:
    groups = equal_counts(weights, devices)
    count = max(fewest(group, tokens, max_tokens) for group in groups)
    waiting, packed = deque(range(len(groups))), dict[int, list[Microbatch]]()
    while waiting:
        device = waiting[0]
        microbatches = pack(groups[device], weights, tokens, max_tokens, count)
        if microbatches is None:  # so all of them need more; whom that is for is asked first
            count += 1
            waiting.extend(packed)
            packed.clear()
        else:
            packed[waiting.popleft()] = microbatches
    return [packed[device] for device in range(len(groups))]


BALANCER = Balancer(
    "lb-micro",
    lb_micro,
    "even totals, as many samples on each device: the published rival",
    published=True,
    stands_for=("collective",),
)

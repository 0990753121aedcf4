"""pool: large samples are planned, the smallest wait in one queue for whichever device is free. On-demand sync only."""

from odcsim.heuristics.balancer import Balancer, Deal, Work
from odcsim.heuristics.fewest import pack_all
from odcsim.heuristics.longest_first import longest_first
from odcsim.heuristics.packing import Microbatch
from odcsim.heuristics.trades import hold

SHARE = 0.2  # of the work waits in the queue: enough to level devices that are off by a tenth
GRAIN = 0.01  # of a device's load is in an entry at least: smaller ones would level nothing more
WORTH = 4  # times what a microbatch costs by itself are in an entry at least


def pool(work: Work) -> Deal:
    """The right one where costs are not quite as planned: samples that take longer, devices that are slow.

    What devices run, and the queue. Who is late takes less of it, so all end within about its last entries. What that
    costs is the queue's microbatches, a constant each: with true costs other balancers are ahead.
    """
    weights, tokens, devices = work.weights, work.tokens, work.devices
    first = max(1, len(weights) - int((weights[::-1].cumsum() <= SHARE * weights.sum()).sum()))
    heavy = weights[:first]
    slots = pack_all(hold(longest_first(heavy, devices), devices), heavy, tokens[:first], work.max_tokens)
    grain = max(GRAIN * weights.sum() / devices, WORTH * work.constant)
    queue = entries(weights[first:].tolist(), tokens[first:].tolist(), devices, work.max_tokens, grain)
    return Deal(slots, [[first + i for i in entry] for entry in queue])


def entries(weights: list[float], tokens: list[int], devices: int, max_tokens: int, grain: float) -> list[Microbatch]:
    """The queue, heaviest first. An entry holds half of what would be a device's share of all that is left, or `grain`.

    So there are few of them while much is left, and small ones to level with at the end (guided self-scheduling,
    Polychronopoulos and Kuck 1987, with the half of factoring, Hummel et al. 1992).
    """
    left = sum(weights)
    queue: list[Microbatch] = []
    room, space = 0.0, 0  # of the entry that is open
    for i, (weight, size) in enumerate(zip(weights, tokens, strict=True)):
        if not queue or weight > room or size > space:
            queue.append([])
            room, space = max(left / (2 * devices), grain), max_tokens
        queue[-1].append(i)
        room, space, left = room - weight, space - size, left - weight
    return sorted(queue, key=lambda entry: -sum([weights[i] for i in entry]))


BALANCER = Balancer(
    "pool",
    pool,
    "small samples wait in a queue for whoever is free",
    free_counts=True,
    weighs_transfers=True,
    queue=True,
)

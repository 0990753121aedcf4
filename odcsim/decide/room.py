"""How many tokens a microbatch may hold: what memory has room for, and which limits are worth a try."""

from collections.abc import Callable

from odcsim.catalog.estimates import memory
from odcsim.cost import Cost
from odcsim.program import WHOLE
from odcsim.trace import Trace

RIVAL = "layers"  # nodes exchange as FSDP2's collectives do under hybrid sharding, which is the rival at its best
EACH = 1.25  # times the limit before it: nearer ones differ by less than the search is after
ROUND = 1024  # tokens that longer limits are whole multiples of: people type them
ENOUGH = 1.5  # times a device's tokens of a minibatch: nothing is left to gain from there on


def under(cost: Cost, sync: str) -> Cost:
    """The cost as a comparison runs it: where nodes exchange, collectives do as FSDP2's."""
    return cost.by(sync=sync, exchange=RIVAL)


def needed(cost: Cost, tokens: int, longest: int) -> memory.Memory:
    """A device's memory where the fullest microbatch holds so many tokens. The cost's recipe names the sync."""
    return memory.estimate(cost.model, cost.cluster.gpus, tokens, cost.ran, cost.holders, min(tokens, longest))


def least(cost: Cost, trace: Trace) -> memory.Memory:
    """With the longest sample alone, or the fullest of those that stay together: no plan needs less."""
    return needed(cost, trace.fullest, trace.longest)


def fullest(cost: Cost, longest: int, room: float, most: int) -> int:
    """The most tokens of a microbatch, up to `most`, that fit into so many bytes; 0 where nothing does."""
    return last(most, lambda tokens: needed(cost, tokens, longest).total <= room)


def last(most: int, fits: Callable[[int], bool]) -> int:
    """The largest number up to `most` that fits, where those below it do; 0 where none does."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def groups(cost: Cost) -> tuple[int, ...]:
    """How many GPUs may share each sequence instead: twice as many and twice again, inside a node."""
    cluster, tried, each = cost.cluster, list[int](), 2 * cost.recipe.context
    if cost.recipe.sharding == WHOLE:
        return ()
    whole = cluster.gpus if cluster.nodes == 1 else cluster.devices_per_node
    while cost.model.splits and not whole % each and not cluster.gpus % each:
        tried.append(each)
        each *= 2
    return tuple(tried)


def limits(longest: int, most: int, device: float, each: float = EACH) -> tuple[int, ...]:
    """Limits to try, from the longest sample up to `most`, where a device has so many tokens of a minibatch."""
    useful = min(most, int(max(longest, ENOUGH * device)))
    if useful < longest:
        return ()
    tried, at = {longest}, longest * each
    while at < useful:
        tried.add(int(at))
        at *= each
    rounded = (at // ROUND * ROUND if at >= 4 * ROUND else at for at in (*tried, useful))
    return tuple(sorted({max(longest, at) for at in rounded}))

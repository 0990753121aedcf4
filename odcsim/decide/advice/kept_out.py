"""The faster way that memory alone keeps from being run, and the few long samples that it is kept out by."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from odcsim.decide import room
from odcsim.decide.advice import search
from odcsim.decide.advice.ways import Site, Way
from odcsim.decide.answer import NOTABLE
from odcsim.decide.remedies import outliers
from odcsim.results import capacity
from odcsim.results.capacity import Need


@dataclass(frozen=True, slots=True)
class KeptOut:
    """A way that does not fit, or is tight."""

    way: Way
    need: Need
    gain: float = 0.0  # how many times as fast it is, as screening has it
    shorter: str = ""  # the cutoff by which it fits, where that shortens next to no samples


def kept_out(site: Site, chosen: Way) -> KeptOut | None:
    """Of the chosen way by another recompute and in fuller microbatches, what leads by what somebody would change their
    training for: the fastest that a cutoff of few samples makes room for, else the leanest."""
    seconds = float(search.screened(site, chosen).sum())
    every = [replace(one, gain=seconds / float(search.screened(site, one.way).sum())) for one in _over(site, chosen)]
    faster = [replace(one, shorter=_shorter(site, one.way)) for one in every if one.gain >= NOTABLE]
    fitting = [one for one in faster if one.shorter]
    if fitting:
        return max(fitting, key=lambda one: one.gain)
    return min(faster, key=lambda one: one.need.memory_bytes, default=None)


def _shorter(site: Site, way: Way) -> str:
    """Where the longest sample alone fills what it fills."""
    if way.setting.limit > site.wish.trace.fullest:
        return ""
    return outliers(way.cost, site.wish.trace, site.memory)


def _over(site: Site, chosen: Way) -> Iterator[KeptOut]:
    trace = site.wish.trace
    for setting in site.settings:
        if setting.cost.sharded == chosen.setting.cost.sharded:
            for limit in sorted({trace.fullest, chosen.setting.limit, site.useful(setting)}):
                way = replace(chosen, setting=replace(setting, max_tokens=limit))
                need = Need(room.needed(way.cost, limit, trace.longest).total, site.memory)
                if capacity.level(need) != capacity.FITS:
                    yield KeptOut(way, need)

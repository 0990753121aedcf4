"""What would fit where nothing does, or where all is tight: each way out by itself, or two at once, with the memory
that they come to. The same question, asked again with one of them, has an answer that fits."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from odcsim.catalog.estimates import memory
from odcsim.cost import Cost
from odcsim.decide import room
from odcsim.decide.setting import Setting
from odcsim.program import MEETING
from odcsim.recipe import Recipe
from odcsim.results import capacity
from odcsim.results.capacity import Need
from odcsim.trace import Trace

MOST = 64  # times the devices that were asked for
FEW = 0.001  # of samples, as the last percentile that 'odcsim trace stats' prints
RANK = 16  # of adapters: what most people take
# Where the states go, and how few of them there can be, by what somebody types.
CHOICES: Mapping[str, Mapping[str, Any]] = {
    "--loss chunked": {"loss": "chunked"},
    "--offload": {"offload": True},
    "--optimizer 8bit": {"optimizer": "8bit"},
    f"--lora {RANK}": {"lora": RANK},
}


def needs(setting: Setting) -> memory.Memory:
    """A device's memory by the plan that needs least."""
    return room.least(_leanest(setting), setting.trace)


def misfits(setting: Setting) -> bool:
    """Whether not even the longest sample alone fits, where the memory of a GPU is known."""
    limit = setting.cost.cluster.memory_bytes
    return limit is not None and 0 < limit < needs(setting).total


def remedies(setting: Setting) -> list[str]:
    """In words, the nearest to what was asked for first; none where the memory of a GPU is not known."""
    limit = capacity.filled(setting.cost.cluster.memory_bytes or 0.0)
    if not limit:
        return []
    recipes, shorter = _chosen(setting, limit), _shorter(setting, limit)
    alone = [*_everywhere(setting, limit), *_smaller(setting, limit), *recipes, *_more(setting, limit), *shorter]
    return alone or [*_together(setting, limit)]


def _leanest(setting: Setting) -> Cost:
    return room.under(setting.cost, MEETING)


def _given(setting: Setting) -> int:
    """The limit that somebody gave; 0: it is chosen anew, or the longest sample's."""
    return 0 if setting.limits_tried else setting.max_tokens


def _tokens(setting: Setting, cutoff: int) -> int:
    """Of the fullest microbatch of whoever has as many samples on each device, whatever the limit, with none longer."""
    fullest = _fullest(setting.trace, cutoff)
    return max(fullest, min(_given(setting), setting.minibatch * fullest))


def _fullest(trace: Trace, cutoff: int) -> int:
    """Tokens of what stays together."""
    if trace.bundle is None:
        return cutoff
    return replace(trace, lengths=trace.lengths.clip(max=cutoff), loss=None).fullest


def _everywhere(setting: Setting, limit: float) -> Iterator[str]:
    """A shard of everything on each device, where nodes hold all of it."""
    if setting.cost.sharded == "hybrid":
        longest = setting.trace.longest
        total = room.needed(_leanest(setting).by(sharding="full"), _tokens(setting, longest), longest).total
        yield from _fitting("--sharding full", total, limit)


def _smaller(setting: Setting, limit: float) -> Iterator[str]:
    """A smaller limit, where the one that was asked for is what does not fit."""
    longest = setting.trace.longest
    most = room.fullest(_leanest(setting), longest, limit, setting.limit)
    if setting.trace.fullest <= most < _tokens(setting, longest):
        yield f"--max-tokens {most}"


def _chosen(setting: Setting, limit: float) -> Iterator[str]:
    recipe, longest = setting.cost.recipe, setting.trace.longest
    layers = {"--recompute full": {"recompute": "full"}} if recipe.recompute != "full" else {}
    for words, choices in {**layers, **CHOICES}.items():
        other = _leanest(setting).recipe.by(**choices)
        if other != _leanest(setting).recipe:
            yield from _fitting(words, _total(setting.cost, _tokens(setting, longest), longest, other), limit)


def _total(cost: Cost, tokens: int, longest: int, recipe: Recipe) -> float:
    """By a recipe whose seconds nobody needs."""
    return memory.estimate(cost.model, cost.cluster.gpus, tokens, recipe, cost.holders, longest).total


def _more(setting: Setting, limit: float) -> Iterator[str]:
    """Twice the devices, and twice again, as far as there are samples for them."""
    cost, longest, times = _leanest(setting), setting.trace.longest, 2
    while times <= MOST:
        cluster = replace(cost.cluster, gpus=times * setting.cost.cluster.gpus)
        total = room.needed(replace(cost, cluster=cluster), _tokens(setting, longest), longest).total
        if total <= limit and _enough(setting, cluster.gpus):
            yield from _fitting(f"{cluster.gpus} devices", total, limit)
            return
        times *= 2


def _enough(setting: Setting, devices: int) -> bool:
    """Whether minibatches divide by so many devices, and the lengths fill one."""
    batch = setting.global_batch
    return batch % devices == 0 if batch else setting.minibatch * devices <= setting.trace.bundles.size


def _shorter(setting: Setting, limit: float) -> Iterator[str]:
    """The longest cutoff that fits, and what it costs."""
    cutoff = _cutoff(setting, limit)
    if 0 < cutoff < setting.trace.longest:
        yield f"--truncate {cutoff} ({lost(setting.trace, cutoff)})"


def lost(trace: Trace, cutoff: int) -> str:
    """What it costs to shorten samples."""
    samples, tokens = _over(trace, cutoff)
    return f"shortens {_percent(samples)} of samples, loses {_percent(tokens)} of tokens"


def _percent(share: float) -> str:
    """Of little its first digit: next to nothing is not nothing."""
    return f"{share:.1%}" if share >= 0.001 or not share else f"{100 * share:.1g}%"


def _cutoff(setting: Setting, limit: float) -> int:
    return _longest(_leanest(setting), setting.trace.longest, limit, lambda cutoff: _tokens(setting, cutoff))


def _longest(cost: Cost, most: int, limit: float, tokens: Callable[[int], int]) -> int:
    """The longest cutoff by which the fullest microbatch fits, which holds so many tokens; `most` where none is
    needed."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        needed = room.needed(cost, tokens(middle), middle).total
        low, high = (middle, high) if needed <= limit else (low, middle - 1)
    return low if low == most else low // 256 * 256


def outliers(cost: Cost, trace: Trace, limit: float) -> str:
    """The longest cutoff by which a sample alone fits a GPU of so many bytes, with what it costs; nothing where more
    than the few samples are shortened that set what all others leave room for."""
    cutoff = _longest(cost, trace.longest, capacity.filled(limit), lambda cutoff: _fullest(trace, cutoff))
    if not 0 < cutoff < trace.longest or _over(trace, cutoff)[0] > FEW:
        return ""
    need = Need(room.needed(cost, _fullest(trace, cutoff), cutoff).total, limit)
    return f"--truncate {cutoff} ({lost(trace, cutoff)}) makes room for it: {capacity.sized(need)}"


def _together(setting: Setting, limit: float) -> Iterator[str]:
    """Two at once: adapters with another way out, and more devices with a cutoff of half the longest sample."""
    cost = setting.cost
    adapters = replace(setting, cost=replace(cost, recipe=replace(cost.recipe, lora=RANK)))
    yield from (f"--lora {RANK} and {way}" for way in [*_more(adapters, limit), *_shorter(adapters, limit)])
    times = 2
    while times <= MOST:
        devices = times * cost.cluster.gpus
        larger = replace(setting, cost=replace(cost, cluster=replace(cost.cluster, gpus=devices)))
        if 2 * _cutoff(larger, limit) >= setting.trace.longest and _enough(setting, devices):
            yield from (f"{devices} devices and {way}" for way in _shorter(larger, limit))
            return
        times *= 2


def _over(trace: Trace, cutoff: int) -> tuple[float, float]:
    """Shares of samples that are longer, and of tokens beyond."""
    counts = 1 if trace.counts is None else trace.counts
    beyond = (trace.lengths - cutoff).clip(0)
    return float(((beyond > 0) * counts).sum() / trace.size), float((beyond * counts).sum() / trace.size / trace.mean)


def _fitting(words: str, total: float, limit: float) -> Iterator[str]:
    if total <= limit:
        yield f"{words} ({total / 1e9:.0f} GB)"

"""What would fit where nothing does, or where all is tight: each way out by itself, or two at once, with the memory
that they come to. The same question, asked again with one of them, has an answer that fits."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from odcsim.catalog.estimates import memory
from odcsim.cost import Cost
from odcsim.decide import room
from odcsim.decide.setting import Setting
from odcsim.decide.stock import find, given_limit, groups
from odcsim.neighbours.neighbour import lacking
from odcsim.program import MEETING
from odcsim.results import capacity
from odcsim.results.capacity import Need
from odcsim.trace import Trace

MOST = 64  # times the devices that were asked for
FEW = 0.001  # of samples, as the last percentile that 'odcsim trace info' prints
RANK = 16  # of adapters: what most people take
WHOLE = 256  # tokens that cutoffs are whole multiples of
# Where the states go, and how few of them there can be, by what somebody types.
CHOICES: Mapping[str, Mapping[str, Any]] = {
    "--recompute full": {"recompute": "full"},
    "--loss chunked": {"loss": "chunked"},
    "--offload": {"offload": True},
    "--optimizer 8bit": {"optimizer": "8bit"},
    f"--lora {RANK}": {"lora": RANK},
}


def misfits(setting: Setting) -> bool:
    """Whether not even the longest sample alone fits by the leanest plan, where the memory of a GPU is known."""
    limit = setting.cost.cluster.memory_bytes
    return limit is not None and 0 < limit < room.least(_leanest(setting), setting.trace).total


def remedies(setting: Setting) -> list[str]:
    """In words, the nearest to what was asked for first; none where the memory of a GPU is not known."""
    limit = capacity.filled(setting.cost.cluster.memory_bytes or 0.0)
    if not limit:
        return []
    cost, longest = _leanest(setting), setting.trace.longest
    tokens, ways = _tokens(setting, longest), list[str]()

    def say(words: str, total: float) -> None:
        if total <= limit:
            ways.append(_sized(words, total))

    if cost.sharded != "full":  # a shard of everything on each device, where nodes or devices hold all of it
        say("--sharding full", room.needed(cost.by(sharding="full"), tokens, longest).total)
    most = room.fullest(cost, longest, limit, setting.limit)
    if setting.trace.fullest <= most < tokens:  # the limit that was asked for is what does not fit
        ways.append(f"--max-tokens {most}")

    trainer = find(setting.trainer)
    lacks = set(lacking(trainer, cost.recipe)) if trainer else set()

    def choose(words: str, choices: Mapping[str, Any]) -> None:
        other = cost.recipe.by(**choices)  # whose seconds nobody needs
        if other != cost.recipe and not (trainer and set(lacking(trainer, other)) - lacks):
            say(words, memory.estimate(cost.model, cost.cluster.gpus, tokens, other, cost.holders, longest).total)

    for words, choices in CHOICES.items():
        choose(words, choices)
    if not any(way.startswith("--lora") for way in ways):  # slower than adapters alone
        rank = "" if cost.recipe.lora else f"--lora {RANK} "
        choose(f"{rank}--quantization nf4", {"lora": cost.recipe.lora or RANK, "quantization": "nf4"})
    more, ways = list(_more(setting, limit)), [*ways, *_shared(setting, limit)]
    batch = [] if more else list(_more(setting, limit, larger_batch=True))
    return ([*ways, *more, *_shorter(setting, limit)] or list(_together(setting, limit))) + batch


def outliers(cost: Cost, trace: Trace, limit: float) -> str:
    """The longest cutoff by which a sample alone fits a GPU of so many bytes, with what it costs; nothing where more
    than the few samples are shortened that set what all others leave room for."""
    cutoff = _longest(cost, trace.longest, capacity.filled(limit), lambda cutoff: _fullest(trace, cutoff))
    if not 0 < cutoff < trace.longest or _over(trace, cutoff)[0] > FEW:
        return ""
    need = Need(room.needed(cost, _fullest(trace, cutoff), cutoff).total, limit)
    return f"--truncate {cutoff} ({lost(trace, cutoff)}) makes room for it: {capacity.size(need)}"


def lost(trace: Trace, cutoff: int) -> str:
    """What it costs to shorten samples: of little its first digit, since next to nothing is not nothing."""
    shares = _over(trace, cutoff)
    samples, tokens = (f"{share:.1%}" if share >= 0.001 or not share else f"{100 * share:.1g}%" for share in shares)
    return f"shortens {samples} of samples, loses {tokens} of tokens"


def _over(trace: Trace, cutoff: int) -> tuple[float, float]:
    """Shares of samples that are longer, and of tokens beyond."""
    counts = 1 if trace.counts is None else trace.counts
    beyond = (trace.lengths - cutoff).clip(0)
    return float(((beyond > 0) * counts).sum() / trace.size), float((beyond * counts).sum() / trace.size / trace.mean)


def _sized(words: str, total: float) -> str:
    return f"{words} ({total / 1e9:.0f} GB)"


def _leanest(setting: Setting) -> Cost:
    """By the plan that needs least."""
    return room.under(setting.cost, MEETING)


def _tokens(setting: Setting, cutoff: int) -> int:
    """Of the fullest microbatch of whoever has as many samples on each device, whatever the limit, with none longer."""
    fullest = _fullest(setting.trace, cutoff)
    return max(fullest, min(given_limit(setting), setting.minibatch * fullest))


def _fullest(trace: Trace, cutoff: int) -> int:
    """Tokens of what stays together."""
    if trace.bundle is None:
        return cutoff
    return replace(trace, lengths=trace.lengths.clip(max=cutoff), loss=None).fullest


def _longest(cost: Cost, most: int, limit: float, tokens: Callable[[int], int]) -> int:
    """The longest cutoff by which the fullest microbatch fits, which holds so many tokens; `most` where none is
    needed."""
    longest = room.last(most, lambda cutoff: room.needed(cost, tokens(cutoff), cutoff).total <= limit)
    return longest if longest == most else longest // WHOLE * WHOLE


def _cutoff(setting: Setting, limit: float) -> int:
    return _longest(_leanest(setting), setting.trace.longest, limit, lambda cutoff: _tokens(setting, cutoff))


def _shorter(setting: Setting, limit: float) -> Iterator[str]:
    """The longest cutoff that fits, and what it costs."""
    cutoff = _cutoff(setting, limit)
    if 0 < cutoff < setting.trace.longest:
        yield f"--truncate {cutoff} ({lost(setting.trace, cutoff)})"


def _larger(setting: Setting, *, larger_batch: bool = False) -> Iterator[Setting]:
    """On twice the devices, and twice again, as far as the lengths fill a minibatch: where a batch of all devices
    divides by them, or those where only a larger one does."""
    for times in (2**n for n in range(1, MOST.bit_length())):
        cost = replace(setting.cost, cluster=replace(setting.cost.cluster, gpus=times * setting.cost.cluster.gpus))
        each = -(-setting.global_batch // cost.workers) or setting.minibatch
        batch = each * cost.workers
        if batch <= setting.trace.bundles.size and larger_batch == (0 < setting.global_batch < batch):
            whole = batch if setting.global_batch else 0
            yield replace(setting, cost=cost, minibatch=each, global_batch=whole)


def _shared(setting: Setting, limit: float) -> Iterator[str]:
    """As few GPUs to each sequence as fit, on batches of the same size."""
    cost, longest = _leanest(setting), setting.trace.longest
    for each in groups(setting):
        samples = setting.minibatch * each // cost.recipe.context
        tokens = _tokens(replace(setting, minibatch=samples), longest)
        total = room.needed(replace(cost, recipe=cost.recipe.by(context=each)), tokens, longest).total
        if total <= limit:
            batch = "" if setting.global_batch else f" --minibatch {samples}"
            yield _sized(f"--context {each}{batch}", total)
            return


def _more(setting: Setting, limit: float, *, larger_batch: bool = False) -> Iterator[str]:
    """As few more devices as fit."""
    longest = setting.trace.longest
    for larger in _larger(setting, larger_batch=larger_batch):
        total = room.needed(_leanest(larger), _tokens(larger, longest), longest).total
        if total <= limit:
            beside = f" and --global-batch {larger.global_batch}" if larger_batch else ""
            yield _sized(f"{larger.cost.cluster.gpus} devices{beside}", total)
            return


def _together(setting: Setting, limit: float) -> Iterator[str]:
    """Two at once: adapters with another way out, and more devices with a cutoff of half the longest sample."""
    adapters = replace(setting, cost=replace(setting.cost, recipe=replace(setting.cost.recipe, lora=RANK)))
    yield from (f"--lora {RANK} and {way}" for way in [*_more(adapters, limit), *_shorter(adapters, limit)])
    for larger in _larger(setting):
        if 2 * _cutoff(larger, limit) >= setting.trace.longest:
            yield from (f"{larger.cost.cluster.gpus} devices and {way}" for way in _shorter(larger, limit))
            return

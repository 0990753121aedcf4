"""Other ways to run what a run held, each evaluated: settings, repairs, samplers, and another engine."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from odcsim.decide import limit, stock
from odcsim.decide.diagnosis.outcome import EFFORTS
from odcsim.decide.diagnosis.replay import SLOW, Replay
from odcsim.decide.evaluate import Evaluation, Pair, evaluate
from odcsim.decide.setting import MEET
from odcsim.decide.way import Way
from odcsim.errors import InputError
from odcsim.profile import TRANSFERS
from odcsim.program import ONE_SIDED, sync_named
from odcsim.results.intervals import RUN, interval
from odcsim.schedule import Schedule, flattened
from odcsim.timeline import Floats

SETTING, REPAIR, SAMPLER, ENGINE = EFFORTS
SAMPLERS = ("sorted-slice", "lb-micro")
FREE = ("lb-mini", ONE_SIDED)
CLEARLY = 1.03  # times the gain, below which there is no reason to change more
FEWER = 1.25  # times as many microbatches or as few, from which on a way says so
ANEW = 32  # minibatches, at least, of what a trainer makes of the same samples
WORTH = 0.01  # of the step, from which on transfers are worth a line
LOST = 0.03  # of the step, from which on what the host loses is worth a repair
BOUND = "that it can be fixed entirely"
TOGETHER = "all of these repairs together, at best"
HOST = {
    "loader": "a data loader that keeps up, at best",
    "collector": "no garbage collected inside steps, at best",
    "launch": "a host that launches ahead of its device, at best",
}


@dataclass(frozen=True, slots=True)
class TriedWay:
    """A way, and what came of it."""

    effort: str
    way: str
    evaluation: Evaluation = field(repr=False)
    gain: tuple[float, float, float]  # with its interval
    rests: str = ""

    @property
    def pair(self) -> Pair:
        return self.evaluation.rows[0].pair


def alternatives(replay: Replay) -> Iterator[TriedWay]:
    """All that may be worth it, in order of effort."""
    yield from _own_deal(replay)
    yield from _stock(replay)
    yield from _repaired(replay)
    yield from _dealt_anew(replay)


def _repaired(replay: Replay) -> Iterator[TriedWay]:
    """What is slow beside the samples, mended: bounds, each alone and all together."""
    places, cost = list(replay.deals.places), replay.setting.cost
    lost = {
        way: np.asarray(replay.found.by_step[part], float)[places]
        for part, way in HOST.items()
        if part in replay.found.by_step and replay.found.share(part) >= LOST
    }
    for way, seconds in lost.items():
        yield TriedWay(REPAIR, way, replay.evaluation, replay.mended(seconds), BOUND)
    total = sum(lost.values(), start=np.zeros(len(places)))
    if cost.cluster.slow:
        ranks = ", ".join(str(device) for device, pace in cost.cluster.slow if pace > SLOW)
        even = replace(replay.setting, cost=replace(cost, cluster=replace(cost.cluster, slow=())))
        other = replay.priced(replay.deals.padded, even)
        way = f"{'ranks' if ',' in ranks else 'rank'} {ranks} as fast as the others"
        yield TriedWay(REPAIR, way, other, _of(replay, other), BOUND)
        if lost:
            yield TriedWay(REPAIR, TOGETHER, other, _of(replay, other, total), BOUND)
    elif len(lost) > 1:
        yield TriedWay(REPAIR, TOGETHER, replay.evaluation, replay.mended(total), BOUND)


def _own_deal(replay: Replay) -> Iterator[TriedWay]:
    """The run's own deal otherwise: without padding, in fuller microbatches, sharded inside nodes."""
    deals, setting = replay.deals, replay.setting
    if deals.pads:
        other = replay.priced(deals.bare)
        rests = "kernels that take samples of several lengths in one row"
        yield TriedWay(SETTING, "the same microbatches without padding", other, _of(replay, other), rests)
    larger = max(limits(replay))
    if larger > deals.limit and not setting.trainer:
        meets = sync_named(replay.run.sync).meets
        filled = [fuller(schedule, larger, meets=meets) for schedule in deals.bare]
        other = replay.priced(filled, replace(setting, max_tokens=larger))
        way = f"up to {larger:,} tokens in a microbatch{' without padding' if deals.pads else ''}"
        yield TriedWay(SETTING, way, other, _of(replay, other))
    cluster, full = setting.cost.cluster, setting.cost.sharded == "full" and setting.cost.cluster.nodes > 1
    if full and cluster.gpus % cluster.devices_per_node == 0 and replay.found.share("transfer") > WORTH:
        known = tuple(t for t in setting.cost.profile.timings if t.kind not in TRANSFERS)
        cost = replace(setting.cost.by(sharding="hybrid"), profile=replace(setting.cost.profile, timings=known))
        other = replay.priced(deals.padded, replace(setting, cost=cost))
        rests = "rates of the cluster in the place of transfers as they were seen"
        yield TriedWay(SETTING, "hybrid sharding: every node holds all parameters", other, _of(replay, other), rests)


def fuller(schedule: Schedule, most: int, *, meets: bool) -> Schedule:
    """Each device's samples in their order, in as few microbatches as hold them."""
    devices = []
    for device in schedule.devices:
        filled, tokens = list[tuple[int, ...]](), most
        for sample in (i for mb in device for i in mb):
            if tokens + schedule.lengths[sample] > most:
                filled.append(())
                tokens = 0
            filled[-1] += (sample,)
            tokens += schedule.lengths[sample]
        devices.append(filled)
    count = max(map(len, devices)) if meets else 0
    return schedule.dealt(flattened([[*of, *([()] * (count - len(of)))] for of in devices]))


def _stock(replay: Replay) -> Iterator[TriedWay]:
    """What the trainer runs by itself, of batches drawn anew from the same samples."""
    if stock.find(replay.setting.trainer) is None or replay.deals.whole:
        return
    steps, beside = len(replay.deals.places), float(replay.beside.sum())
    tokens = 0 if replay.fits and not replay.asked_limit else limits(replay)[0]
    again = steps * -(-ANEW // steps)
    anew = replace(replay.setting, stepped=False, in_order=False, minibatches=again, max_tokens=tokens)
    try:
        every = stock.choose(anew)
    except InputError:
        return
    own = list[TriedWay]()
    for way in every:
        other = evaluate(way.setting, [way.pair])
        most = replay.most(other)
        gain, low, high = (min(of, most) for of in unlike(replay.evaluation, replay.ran, other, beside))
        own.append(TriedWay(SETTING, own_way(way), other, (gain, low, high), "batches drawn anew"))
    yield from of_rules(own)


def of_rules(every: Iterable[TriedWay]) -> Iterator[TriedWay]:
    """The faster sync of each rule of a trainer."""
    best: dict[str, TriedWay] = {}
    for one in every:
        rule = one.evaluation.rows[0].balancer
        best[rule] = max(best.get(rule, one), one, key=lambda one: one.gain[0])
    yield from best.values()


def own_way(way: Way) -> str:
    """A trainer's, in words."""
    assert way.rule is not None
    each = f", {way.setting.each} at once" if way.setting.each else f", of up to {way.setting.limit:,} tokens"
    met = ", gradients sent after each" if sync_named(way.sync).push_every_microbatch and way.accumulates else ""
    return f"{way.setting.trainer}: {way.rule.says}{each}{met}"


def unlike(ran: Evaluation, took: Floats, other: Evaluation, beside: float = 0.0) -> tuple[float, float, float]:
    """The gain of other minibatches over those that ran and took so long: for as many tokens, with its interval. The
    deviations of both add up. `beside`: seconds of all steps that no schedule changes."""
    [row], [usage], [was] = other.rows, other.usages, ran.rows
    tokens = was.tokens_per_second * was.makespan_seconds
    times = tokens / (row.tokens_per_second * row.makespan_seconds) * float(usage.makespan.sum())
    gain = float(took.sum()) / (times + beside)
    ends = [
        interval(of, np.full(len(of), of.mean()), draws, RUN)
        for of, draws in ((took, ran.draws), (usage.makespan, other.draws))
    ]
    low, high = (float(np.hypot(*(np.log(end[side]) for end in ends))) for side in (0, 1))
    return gain, gain * float(np.exp(-low)), gain * float(np.exp(high))


def _dealt_anew(replay: Replay) -> Iterator[TriedWay]:
    """The best where a sampler deals each step's samples, and under on-demand. Gradients leave when they did, unless
    another moment brings clearly more."""
    ran = replay.run.sync
    if not sync_named(ran).meets:
        yield _best(replay, SAMPLER, [FREE])
        return
    mine, *others = (
        _best(replay, SAMPLER, [(name, sync) for name in SAMPLERS])
        for sync in sorted(MEET, key=lambda sync: sync != ran)
    )
    yield mine
    yield from (other for other in others if other.gain[0] > CLEARLY * mine.gain[0])
    yield _best(replay, ENGINE, [FREE])


def limits(replay: Replay) -> tuple[int, ...]:
    """Of a microbatch: what was asked, or what ran, and what is fastest of what fits, where memory is known."""
    setting, ran = replay.setting, replay.deals.limit
    if replay.asked_limit and not replay.deals.whole:
        return (replay.asked_limit,)
    if replay.deals.whole or not replay.fits:
        return (ran,)
    return tuple(sorted({ran, limit.choose(setting).limit}))


def _best(replay: Replay, effort: str, pairs: Sequence[Pair]) -> TriedWay:
    """Of these at each limit, of what fits."""
    every = []
    for tokens in limits(replay):
        other = evaluate(replace(replay.setting, max_tokens=tokens), pairs)
        for row, usage in zip(other.rows, other.usages, strict=True):
            one = replace(other, rows=(row,), usages=(usage,))
            every.append(TriedWay(effort, named(one, replay.evaluation), one, _of(replay, one)))
    fitting = [one for one in every if one.evaluation.rows[0].memory_fits is not False] or every
    return max(fitting, key=lambda one: one.gain[0])


def named(other: Evaluation, ran: Evaluation) -> str:
    """A deal under a sync in words, with what it changes beside who has which samples."""
    [row], [was], limit = other.rows, ran.rows, other.setting.limit
    full = f", up to {limit:,} tokens in a microbatch" if limit != ran.setting.limit else ""
    clearly = not 1 / FEWER < row.microbatches / was.microbatches < FEWER
    count = f", in {row.microbatches:.2g} instead of {was.microbatches:.2g} microbatches a device" if clearly else ""
    return f"{row.balancer} under {row.sync}{full}{count}"


def _of(replay: Replay, evaluation: Evaluation, less: Floats | float = 0.0) -> tuple[float, float, float]:
    """`less`: seconds of each step that it spares beside."""
    other: Floats = evaluation.usages[0].makespan + np.maximum(replay.beside - less, 0.0)
    return replay.gain(other, evaluation)

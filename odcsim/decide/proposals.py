"""What a trainer's configuration could say instead, for the same samples in a step: other rules to fill microbatches,
other sizes of them, less computed again, other kernels, other shards. Each is priced as the configuration is."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from odcsim.catalog.estimates.rates import family_of, rates
from odcsim.decide import room, stock
from odcsim.decide.decision import NOTABLE
from odcsim.decide.levers import AGAIN, BATCH, BY_LENGTH, CUT, SHARDING, SHORT
from odcsim.decide.priced_step import FEW, PricedStep, Surroundings
from odcsim.decide.remedies import WHOLE
from odcsim.decide.setting import Setting
from odcsim.errors import InputError
from odcsim.neighbours.neighbour import CUTS, IN_BATCHES, IN_FULL_ROWS, IN_PADDED, IN_ROWS, ChosenRow, Rule, lacking
from odcsim.program import SHARDINGS
from odcsim.reading.stats import quantiles
from odcsim.recipe import RECOMPUTE
from odcsim.results import capacity
from odcsim.trace import GRPO, SFT

FILL, KERNEL, LOSS, STACK, SYNC, HOST = "microbatches", "kernel", "loss", "stack", "sync", "host"
LEAST = 1.02  # times as fast: less is within what estimates of alike runs differ by
MOST = 4  # changes, one on the other
TWICE = 1.9  # about
LIMITS = 5  # of a microbatch that are tried
FLAT = ("fa2", "fa3")  # kernels that keep samples of a flattened batch apart
COUNTED, PACKED = (IN_PADDED, IN_BATCHES), (IN_ROWS, IN_FULL_ROWS)
OTHER = 0.1  # of a step's samples: with more or fewer it is another batch


@dataclass(frozen=True, slots=True)
class Proposal:
    """A change, and what a step comes to with it and with all before it."""

    kind: str
    step: PricedStep
    times: float  # as fast as before it, by the token


def propose(of: Surroundings, base: PricedStep, *, launched: bool, fixed: Sequence[str] = ()) -> list[Proposal]:
    """Changes that make a step faster, or make room where it lacks, one on the other: each time what brings most of
    what leaves training as it is. `launched`: whether how it is started may be changed, too. `fixed`: kinds
    that the trainer's own settings do not decide."""
    if base.row.kind == GRPO:  # no change is one of generation
        of = replace(of, words={**of.words, "generation": base.generation})
    now, kinds, kept = of.price(base.row, FEW), [*fixed], list[Proposal]()
    before = base
    while len(kept) < MOST:
        every = ((kind, row) for kind, row in changes(of, now, launched=launched) if kind not in kinds)
        if (best := _best(of, now, every)) is None:
            break
        kind, now = best
        step = of.price(now.row)
        kinds.append(kind)
        if not better(step, before):  # of few steps it was
            continue
        kept.append(Proposal(kind, step, before.per_token / step.per_token))
        before = step
    return [] if capacity.level(before.need) == capacity.OVER else kept


def propose_others(of: Surroundings, base: PricedStep) -> list[Proposal]:
    """What would make it faster and is another training: each by itself, of each kind the one that brings most."""
    kept: dict[str, Proposal] = {}
    for kind, row in others(of, base):
        try:
            step = of.price(as_synced(of, row, base.row))
        except InputError:
            continue
        if kind in kept and not better(step, kept[kind].step):
            continue
        if better(step, base) and base.per_token > NOTABLE * step.per_token:
            kept[kind] = Proposal(kind, step, base.per_token / step.per_token)
    return sorted(kept.values(), key=lambda one: -one.times)


def others(of: Surroundings, now: PricedStep) -> Iterator[tuple[str, ChosenRow]]:
    """Batches alike in length; larger ones, of more microbatches, of larger ones, or packed into a row of each device;
    samples cut shorter."""
    row = now.row
    counted = row.balancer in COUNTED
    if counted and row.kind == SFT and not row.group_by_length and "by_length" in of.trainer.knows:
        yield BY_LENGTH, replace(row, group_by_length=True)
    if row.kind != GRPO:
        yield BATCH, replace(row, minibatch=2 * row.minibatch, microbatches=2 * row.microbatches)
        if counted:
            yield BATCH, replace(row, minibatch=2 * row.minibatch, each=2 * row.each)
        limit, packing = row.longest or of.trace.longest, [rule for rule in of.trainer.rules if rule.rows is not None]
        if counted and packing and row.kind == SFT and limit > row.minibatch * of.trace.mean:
            one = replace(row, each=0, rows=1, max_tokens=limit, longest=limit, minibatch=1, microbatches=1.0)
            yield BATCH, replace(one, balancer=packing[0].balancer, group_by_length=False)
        at = int(quantiles(of.trace, [SHORT])[0]) // WHOLE * WHOLE
        if 0 < at < min(of.trace.longest, row.longest or of.trace.longest) and counted:
            yield CUT, replace(row, longest=at, cutting=CUTS)


def as_synced(of: Surroundings, row: ChosenRow, before: ChosenRow) -> ChosenRow:
    """Of one microbatch gradients leave at once; of several after the last, where the trainer does so by itself and
    nobody said otherwise."""
    syncs = ("collective",) if row.meets else of.trainer.syncs
    if row.accumulation == 1:
        return _by(row, sync=syncs[-1])
    if before.accumulation == 1 and row.recipe.sync == before.recipe.sync:
        return _by(row, sync=syncs[0])
    return row


def _best(of: Surroundings, now: PricedStep, every: Iterator[tuple[str, ChosenRow]]) -> tuple[str, PricedStep] | None:
    """Of changes the one that brings most, on few steps."""
    best: tuple[str, PricedStep] | None = None
    for kind, row in every:
        try:
            one = of.price(as_synced(of, row, now.row), FEW)
        except InputError:
            continue
        if better(one, now if best is None else best[1]) and better(one, now):
            best = kind, one
    return best


def better(one: PricedStep, other: PricedStep) -> bool:
    """That fits before what is tight or lacks room; else that is faster; where neither fits, that lacks less."""
    levels = capacity.level(one.need), capacity.level(other.need)
    if levels[0] != levels[1]:
        return levels[0] < levels[1]
    if levels[0] == capacity.OVER:
        return one.need.memory_bytes * LEAST < other.need.memory_bytes
    return one.per_token * LEAST < other.per_token


def changes(of: Surroundings, now: PricedStep, *, launched: bool) -> Iterator[tuple[str, ChosenRow]]:
    """Each is of one kind alone."""
    row, knows = now.row, of.trainer.knows
    yield from fills(of, now)
    for how in RECOMPUTE:
        if how != row.recipe.recompute and how != "layers" and (how != "operators" or how in knows):
            yield AGAIN, _by(row, recompute=how)
    if row.recipe.value("loss") == "whole" and "chunked" in knows:
        yield LOSS, _by(row, loss="chunked")
    if "attention" in knows:
        for kernel in rates(family_of(now.setting.cost.profile.gpu)).attention:
            if kernel in ("fa2", "fa3", "sdpa") and kernel != row.attention:
                yield KERNEL, replace(_by(row, attention=kernel), attention=kernel)
    if row.recipe.value("stack") == "plain" and "compiled" in knows:
        yield STACK, _by(row, stack="compiled")
    if row.recipe.offload and "on_host" in knows:
        yield HOST, _by(row, offload=False)
    if not row.recipe.offload and "on_host" in knows and not now.need.memory_fits:
        yield HOST, _by(row, offload=True)
    if row.accumulation > 1 and not row.meets:
        yield from ((SYNC, _by(row, sync=sync)) for sync in of.trainer.syncs if sync != row.recipe.sync)
    if launched and row.devices > 1:
        for how in SHARDINGS:
            other = _by(row, sharding=how, **({"offload": False} if how == "none" else {}))
            if how != row.recipe.on(row.nodes).sharding and not lacking(of.trainer, other.recipe.on(row.nodes)):
                yield SHARDING, other
        if not row.whole and "reshard" in knows:
            yield SHARDING, _by(row, reshard=not row.recipe.reshard)


def _by(row: ChosenRow, **words: object) -> ChosenRow:
    return replace(row, recipe=row.recipe.by(**words))


def fills(of: Surroundings, now: PricedStep) -> Iterator[tuple[str, ChosenRow]]:
    """Other microbatches of about as many samples a step: by every rule that the trainer has for them, and of every
    size that divides a device's share, or that memory has room for."""
    row, trace = now.row, now.setting.trace
    samples = row.minibatch
    if row.balancer in PACKED:
        samples = max(1, round(samples * trace.size / trace.bundles.size))
    one = replace(row, each=1, rows=1, max_tokens=0, minibatch=samples)
    rules = [rule for rule in of.trainer.rules if not rule.kinds or row.kind in rule.kinds]
    counted = {rule.balancer for rule in rules if rule.balancer in COUNTED and row.kind != GRPO}
    counted |= {row.balancer} & {*COUNTED}
    if "flattened" in of.trainer.knows and row.attention in FLAT and row.kind != GRPO:
        counted.add(IN_BATCHES)
    for balancer in sorted(counted):
        for each in sizes(samples):
            if (balancer, each) != (row.balancer, row.each):
                yield FILL, replace(one, balancer=balancer, each=each, microbatches=samples / each)
    for rule in rules:
        if rule.rows is not None and row.kind == SFT and not row.group_by_length:
            asked = of.setting(replace(one, balancer=IN_PADDED), FEW)
            yield from ((FILL, apart(of, other)) for other in rows(rule, row, asked, of.trace.longest))
        elif rule.rows is None and rule.balancer not in COUNTED:
            for tokens in token_limits(now):
                if (rule.balancer, tokens) != (row.balancer, row.max_tokens):
                    yield FILL, replace(row, balancer=rule.balancer, each=0, max_tokens=tokens)


def sizes(samples: int) -> Iterator[int]:
    """Of a microbatch that divides so many samples, each about twice the one before it."""
    last = 0.0
    for each in range(1, samples + 1):
        if not samples % each and each >= TWICE * last:
            yield each
            last = each


def token_limits(now: PricedStep) -> list[int]:
    """Of a microbatch, from the longest sample up to what there is room for."""
    cost, trace, share = room.under(now.setting.cost, now.row.recipe.sync), now.setting.trace, now.setting.minibatch
    top, memory = max(trace.fullest, int(2 * trace.bundles.mean * share)), cost.cluster.memory_bytes
    most = room.fullest(cost, trace.longest, capacity.filled(memory), top) if memory else top
    each = now.row.recipe.context
    every = [tokens // each * each for tokens in room.limits(trace.fullest, most, trace.bundles.mean * share)]
    return every[:: max(1, len(every) // LIMITS)][-LIMITS:]


def apart(of: Surroundings, row: ChosenRow) -> ChosenRow:
    """With a kernel under which samples of a row do not attend to each other, where the trainer leaves that to it."""
    if "flattened" not in of.trainer.knows or row.attention in FLAT:
        return row
    return replace(_by(row, attention=FLAT[0]), attention=FLAT[0])


def rows(rule: Rule, row: ChosenRow, asked: Setting, longest: int) -> Iterator[ChosenRow]:
    """Rows that are packed, as many as hold about the samples of a step: `asked` has them singly. `longest`: of the
    data; where samples are cut or dropped, a row is as long as they are then, so that the same are."""
    cost, trace = room.under(asked.cost, row.recipe.sync), asked.trace
    top, memory = max(trace.longest, int(2 * asked.device_tokens)), cost.cluster.memory_bytes
    most = room.fullest(cost, trace.longest, capacity.filled(memory), top) if memory else top
    if most < trace.longest:
        return
    limits = room.limits(trace.longest, most, asked.device_tokens)[-2 * LIMITS :]
    for tokens in (row.longest,) if longest > row.longest > 0 else limits:
        of_rows = stock.packed(trace, rule, tokens, asked.seed)
        samples = of_rows.size / of_rows.bundles.size * asked.cost.workers
        count = max(1, round(asked.batch / samples))
        if abs(count * samples / asked.batch - 1) <= OTHER and (tokens, count) != (row.max_tokens, row.minibatch):
            yield replace(
                row, balancer=rule.balancer, each=0, rows=1, max_tokens=tokens, minibatch=count, longest=tokens,
                group_by_length=False, microbatches=float(count),
            )  # fmt: skip

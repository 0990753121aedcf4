"""What to rent, in sentences: this, because; the next best; what would change the answer."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from odcsim.answer import Answer, AnswerTable
from odcsim.decide import stock
from odcsim.decide.advice import Advice, Offer, Wish
from odcsim.decide.decision import NOTABLE
from odcsim.decide.levers import Levers
from odcsim.decide.remedies import outliers, remedies
from odcsim.decide.whole_run import epochs
from odcsim.recipe import SEARCHED
from odcsim.results import capacity
from odcsim.say import comparison_words, lever_words, row_words, setting_words
from odcsim.say.row_words import COLUMNS
from odcsim.say.spending_words import interval_of, paid_by
from odcsim.support.numbers import counted, duration, money

OFFERS = "Every number of GPUs"
NOT_RUN = "On demand nobody runs context parallelism."


def question(wish: Wish) -> str:
    """What is to be trained, and for how long. A trainer that packs rows takes other steps on other numbers of GPUs."""
    trainer, trace = wish.question.trainer, wish.trace
    steps = "" if wish.batches else f": {wish.steps:,} steps"
    by = steps if trainer is None else f" by {trainer}"
    batches = " or ".join(f"{batch:,}" for batch in wish.batches or (wish.global_batch,))
    lengths = f"{trace.name} ({trace.in_words}, longest {trace.longest:,} tokens)"
    return f"{wish.question.model}, {lengths}, {epochs(wish.epochs)} of batches of {batches}{by}"


def limits(wish: Wish) -> str:
    """Deadline and budget, as they were asked for."""
    late = f" within {duration(wish.deadline)}" if wish.deadline is not None else ""
    return late + (f" for {money(wish.budget)}" if wish.budget is not None else "")


def answer(advice: Advice, *, wide: bool = False, levers: Levers | None = None) -> Answer:
    """`wide`: with all columns of the offers."""
    wish = advice.wish
    ways = sum(offer.ways for offer in advice.offers)
    asked = f"{question(wish)}, {ways:,} ways to run"
    headline, *rest = sentences(advice)
    if not advice.rent and levers:
        rest = [*changed(advice, levers), *rest]
    refused = [f"{one.name}: {one.why}" for one in advice.refused]
    about = f"{wish.question.model}, {wish.trace.name}"
    tables = [offers(advice, wide=wide)] if advice.offers else []
    return lever_words.beside(Answer("Advice", about, headline, asked, tables, [*refused, *rest]), levers)


def changed(advice: Advice, levers: Levers) -> Iterator[str]:
    """Which single changes would be within deadline and budget, where no offer is."""
    wish, near = advice.wish, advice.nearest
    good = [
        f"{lever.change.flags} ({paid_by(lever.row)})"
        for lever in levers.found
        if (wish.deadline is None or lever.row.makespan_seconds <= wish.deadline)
        and (wish.budget is None or (lever.row.dollars or 0.0) <= wish.budget)
    ]
    if good and near:
        yield f"With one thing changed, {near.name} would: {'; '.join(good)}."


def offers(advice: Advice, *, wide: bool = False) -> AnswerTable:
    """What each number of GPUs comes to; beneath it how it runs, its memory, and how much of the devices is used."""
    wish, every = advice.wish, advice.offers
    paid = "dollars" if all(offer.dollars is not None for offer in every) else "gpu_hours"
    names = row_words.OFFERED if wide else ("time", "time between", paid, f"{paid} between")
    head, cells = row_words.table([replace(offer.row, memory_bytes=offer.memory_bytes) for offer in every], names)
    rows = [[offer.name, *row] for offer, row in zip(every, cells, strict=True)]
    marks = ["best" if offer is advice.rent else "" for offer in every]
    details = []
    for offer in every:
        mfu = f", MFU {COLUMNS['mfu'].text(offer.row)}" if offer.row.mfu is not None else ""
        used = "" if wide else f"; {capacity.text(offer)}, idle {COLUMNS['idle'].text(offer.row)}{mfu}"
        far = "" if offer.within(wish) else f"; not{limits(wish)}"
        details.append([f"{offer.chosen.way.how}{used}{far}"])
    spent = "GPU-hours and dollars" if wide else "dollars" if paid == "dollars" else "GPU-hours"
    says = f"Time and {spent} are of the whole run, {epochs(wish.epochs)}."
    return AnswerTable(["GPUs", *head], rows, OFFERS, marks=marks, details=details, says=says)


def sentences(advice: Advice) -> list[str]:
    within, rent = advice.within, advice.rent
    if not advice.offers:
        why = "the list says why, and what would help where that is known"
        return [f"None of these can run; {why}. If memory is short: more GPUs, LoRA or a smaller model."]
    if rent is None:
        return list(_out_of_reach(advice))
    others = [offer for offer in advice.offers if offer is not rent]
    because = lever_words.why(rent.row, rent.chosen.way.cost.workers)
    lines = [
        f"{_rent(advice.wish, rent, within)}{because and f' {because}'}",
        how(rent),
        *_memory(advice, rent, within),
        on_demand(rent),
    ]
    return [*lines, *_next(rent, within, others), *_changes(advice.wish, rent, others), *_trust(advice, rent)]


def costs(offer: Offer) -> str:
    """Hours and dollars in the middle of their intervals; and whether it is tight."""
    return f"{paid_by(offer.row)}{', tight in memory' if capacity.tight(offer) else ''}"


def _rent(wish: Wish, rent: Offer, every: Sequence[Offer]) -> str:
    """`every`: what is within deadline and budget, of which what fits memory is chosen from."""
    steps, samples = rent.row.minibatches, rent.chosen.way.samples
    done = f"{epochs(wish.epochs)}, {steps:,} steps of {samples:,.0f} {wish.trace.unit}s"
    good, within = capacity.roomiest(every), limits(wish)
    asked = [*(["fit memory"] if len(good) < len(every) else []), *([f"are done{within}"] if within else [])]
    count = f"of the {len(good)} that {' and '.join(asked)}" if asked else f"of {len(good)}"
    kind = "the cheapest" if rent.dollars is not None else "the one of fewest GPU-hours"
    one = " and ".join(asked).replace("fit ", "fits ").replace("are ", "is ")
    because = f"{kind} {count}" if len(good) > 1 else f"the only one that {one or 'can run'}"
    if rent is not good[0]:
        because = f"within 1 % of {kind} {count}, and faster"
    interval = "" if rent.row.certain else f" ({interval_of(rent.row)})"
    tight = f", and memory is {capacity.text(rent)}" if capacity.tight(rent) else ""
    return f"Rent {rent.name}: {done} take {paid_by(rent.row)}{interval}. It is {because}{tight}."


def how(offer: Offer) -> str:
    way, row, unit = offer.chosen.way, offer.row, offer.chosen.way.setting.trace.unit
    mfu = "" if row.mfu is None else f", {row.mfu:.{0 if row.mfu >= 0.01 else 1}%} MFU"
    tight = ": tight" if capacity.tight(offer) else ""
    used = f"{capacity.size(offer)} per device{tight}; devices idle {row.idle:.0%} of the time{mfu}"
    by = f"Run it by {way.name}, {way.words}"
    if row.made is not None:
        return f"{by}: {comparison_words.settings(row.made, unit)}; {used}."
    one = round(row.microbatches, 1) == 1  # others are an average
    packs = "1 microbatch" if one else f"{row.microbatches:.1f} microbatches"
    each = f"{counted(way.setting.minibatch, unit)} {setting_words.per_step(way.setting)}"
    return f"{by}: {each}, in {packs} of at most {way.setting.limit:,} tokens; {used}."


def _memory(advice: Advice, rent: Offer, within: Sequence[Offer]) -> Iterator[str]:
    """What is tight, what memory alone decides, and what would fit."""
    if capacity.tight(rent):
        ways_out = "; ".join(remedies(replace(rent.chosen.way.setting, max_tokens=0)))
        beside = f" Options that fit: {ways_out}." if ways_out else ""
        off = "some 5 % off at the median, and some by far more"
        yield f"Memory estimates are {off}, so a tight row may not fit.{beside}"
    fuller = [o for o in within if capacity.level(o) > capacity.level(rent) and o.spent < rent.spent]
    if fuller:
        first = min(fuller, key=lambda o: o.spent)
        times = f"{duration(first.seconds)} at {first.spent / rent.spent:.2f} times the cost"
        shorter = outliers(first.chosen.way.cost, advice.wish.trace, first.memory_limit or 0.0)
        room = f" {shorter}." if shorter else ""
        yield f"{first.name} would take {times}, but is tight: {capacity.size(first)} per device.{room}"
    if kept := rent.kept_out:
        what = "is tight in memory" if capacity.tight(kept.need) else "does not fit memory"
        how = f"{kept.way.words}, {kept.way.setting.limit:,} tokens ({capacity.size(kept.need)})"
        room = f" {kept.shorter}." if kept.shorter else ""
        yield f"This {what}, and would be {kept.gain:.2f} times as fast: {how}.{room}"


def on_demand(offer: Offer) -> str:
    without, with_it, gain = offer.without, offer.with_it, offer.gain or 0.0
    if offer.devices == 1 and offer.own is None:
        return setting_words.ALONE
    if offer.own is not None:  # what balancers and syncs would bring that the trainer has not
        trainer, gains = offer.own.way.setting.trainer, offer.with_engine
        if not any(times >= NOTABLE for times in gains.values()):
            return f"No balancer and no sync of odc_engine is notably faster than what {trainer} runs by itself."
        brought = " and ".join(f"{name} {times:.2f} times" for name, times in gains.items())
        return f"{trainer} runs that by itself. With odc_engine, {brought} as fast."
    if with_it is None:
        shared = offer.chosen.way.cost.recipe.context > 1
        return NOT_RUN if shared else "On-demand communication does not fit memory there."
    name = with_it.way.name
    if without is None:
        return f"Without on-demand communication nothing fits memory there; {name} does."
    unrun = f" {setting_words.UNRUN}" if with_it.way.cost.recipe.quantized else ""
    if gain >= NOTABLE:
        paid = "" if without.row.dollars is None else f" and {money(without.row.dollars)}"
        took = f"{without.way.name}, which takes {duration(without.row.makespan_seconds)}{paid}"
        return f"On-demand communication pays: {gain:.2f} times as fast as the best without it, {took}.{unrun}"
    slower = f"{name} takes {1 / gain:.2f} times as long" if gain < 0.995 else f"{name} is {gain:.2f} times as fast"
    return f"On-demand communication does not pay here: {slower}."


def _next(rent: Offer, within: Sequence[Offer], others: Sequence[Offer]) -> Iterator[str]:
    other = next((offer for offer in [*capacity.roomiest(within), *within, *others] if offer is not rent), None)
    if other is not None:
        faster = rent.seconds / other.seconds
        speed = f"{faster:.1f} times as fast" if faster > 1 else f"{1 / faster:.1f} times as long"
        beyond = "" if other in within else ", beyond what was asked for"
        against = f"{other.spent / rent.spent:.2f} times the cost, {speed}"
        yield f"Next best: {other.name}, {costs(other)}{beyond} ({against})."


def _changes(wish: Wish, rent: Offer, others: Sequence[Offer]) -> Iterator[str]:
    """What would change the answer: the long end of the interval, where it is beyond what was asked for; the price
    below which each other kind of GPU would be the cheapest; and a deadline that something else keeps."""
    _, high = rent.factors
    changes = []
    if wish.deadline is not None and rent.seconds * high > wish.deadline:
        changes.append(f"at the upper end of the interval it takes {duration(rent.seconds * high)}, over the deadline")
    if wish.budget is not None and rent.dollars is not None and rent.dollars * high > wish.budget:
        changes.append(f"at the upper end of the interval it costs {money(rent.dollars * high)}, over the budget")
    for gpu in dict.fromkeys(offer.gpu for offer in others if offer.gpu != rent.gpu):
        rivals = [o for o in others if o.gpu == gpu and (wish.deadline is None or o.seconds <= wish.deadline)]
        if rivals and rent.dollars is not None:
            rival = min(capacity.roomiest(rivals), key=lambda o: o.row.gpu_hours)
            changes.append(f"{gpu} at less than {money(rent.dollars / rival.row.gpu_hours)} an hour ({rival.name})")
    if faster := [o for o in others if o.seconds < rent.seconds]:
        first = min(capacity.roomiest(faster), key=lambda o: o.spent)
        changes.append(f"a deadline under {duration(rent.seconds)} ({first.name}: {costs(first)})")
    if changes:
        yield f"What would change the answer: {'; '.join(changes)}."


def _out_of_reach(advice: Advice) -> Iterator[str]:
    wish = advice.wish
    yield f"Nothing here finishes{limits(wish)}."
    ways = []
    if cheap := [o for o in advice.offers if wish.budget is None or (o.dollars or 0.0) <= wish.budget]:
        quick = min(capacity.roomiest(cheap), key=lambda o: o.seconds)
        ways.append(f"a deadline of {duration(quick.seconds)} ({quick.name}: {costs(quick)})")
    if soon := [o for o in advice.offers if wish.deadline is None or o.seconds <= wish.deadline]:
        ways.append(f"a budget of {money(soon[0].dollars or 0.0)} ({soon[0].name}: {costs(soon[0])})")
    if not ways:
        both = advice.offers[0]
        ways.append(f"{duration(both.seconds)} and {money(both.dollars or 0.0)} together ({both.name})")
    if near := advice.nearest:
        ways.append(f"{wish.epochs * near.share(wish):.3g} epochs instead of {wish.epochs:g} ({near.name})")
    yield f"What would work: {'; '.join(ways)}."


def _trust(advice: Advice, rent: Offer) -> Iterator[str]:
    question = advice.wish.question
    trainer = stock.find(question.trainer)
    if rent.row.fidelity == "extrapolated":
        yield "WARNING: some samples or microbatches are beyond what the seconds were fitted to: extrapolated."
    if trainer is not None:
        yield comparison_words.rules(trainer, advice.wish.trace, question.recipe)
        way = rent.chosen.way
        if way.setting.trace.bundle is None:  # of rows that are packed nothing was left out
            there = {one.balancer for one in stock.choose(way.setting)}
            yield from comparison_words.left_out(way.setting, trainer, there)
    searched = [name for name in SEARCHED if name != "sharding" or trainer is None or "hybrid" in trainer.knows]
    yield setting_words.searched(question.recipe, searched, question.on_demand_cost)
    origins = {o.gpu: o.chosen.way.cost.profile.origin for o in [*advice.offers[::-1], rent]}
    seconds = "; ".join(f"{gpu}: {origin}" for gpu, origin in origins.items())
    yield f"Training steps only, without data loading, evaluation and checkpoints. Seconds: {seconds}."
    yield from setting_words.reference(advice.wish.trace, rent.row.reference_seconds)
    if advice.wish.trace.origin:
        yield setting_words.lengths(advice.wish.trace.origin)

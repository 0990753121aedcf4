"""What to rent, in sentences: this, because; the next best; what would change the answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from odcsim.decide import fixed, stock, stock_words
from odcsim.decide.advice import room_words
from odcsim.decide.advice.wish import Wish
from odcsim.decide.answer import NEAR, NOTABLE
from odcsim.decide.answer_words import drawn
from odcsim.decide.whole_run import interval_of, spent_by
from odcsim.recipe import SEARCHED
from odcsim.results import capacity
from odcsim.support.numbers import counted, duration, hours, money

if TYPE_CHECKING:
    from odcsim.decide.advice.offers import Advice, Best, Offer, Pick  # which tell of themselves by these


def rented(advice: Advice) -> Offer | None:
    """The fastest of those that cost as little as any, to a percent: nobody waits a day to save a dollar. Tight in
    memory only where all are."""
    good = capacity.roomiest(fitting(advice))
    return min((o for o in good if o.spent <= NEAR * good[0].spent), key=lambda o: o.seconds, default=None)


def fitting(advice: Advice) -> list[Offer]:
    """The offers within deadline and budget, cheapest first."""
    return [offer for offer in advice.offers if offer.within(advice.wish)]


def sentences(advice: Advice) -> list[str]:
    within, rent = fitting(advice), rented(advice)
    if not advice.offers:
        why = "the list says why, and what would help where that is known"
        return [f"None of these can run; {why}. If memory is short: more GPUs, LoRA or a smaller model."]
    if rent is None:
        return list(_out_of_reach(advice))
    others = [offer for offer in advice.offers if offer is not rent]
    lines = [_rent(advice.wish, rent, within), how(rent), *room_words.idle(rent)]
    lines += [*room_words.memory(advice, rent, within), on_demand(rent)]
    return [*lines, *_next(rent, within, others), *_changes(advice.wish, rent, others), *_trust(advice, rent)]


def limits(wish: Wish) -> str:
    """Deadline and budget, as they were asked for."""
    late = f" within {duration(wish.deadline)}" if wish.deadline is not None else ""
    return late + (f" for {money(wish.budget)}" if wish.budget is not None else "")


def costs(offer: Offer) -> str:
    """Hours and dollars in the middle of their intervals; and whether it is tight."""
    return f"{_paid(offer)}{', tight in memory' if capacity.tight(offer) else ''}"


def _paid(offer: Offer) -> str:
    return spent_by(offer.row) + (f" and {hours(offer.gpu_hours)} GPU-hours" if offer.dollars is None else "")


def _rent(wish: Wish, rent: Offer, every: Sequence[Offer]) -> str:
    """`every`: what is within deadline and budget, of which what fits memory is chosen from."""
    epochs, run = f"{wish.epochs:g} epoch{'' if wish.epochs == 1 else 's'}", rent.chosen
    done = f"{epochs}, {run.steps:,} steps of {run.samples:,.0f} {wish.trace.unit}s"
    good, within = capacity.roomiest(every), limits(wish)
    asked = [*(["fit memory"] if len(good) < len(every) else []), *([f"are done{within}"] if within else [])]
    count = f"of the {len(good)} that {' and '.join(asked)}" if asked else f"of {len(good)}"
    kind = "the cheapest" if rent.dollars is not None else "the one of fewest GPU-hours"
    one = " and ".join(asked).replace("fit ", "fits ").replace("are ", "is ")
    because = f"{kind} {count}" if len(good) > 1 else f"the only one that {one or 'can run'}"
    if rent is not good[0]:
        because = f"within 1 % of {kind} {count}, and faster"
    interval = "" if rent.row.certain else f" ({interval_of(rent.row)})"
    tight = f", and memory is {capacity.told(rent)}" if capacity.tight(rent) else ""
    return f"Rent {rent.name}: {done} take {_paid(rent)}{interval}. It is {because}{tight}."


def how(offer: Offer) -> str:
    way, made, unit = offer.chosen.way, offer.row.made, offer.chosen.way.setting.trace.unit
    by = f"Run it by {way.name}, {way.words}"
    if made is not None:
        return f"{by}: {stock_words.settings(made, unit)}; {room_words.used(offer)}."
    return (
        f"{by}: {counted(way.setting.minibatch, unit)} per device and step, in {_packs(offer.row.microbatches)} "
        f"of at most {way.setting.limit:,} tokens; {room_words.used(offer)}."
    )


def _packs(microbatches: float) -> str:
    """1.0 of them is one; others are an average."""
    return "1 microbatch" if round(microbatches, 1) == 1 else f"{microbatches:.1f} microbatches"


def on_demand(offer: Offer) -> str:
    best = offer.best
    if best.own is not None:
        return _beside(best)
    if best.with_it is None:
        return "On-demand communication does not fit memory there."
    name = best.with_it.way.name
    if best.without is None:
        return f"Without on-demand communication nothing fits memory there; {name} does."
    gain = best.gain or 0.0
    if best.pays:
        took = _took(best.without)
        return f"On-demand communication pays: {gain:.2f} times as fast as the best without it, {took}."
    slower = f"{name} takes {1 / gain:.2f} times as long" if gain < 0.995 else f"{name} is {gain:.2f} times as fast"
    return f"On-demand communication does not pay here: {slower}."


def _beside(best: Best) -> str:
    """What balancers and syncs would bring that the trainer has not."""
    gains = best.with_engine
    if not any(gain >= NOTABLE for gain in gains.values()):
        return f"No balancer and no sync of odc_engine is notably faster than what {best.trainer} runs by itself."
    listed = " and ".join(f"{name} {gain:.2f} times" for name, gain in gains.items())
    return f"{best.trainer} runs that by itself. With odc_engine, {listed} as fast."


def _took(run: Pick) -> str:
    paid = "" if run.row.dollars is None else f" and {money(run.row.dollars)}"
    return f"{run.way.name}, which takes {duration(run.row.makespan_seconds)}{paid}"


def _next(rent: Offer, within: Sequence[Offer], others: Sequence[Offer]) -> Iterator[str]:
    runner_up = next((offer for offer in [*capacity.roomiest(within), *within, *others] if offer is not rent), None)
    if runner_up is None:
        return
    beyond = "" if runner_up in within else ", beyond what was asked for"
    yield f"Next best: {runner_up.name}, {costs(runner_up)}{beyond} ({_against(rent, runner_up)})."


def _against(rent: Offer, other: Offer) -> str:
    mine, its = rent.spent, other.spent
    faster = rent.seconds / other.seconds
    speed = f"{faster:.1f} times as fast" if faster > 1 else f"{1 / faster:.1f} times as long"
    return f"{its / mine:.2f} times the cost, {speed}"


def _changes(wish: Wish, rent: Offer, others: Sequence[Offer]) -> Iterator[str]:
    """What would change the answer."""
    changes = [*_late(wish, rent), *_prices(wish, rent, others), *_sooner(rent, others)]
    if changes:
        yield f"What would change the answer: {'; '.join(changes)}."


def _late(wish: Wish, rent: Offer) -> Iterator[str]:
    """The long end of the interval, where it is beyond what was asked for."""
    _, high = rent.factors
    if wish.deadline is not None and rent.seconds * high > wish.deadline:
        yield f"at the upper end of the interval it takes {duration(rent.seconds * high)}, over the deadline"
    if wish.budget is not None and rent.dollars is not None and rent.dollars * high > wish.budget:
        yield f"at the upper end of the interval it costs {money(rent.dollars * high)}, over the budget"


def _prices(wish: Wish, rent: Offer, others: Sequence[Offer]) -> Iterator[str]:
    """Below which price each other kind of GPU would be the cheapest."""
    for gpu in dict.fromkeys(offer.gpu for offer in others if offer.gpu != rent.gpu):
        rivals = [o for o in others if o.gpu == gpu and (wish.deadline is None or o.seconds <= wish.deadline)]
        if rivals and rent.dollars is not None:
            rival = min(capacity.roomiest(rivals), key=lambda o: o.gpu_hours)
            yield f"{gpu} at less than {money(rent.dollars / rival.gpu_hours)} an hour ({rival.name})"


def _sooner(rent: Offer, others: Sequence[Offer]) -> Iterator[str]:
    faster = [o for o in others if o.seconds < rent.seconds]
    if faster:
        first = min(capacity.roomiest(faster), key=lambda o: o.spent)
        yield f"a deadline under {duration(rent.seconds)} ({first.name}: {costs(first)})"


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
    share, where = max(((_share(wish, o), o) for o in capacity.roomiest(advice.offers)), key=lambda pair: pair[0])
    ways.append(f"{wish.epochs * share:.3g} epochs instead of {wish.epochs:g} ({where.name})")
    yield f"What would work: {'; '.join(ways)}."


def _share(wish: Wish, offer: Offer) -> float:
    """How much of the run is within deadline and budget."""
    time = 1.0 if wish.deadline is None else wish.deadline / offer.seconds
    return min(time, 1.0 if wish.budget is None else wish.budget / (offer.dollars or wish.budget))


def _trust(advice: Advice, rent: Offer) -> Iterator[str]:
    origins = {o.gpu: o.chosen.way.cost.profile.origin for o in [*advice.offers[::-1], rent]}
    if rent.row.fidelity == "extrapolated":
        yield "WARNING: some samples or microbatches are beyond what the seconds were fitted to: extrapolated."
    if (trainer := stock.known(advice.wish.question.trainer)) is not None:
        yield stock_words.rules(trainer, advice.wish.question.recipe)
    searched = [name for name in SEARCHED if name != "sharding" or trainer is None or "hybrid" in trainer.knows]
    yield fixed.beside(advice.wish.question.recipe, searched, advice.wish.question.on_demand_cost)
    yield f"Training steps only, without data loading, evaluation and checkpoints. Seconds: {_joined(origins)}."
    if advice.wish.trace.origin:
        yield drawn(advice.wish.trace.origin)


def _joined(origins: dict[str, str]) -> str:
    return "; ".join(f"{gpu}: {origin}" for gpu, origin in origins.items())

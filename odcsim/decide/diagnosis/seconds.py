"""The seconds of a run that exists as a profile, so that other ways are priced by what this one took."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from odcsim.catalog.estimates.work import OWN_ORIGIN, own_seconds
from odcsim.cost import GATHER_BYTES
from odcsim.decide.diagnosis.deals import RanDeals, computed
from odcsim.errors import InputError
from odcsim.fitting import parts
from odcsim.fitting.fit import examine
from odcsim.fitting.parts import WRONG
from odcsim.measurements import Compute, Measurements, Transfer, timed
from odcsim.model import Model
from odcsim.observed.run import RanStep, SeenRun
from odcsim.profile import Polynomial, Profile, Timing
from odcsim.program import sync_named
from odcsim.recipe import Recipe
from odcsim.timeline import Floats

GATHERS, PUSHES, SUMS = "all-gather", "reduce-scatter", "all-reduce"
FLOORS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)  # of microbatches, up to which launching may be all
ABOVE = 1.1  # times that, from which on a microbatch tells what its tokens take
FEW = 8  # of those, at least
MOST = 1500  # microbatches that are fitted, evenly over the run: more tell no more, and a fit compares each with each
BETTER = 0.7  # times as far off: so much better a fit has to be that has a floor
MEASURED = "the seconds of each microbatch as they were measured"
ALONE = {GATHERS: "gather", PUSHES: "push"}  # the one-sided transfer that does the same


@dataclass(frozen=True, slots=True)
class RanSeconds:
    """The profile, and in words what it rests on and what it does not tell."""

    profile: Profile
    rests: str
    cannot: tuple[str, ...] = ()


def plain(run: SeenRun) -> Model:
    """What a run shows of its model: so many layers, of as many parameters as are gathered at once. It has no work of
    its own: all seconds are the profile's."""
    sizes = _sizes(run, GATHERS)
    layer = sizes.most_common(1)[0][0] if sizes else 0
    root = max((size for size in sizes if size != layer), default=0)
    least = Model("what ran", run.layers or 1, 1, 0, 0, 0, 0, 1, True)
    outside = max(0, round(root / GATHER_BYTES) - least.root_parameters)
    return replace(least, vectors=round(layer / GATHER_BYTES), outside=outside)


def measured(
    run: SeenRun,
    deals: RanDeals,
    model: Model,
    recipe: Recipe,
    paces: Mapping[int, float],
    gpu: str,
    slower: float = 1.0,
    holders: int = 0,
    *,
    rates: bool = False,
) -> RanSeconds:
    """`slower`: how many times as long as a collective a one-sided transfer takes. `holders`: devices that hold a unit
    together, where those are not all. `rates`: the cluster's are known, for transfers that compute does not hold."""
    waited = not any(mb.seconds for step in deals.held for device in step for mb in device)
    if deals.whole:
        fitted, basis, cannot = _by_tokens(deals.unit, model, recipe, gpu, deals), MEASURED, tuple[str, ...]()
    else:
        fitted, basis, cannot = _by_squares(deals, model, recipe, paces, gpu)
    moved, said = ((), "transfers are in their seconds") if waited else _timings(run, deals, model, recipe, slower)
    moved = tuple(replace(timing, devices=holders or run.ranks) for timing in moved)
    by_rates = not moved and not waited and rates and any(step.tracks for step in run.steps)
    if not moved and not waited and any(step.tracks for step in run.steps):
        said = "transfers are not known apart, and taken to be hidden"
    said = "transfers by the rates of the GPUs that were asked for" if by_rates else said
    updates = [seconds for seconds in run.updates if timed(seconds)]
    constants = (Timing("optimizer", run.ranks, float(np.median(updates))),) if updates else ()
    profile = replace(
        fitted,
        fidelity="calibrated",
        origin=f"{basis}, {said}; {OWN_ORIGIN}",
        timings=(*moved, *constants),
        publish=own_seconds(model),
        node_transfers_included=not moved and not by_rates,
    )
    if not moved and not by_rates:
        zeros = tuple(Timing(kind, run.ranks) for kind in (*ALONE, *ALONE.values()))
        profile = replace(profile, timings=(*zeros, *profile.timings))
    return RanSeconds(profile, f"{basis}; {said}", cannot)


def _by_squares(
    deals: RanDeals, model: Model, recipe: Recipe, paces: Mapping[int, float], gpu: str
) -> tuple[Profile, str, tuple[str, ...]]:
    """Seconds by tokens and squares of lengths, or by tokens alone where too little is known."""
    rows = list(_rows(deals, model, paces))
    if not rows:
        fix = "give traces, or what the watcher writes"
        raise InputError("no seconds of any microbatch are known", where=deals.trace.name, fix=fix)
    rows = rows[:: -(-len(rows) // MOST)]
    ran = sum(len(device) for step in deals.held for device in step)
    how = f"{len(rows):,} microbatches" if len(rows) == ran else f"{len(rows):,} of {ran:,} microbatches"
    measurements = Measurements(model.name, gpu, tuple(rows))
    try:
        profile = _in_layers(examine(measurements, model.layers, recipe=recipe).profile, model)
    except InputError:
        each = sum(row.seconds for row in rows) / sum(row.tokens for row in rows)
        cannot = "how seconds grow with squares of lengths: these microbatches are too few or too alike"
        return _by_tokens(each, model, recipe, gpu, deals), f"{how}, by their tokens alone", (cannot,)
    every = [profile, *_floored(measurements, model, recipe)]
    best = min(every, key=lambda one: float(_off(one, rows, model).mean()) * (BETTER if one is profile else 1))
    missed = int((_off(best, rows, model) > WRONG).sum())
    doubts = (
        (f"{missed} of {len(rows):,} microbatches took longer or shorter than their tokens and squares predict",)
        if missed
        else ()
    )
    least = "" if best is profile else ", and never less than launching takes"
    return best, f"{how}, by tokens and squares of lengths{least}", doubts


def _floored(measurements: Measurements, model: Model, recipe: Recipe) -> Iterator[Profile]:
    """Fits to what takes longer than something does that small microbatches take whatever they hold."""
    took = np.array([row.seconds for row in measurements.compute])
    for floor in np.unique(np.quantile(took, FLOORS)).tolist():
        rows = tuple(row for row in measurements.compute if row.seconds > ABOVE * floor)
        if len(rows) < FEW:
            continue
        try:
            profile = examine(replace(measurements, compute=rows), model.layers, recipe=recipe).profile
        except InputError:
            continue
        yield _in_layers(profile, model, floor)


def _in_layers(profile: Profile, model: Model, floor: float = 0.0) -> Profile:
    """With what a microbatch takes whatever it holds in the layers, whose transfers run beside it. `floor`: seconds
    that it takes at least."""
    both = profile.forward.linear + profile.backward.linear
    share = profile.forward.linear / both if both else 0.25
    forward, backward = (
        replace(of, constant=part * profile.microbatch / model.layers, floor=part * floor / model.layers)
        for of, part in ((profile.forward, share), (profile.backward, 1 - share))
    )
    return replace(profile, microbatch=0.0, forward=forward, backward=backward)


def _off(profile: Profile, rows: Sequence[Compute], model: Model) -> Floats:
    """How far each microbatch is off what the profile says, as a logarithm."""
    columns = [np.array([getattr(row, name) for row in rows], float) for name in ("tokens", "squares", "samples")]
    layer = profile.forward.seconds(*columns) + profile.backward.seconds(*columns)
    took = np.array([row.seconds for row in rows])
    off: Floats = np.abs(np.log(model.layers * layer / took))
    return off


def _by_tokens(each: float, model: Model, recipe: Recipe, gpu: str, deals: RanDeals) -> Profile:
    """So many seconds for a token, all of them in the layers: a backward takes twice its forward, and what it computes
    again."""
    passes, layer = (4 if recipe.recomputes else 3), each / model.layers
    return Profile(
        model=model.name,
        gpu=gpu,
        fidelity="calibrated",
        origin="",
        forward=Polynomial(linear=layer / passes),
        backward=Polynomial(linear=layer * (passes - 1) / passes),
        head=Polynomial(),
        recompute=recipe.recomputes,
        longest=deals.trace.longest,
        most_tokens=deals.limit,
    )


def _rows(deals: RanDeals, model: Model, paces: Mapping[int, float]) -> Iterator[Compute]:
    """Of every microbatch. Where seconds hold waiting, of the heaviest in each round alone, which waited least."""
    for step in deals.held:
        every = [(mb, np.array(computed(mb))) for device in step for mb in device if mb.lengths]
        contents = [(mb, int(n.sum()), float(model.squares(n).sum()), int(n.max())) for mb, n in every]
        if not any(mb.seconds for mb, *_ in contents):
            rounds = {mb.number for mb, *_ in contents}
            of = ([one for one in contents if one[0].number == number] for number in rounds)
            contents = [max(some, key=lambda one: (one[2], one[1])) for some in of]
        for mb, tokens, squares, longest in contents:
            seconds = (mb.seconds or mb.wall) / paces.get(mb.rank, 1.0)
            if timed(seconds):
                yield Compute("microbatch", tokens, squares, seconds, longest)


def _sizes(run: SeenRun, kind: str) -> Counter[int]:
    """How often so many bytes were moved at once."""
    met = Counter(met.bytes for step in run.steps for met in step.meetings if met.kind == kind and met.bytes)
    return met or Counter({t.bytes: 1 for t in run.transfers if t.kind == kind})


def _timings(
    run: SeenRun, deals: RanDeals, model: Model, recipe: Recipe, slower: float
) -> tuple[tuple[Timing, ...], str]:
    """Of collectives as they were seen, and of one-sided transfers as if they took as long."""
    wanted = {GATHERS: GATHER_BYTES * model.layer_parameters, PUSHES: recipe.sent * model.layer_parameters}
    known = {kind: _line(kind, run, deals, model, recipe) for kind in ALONE}
    seen = {kind: line for kind, line in known.items() if line is not None}
    if not seen:
        return _summed(run, deals, model)
    lines = []
    for kind, alone in ALONE.items():
        line, sizes = seen.get(kind, Timing(kind, run.ranks)), _sizes(run, kind)
        size = sizes.most_common(1)[0][0] if sizes else wanted[kind]
        # As many seconds for a layer as were seen.
        each = line.per_byte * (size / wanted[kind] if wanted[kind] else 1.0)
        lines.append(Timing(kind, run.ranks, line.constant, each))
        lines.append(Timing(alone, run.ranks, line.constant, slower * each))
    more = f", {slower:g} times as long where they leave a node" if slower != 1 else ""
    return tuple(lines), f"transfers as they were seen; on-demand's are taken to take as long as collectives{more}"


def _line(kind: str, run: SeenRun, deals: RanDeals, model: Model, recipe: Recipe) -> Timing | None:
    """Seconds by bytes; in proportion to them where one size alone was seen."""
    seen = [(t.bytes, t.seconds) for t in run.transfers if t.kind == kind]
    if not seen:  # what meetings took once the last had come, of each size the usual one
        took: dict[int, list[float]] = {}
        for met in (met for step in run.steps for met in step.meetings if met.kind == kind and met.came and met.bytes):
            took.setdefault(met.bytes, []).append(met.done - max(met.came.values()))
        # In those of a run of which not all were seen there is waiting for who was not.
        usual = np.median if len(run.seen) == run.ranks else np.min
        seen = [(size, float(usual(every))) for size, every in sorted(took.items())]
    rows = tuple(Transfer(kind, run.ranks, size, seconds) for size, seconds in seen if timed(seconds))
    if not rows:
        return _shared_out(kind, run, deals, model, recipe)
    try:
        return parts.transfers(Measurements("", "", (), rows))[0][0]
    except InputError:
        return Timing(kind, run.ranks, 0.0, sum(t.seconds for t in rows) / sum(t.bytes for t in rows))


def _shared_out(kind: str, run: SeenRun, deals: RanDeals, model: Model, recipe: Recipe) -> Timing | None:
    """Where a run does not say how much was moved: what its steps spent on it, shared out by what a step of the model
    moves."""
    spent = [_spent(kind, run.steps[i]) for i in deals.places] if len(run.seen) == run.ranks else []
    if not any(spent):
        return None
    rounds = sum(max(map(len, step)) for step in deals.held)
    units, roots = rounds * model.layers, rounds
    if kind == GATHERS:
        units *= 1 + recipe.reshard
    elif not sync_named(run.sync).push_every_microbatch:
        units, roots = len(deals.places) * model.layers, len(deals.places)
    size = GATHER_BYTES if kind == GATHERS else recipe.sent
    moved = size * (units * model.layer_parameters + roots * model.root_parameters)
    if not model.layer_parameters:
        return Timing(kind, run.ranks, sum(spent) / (units + roots))
    return Timing(kind, run.ranks, 0.0, sum(spent) / moved)


def _spent(kind: str, step: RanStep) -> float:
    """Seconds of its meetings once the last had come."""
    return sum(max(0.0, met.done - max(met.came.values())) for met in step.meetings if met.kind == kind and met.came)


def _summed(run: SeenRun, deals: RanDeals, model: Model) -> tuple[tuple[Timing, ...], str]:
    """Of a model that every device holds whole, and whose gradients all get summed."""
    took = [_spent(SUMS, run.steps[i]) for i in deals.places]
    if not any(took):
        return (), "transfers are in the seconds of microbatches"
    rounds = max(1.0, float(np.mean([max(map(len, step)) for step in deals.held])))
    rounds = rounds if sync_named(run.sync).push_every_microbatch else 1
    each = float(np.median(took)) / rounds / (model.layers + 1)
    lines = tuple(Timing(kind, run.ranks, each) for kind in (PUSHES, ALONE[PUSHES]))
    none = tuple(Timing(kind, run.ranks) for kind in (GATHERS, ALONE[GATHERS]))
    return (*lines, *none), "all-reduces as they were seen; on-demand's pushes are taken to take as long"

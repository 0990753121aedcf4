"""What a search picks against every way there is, planned and simulated by itself."""

from dataclasses import replace
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odcsim import InputError, Trace, ask, compare, plan
from odcsim.balance import advised, standing_for
from odcsim.decide import advice, room, search, stock
from odcsim.decide.advice import Offer, Pick, Wish
from odcsim.decide.decision import NOTABLE
from odcsim.decide.evaluate import evaluate
from odcsim.decide.way import Plans, Way
from odcsim.executors.simulation import makespans
from odcsim.neighbours import TRAINERS
from odcsim.program import SYNCS
from odcsim.question import Question
from odcsim.results import capacity

MODELS = ("qwen3-0.6b", "qwen2.5-1.5b", "qwen2.5-7b")
RNG = np.random.default_rng(7)


def drawn(rng, median, sigma, count, most):
    return Trace("drawn", np.clip(rng.lognormal(np.log(median), sigma, count), 16, most).astype(np.int64))


def site_of(trace, model, devices, each, minibatches=2, gpu="h100"):
    asked = {"global_batch": devices * each, "minibatches": minibatches, "epochs": 1.0}
    return search.site(Question(trace=trace, model=model, gpu=gpu, devices=devices, **asked))


def tiny(seed):
    """Two or three devices, two minibatches, and a GPU's memory of which some ways' needs are over."""
    rng = np.random.default_rng(seed)
    devices, each = int(rng.integers(2, 4)), int(rng.integers(2, 5))
    site = site_of(drawn(rng, np.exp(rng.uniform(6, 9)), 1.0, 40, 30_000), MODELS[seed % 3], devices, each)
    needs = sorted(room.least(s.cost, site.trace).total for s in site.settings)
    return replace(site, memory=needs[0] * float(rng.choice([1.01, 1.2, 1.5, 2])))


def pace_of(way, seconds):
    """Of each token."""
    return float(np.sum(seconds)) / sum(int(way.setting.trace.take(ids).sum()) for ids in way.setting.draw())


def screened(way):
    return pace_of(way, makespans(plan(way.setting, way.balancer).schedules, way.cost.calm))


def simulated(way):
    """By the evaluation that every command has its rows from."""
    return pace_of(way, evaluate(way.setting, [way.pair]).rows[0].makespan_seconds)


def by_hand(site):
    """Every way, by recompute, sync, limit and balancer: those with something to spare, or where there are none those
    that just fit."""
    for share in (0.92, 1.0):
        found = []
        for setting, sync in product(site.settings, SYNCS):
            device = setting.trace.mean * setting.minibatch
            tried = room.limits(setting.trace.longest, int(max(setting.trace.longest, 1.5 * device)), device)
            most = max((at for at in tried if fits(site, setting, sync, at, share)), default=0)
            full = room.fullest(room.under(setting.cost, sync), setting.trace.longest, share * site.memory, tried[-1])
            for at in room.limits(setting.trace.longest, full, device):
                assert fits(site, setting, sync, at, share)
                for name in standing_for(sync):
                    found.append(Way(replace(setting, max_tokens=at), name, sync))
            assert most <= full
        if found:
            return found
    return []


def fits(site, setting, sync, tokens, share):
    way = Way(replace(setting, max_tokens=tokens), "", sync)
    return room.needed(way.cost, tokens, setting.trace.longest).total <= share * site.memory * (1 + 1e-12)


def picked(every):
    """The best of the five that screening has first, or the same by another balancer; of those within a percent hybrid
    sharding, then the usual balancer."""
    order = sorted(range(len(every)), key=lambda n: (screened(every[n]), n))
    first = [every[n] for n in order[:5]]
    if not first:
        return None
    time = {way: simulated(way) for way in first}
    best = min(time, key=time.__getitem__)
    time |= {way: simulated(way) for way in best.others()}
    near = [way for way in time if time[way] <= 1.01 * min(time.values())]
    usual = advised("on-demand")
    return min(near, key=lambda w: (w.cost.sharded != "hybrid", w.balancer != usual, time[w]))


@pytest.mark.parametrize("seed", range(6))
def test_the_search_picks_what_all_ways_by_hand_come_to(seed):
    site = tiny(seed)
    every = by_hand(site)
    assert set(site.ways()) == set(every)
    assert len(site.ways()) == len(every)
    for side in (True, False):
        mine = [one for one in every if one.one_sided is side]
        way, best = search.best(site, mine), picked(mine)
        assert (way is None) == (best is None)
        assert way is None or way == best or simulated(way) == pytest.approx(simulated(best), rel=1e-9)
    costs = [room.under(setting.cost, sync) for setting, sync in product(site.settings, SYNCS)]
    assert replace(site, memory=0.99 * min(room.least(c, site.trace).total for c in costs)).ways() == []


@settings(max_examples=15)
@given(
    st.lists(st.integers(1, 20_000), min_size=160, max_size=160),
    st.sampled_from(["qwen3-0.6b", "qwen2.5-7b", "qwen3-30b-a3b"]),
    st.sampled_from([8, 16]),
    st.sampled_from([1, 10]),
    st.lists(st.tuples(st.integers(0, 7), st.floats(0.5, 2.0)), max_size=3, unique_by=lambda pair: pair[0]),
)
def test_no_way_is_faster_than_the_least_that_it_could_take(lengths, model, devices, each, slow):
    site = site_of(Trace("drawn", np.array(lengths)), model, devices, each, minibatches=3)
    slower = replace(site.settings[0].cost.cluster, slow=tuple(slow))
    site = replace(site, settings=tuple(replace(s, cost=replace(s.cost, cluster=slower)) for s in site.settings))
    for way in site.ways():
        assert search.least_pace(site, way) <= site.plans.pace(way, search.FEW) * (1 + 1e-12), way.name


def test_most_ways_are_not_planned(monkeypatch):
    """Where all layers need not be run again, ways that do so are behind whatever their plans."""
    asked, pace = [], Plans.pace
    monkeypatch.setattr(Plans, "pace", lambda plans, way, count: asked.append(way) or pace(plans, way, count))
    site = site_of(drawn(np.random.default_rng(3), 1100, 1, 400, 8192), "qwen3-8b", 16, 16, minibatches=3)
    every = site.ways()
    for side in (True, False):
        search.leading(site, [way for way in every if way.one_sided is side])
    assert 0 < len(asked) < len(every) * 2 / 3


CASES = {
    "chat, two nodes": (drawn(RNG, 1500, 0.9, 600, 8192), "qwen3-8b", 16, 4),
    "long, one node": (drawn(RNG, 12_000, 0.8, 600, 65_536), "r1-distill-qwen-7b", 8, 4, 2, "a100"),
    "even lengths": (Trace("even", np.full(600, 4096)), "qwen3-8b", 8, 4),
}


def everything(site):
    """Seconds of every way over a finer grid of limits, with on-demand and without."""
    found = {True: [], False: []}
    for setting, sync in product(site.settings, SYNCS):
        first = Way(setting, "lb-micro", sync)
        device, longest = site.trace.mean * setting.minibatch, site.trace.longest
        most = room.fullest(first.cost, longest, capacity.filled(site.memory), int(max(longest, room.ENOUGH * device)))
        for limit in room.limits(longest, most, device, 1.12):
            way = replace(first, setting=replace(setting, max_tokens=limit))
            for each in (way, *way.others()):
                count = site.question.minibatches
                seconds = search.timed(site, each) * site.plans.tokens(each.setting, count)
                found[each.one_sided].append(seconds / count)
    return found


@pytest.mark.parametrize("name", CASES)
def test_the_choice_is_within_a_percent_of_exhaustive_search(name):
    site = site_of(*CASES[name])
    asked = site.question
    wish = Wish(replace(asked, devices=1), (asked.gpu,), (asked.devices,))
    found, every = advice.offer(wish, asked.gpu, asked.devices), everything(site)
    picks = (found.with_it, found.without, found.chosen)
    with_it, without, chosen = (pick.row.makespan_seconds / pick.row.minibatches for pick in picks)
    assert found.ways < len(every[True]) + len(every[False])
    assert without <= 1.01 * min(every[False])
    assert with_it <= 1.01 * min(every[True])
    lead = min(every[False]) / min(every[True])
    ideal = min(every[lead >= NOTABLE])
    assert chosen <= 1.01 * ideal or abs(lead / NOTABLE - 1) < 0.01  # too near to tell which side


@pytest.mark.parametrize("seed", range(40))
def test_those_that_lead_are_the_first_of_all_however_little_is_planned(seed, monkeypatch):
    """Of drawn paces, each with a bound below it, many of them alike."""
    rng = np.random.default_rng(seed)
    pace = rng.choice(np.linspace(1, 2, 9), 30)
    least = pace * rng.choice([0.3, 0.9, 1.0], 30)
    asked = []
    monkeypatch.setattr(search, "least_pace", lambda _, way: least[way])
    plans = SimpleNamespace(pace=lambda way, _: asked.append(way) or pace[way])
    found = search.leading(SimpleNamespace(plans=plans), range(30))
    assert found == sorted(range(30), key=lambda way: (pace[way], way))[:5]
    assert all(least[way] <= sorted(pace)[4] for way in asked[5:])


class Drawn(SimpleNamespace):
    """One is never another."""

    __hash__ = object.__hash__
    __eq__ = object.__eq__


@pytest.mark.parametrize("seed", range(40))
def test_the_finest_is_the_usual_one_of_those_within_a_percent(seed, monkeypatch):
    rng = np.random.default_rng(seed)
    names, others = ["lb-mini", "lb-robust", "lb-micro", "native"], {}

    def way(balancer, sharded):
        one = Drawn(balancer=balancer, advised=balancer == "lb-robust", cost=SimpleNamespace(sharded=sharded))
        one.others = lambda: others.setdefault(one, [way(name, sharded) for name in names if name != balancer])
        return one

    every = [way(names[rng.integers(4)], ["full", "hybrid"][rng.integers(2)]) for _ in range(5)]
    by_name = {name: float(rng.choice([0.98, 1.0, 1.003, 1.009, 1.02])) for name in names}
    seconds = {one: float(rng.choice([0.999, 1.0, 1.004, 1.008, 1.03])) for one in every}
    monkeypatch.setattr(search, "leading", lambda _, ways: ways)
    monkeypatch.setattr(search, "timed", lambda _, one: seconds.get(one, by_name[one.balancer]))
    first = min(every, key=seconds.__getitem__)
    known = seconds | {one: by_name[one.balancer] for one in first.others()}
    fastest = min([seconds[first], *(known[one] for one in first.others())])
    near = [one for one in known if known[one] <= 1.01 * fastest]
    best = min(near, key=lambda one: (one.cost.sharded != "hybrid", one.balancer != "lb-robust", known[one]))
    found = search.best(None, every)
    assert (found.balancer, found.cost.sharded) == (best.balancer, best.cost.sharded)


# What a trainer runs by itself.


def trained(seed, trainer):
    rng = np.random.default_rng(seed)
    trace = drawn(rng, np.exp(rng.uniform(5, 8)), 0.8, 60, 8000)
    asked = {"gpu": "h100", "devices": 2, "minibatch": int(rng.choice([2, 4, 6])), "minibatches": 2, "max_tokens": 0}
    bundle = np.repeat(np.arange(30), 2) if seed % 2 and "pairs" in TRAINERS[trainer].knows else None
    return ask(Trace("drawn", trace.lengths, bundle=bundle), MODELS[seed % 3], trainer=trainer, **asked)


def pace_by_hand(way):
    return pace_of(way, makespans(plan(way.setting, way.balancer).schedules, way.cost.calm))


@pytest.mark.parametrize("trainer", ["trl", "verl", "axolotl", "torchtitan"])
@pytest.mark.parametrize("seed", range(3))
def test_of_each_rule_of_a_trainer_the_fastest_that_fits_is_its_row(seed, trainer):
    setting, known = trained(seed, trainer), TRAINERS[trainer]
    whole, batch = setting.cost.cluster.memory_bytes, 2 * setting.minibatch
    for memory in (0.92 * whole, whole, 0.0):
        every = {sync: list(stock.ways(setting, sync, memory)) for sync in known.syncs}
        if any(every.values()):
            break
    for sync, one in ((sync, one) for sync, some in every.items() for one in some):
        cost = room.under(one.setting.cost, sync)
        assert max(schedule.fullest for schedule in plan(one.setting, one.balancer).schedules) <= one.setting.limit
        assert not memory or room.needed(cost, one.setting.limit, setting.trace.longest).total <= memory
        rows = one.setting.trace
        samples = one.setting.minibatch * (len(rows.lengths) / rows.bundles.size if one.rule.rows else 1)
        assert abs(2 * samples / batch - 1) <= 0.1
    best = {}
    for sync, rule in product(known.syncs, known.own(setting.trace)):
        if some := [pace_by_hand(one) for one in every[sync] if one.rule == rule]:
            best[rule.balancer, sync] = min(some)
    if not best:
        with pytest.raises(InputError):
            stock.choose(setting)
        return
    found = {way.pair: pace_by_hand(way) for way in stock.choose(setting)}
    assert found == pytest.approx(best)


@pytest.mark.parametrize("seed", range(30))
def test_the_fullest_microbatch_is_that_of_the_longest_samples(seed):
    rng = np.random.default_rng(seed)
    lengths, each = rng.integers(1, 100, 12), int(rng.integers(1, 5))
    bundle = np.repeat(np.arange(6), 2) if seed % 3 == 0 else None
    counts = rng.integers(0, 4, 12) if seed % 3 == 1 else None
    counts = None if counts is None or counts.sum() < each else counts
    trace = Trace("drawn", lengths, counts, bundle=bundle)
    dealt = sorted(np.repeat(trace.bundles.lengths, 1 if counts is None else counts), reverse=True)
    assert stock.worst(trace, each, padded=False) == sum(dealt[:each])
    longest = max(lengths if counts is None else lengths[counts > 0])
    assert stock.worst(trace, each, padded=True) == each * longest * (1 if bundle is None else 2)


# What is rented.


@pytest.fixture(scope="module")
def row(setting):
    return compare(replace(setting, minibatches=1), among=[("lb-micro", "collective")]).rows[0]


class Seen(Offer):
    """Its memory is its row's."""

    memory_bytes = property(lambda self: self.row.memory_bytes)


def drawn_offers(row, seed):
    rng, found = np.random.default_rng(seed), []
    priced = {"h100": 2.0} if seed % 3 else {}
    for devices in (2, 4, 8, 16, 32):
        used, dollars = float(rng.choice([50.0, 95.0, 120.0])), float(rng.choice([10, 10.05, 10.2, 12]))
        mine = replace(
            row, makespan_seconds=float(rng.choice([50, 60, 70])), dollars=dollars if priced else None,
            gpu_hours=float(rng.uniform(1, 2)), memory_bytes=used, memory_limit=100.0, memory_fits=used <= 100,
        )  # fmt: skip
        found.append(Seen("h100", devices, Pick(None, mine), None, None))
    deadline, budget = [None, 55.0, 65.0][seed % 3], [None, 10.1][seed % 2] if priced else None
    wish = SimpleNamespace(deadline=deadline, budget=budget, prices=priced)
    return wish, sorted(found, key=advice.cheapness)


@pytest.mark.parametrize("seed", range(60))
def test_the_fastest_of_those_within_a_percent_of_the_cheapest_is_rented(row, seed):
    wish, every = drawn_offers(row, seed)

    def level(one):
        return 0 if one.memory_bytes <= 92 else 1 if one.memory_fits else 2

    def spent(one):
        return one.row.gpu_hours if one.dollars is None else one.dollars

    assert [(level(one), spent(one)) for one in every] == sorted((level(one), spent(one)) for one in every)
    within = [one for one in every if wish.deadline is None or one.seconds <= wish.deadline]
    within = [one for one in within if wish.budget is None or one.dollars <= wish.budget]
    best = [one for one in within if level(one) == min(map(level, within))]
    near = [one for one in best if spent(one) <= 1.01 * min(map(spent, best))]
    found = advice.Advice(wish, tuple(every), ()).rent
    assert found is min(near, key=lambda one: one.seconds, default=None)


@pytest.mark.parametrize("seed", range(30))
def test_on_demand_is_chosen_where_it_leads_notably_or_alone_fits(row, seed):
    rng = np.random.default_rng(seed)
    with_it, without = (Pick(None, replace(row, makespan_seconds=float(rng.choice([1, 1.01, 1.03])))) for _ in range(2))
    lead = without.row.makespan_seconds / with_it.row.makespan_seconds
    assert advice.pick(without, with_it) is (with_it if lead >= 1.02 else without)
    assert advice.pick(None, with_it) is with_it
    assert advice.pick(without, None) is without

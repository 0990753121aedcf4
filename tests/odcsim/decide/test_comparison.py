"""A comparison's rows against each other; that each is what `odcsim simulate` says is a law of all doors. A minibatch
that is shown says what it stands for: the clearest gain, or what the table says."""

from dataclasses import replace

import numpy as np
import pytest

from odcsim import Comparison, InputError, ask, balance, compare
from odcsim.catalog import fits
from odcsim.catalog.estimates.compute import flops
from odcsim.cluster import Cluster
from odcsim.decide.comparison import clearest, pairs, typical
from odcsim.decide.decision import decide
from odcsim.decide.evaluate import least_trusted
from odcsim.profile import Polynomial, Timing
from odcsim.program import SYNCS
from odcsim.recipe import Recipe
from odcsim.results import metrics, summary
from odcsim.results.summary import REFERENCE
from odcsim.trace import PAIR, Trace

H100 = {"max_tokens": 0, "gpu": "h100", "devices": 8, "minibatch": 4, "minibatches": 3}
MINI = ("lb-mini", "on-demand")
REST = [("lb-micro", sync) for sync in SYNCS]


@pytest.fixture(scope="module")
def compared(setting) -> Comparison:
    return compare(setting)


def test_every_balancer_meets_every_sync_it_can_run():
    cannot = {(b.name, s) for b in balance.BALANCERS if b.free_counts for s in ("collective", "deferred")}
    assert set(pairs()) == {(b, s) for b in balance.ALL for s in SYNCS} - cannot
    assert len(pairs()) == len(set(pairs())) == 15


def test_what_on_demand_was_said_to_cost_is_charged_and_called_unproven():
    asked = {"gpu": "a100", "devices": 2, "minibatch": 2, "minibatches": 4, "max_tokens": 4096}
    small = "uniform:min=20,max=900,samples=64", "tiny"
    plain, dear = (compare(ask(*small, **asked, on_demand_cost=cost)) for cost in (0.0, 1.5))
    for before, after in zip(plain.rows, dear.rows, strict=True):
        added = 1.5 * before.minibatches if before.sync == "on-demand" else 0.0
        assert after.makespan_seconds == pytest.approx(before.makespan_seconds + added)
    told = [one.as_json()["inputs"] for one in (plain, dear)]
    assert [one["on_demand_cost"] for one in told] == [0.0, 1.5]
    assert told[1]["on_demand_origin"] != told[0]["on_demand_origin"]


def test_the_same_seed_gives_the_same_and_another_seed_other_figures(compared, setting, monkeypatch):
    other = compare(replace(setting, seed=1))
    assert all(a.makespan_seconds != b.makespan_seconds for a, b in zip(other.rows, compared.rows, strict=True))
    monkeypatch.setattr(Cluster, "eventful", True)  # by discrete events
    assert compare(setting).rows == compared.rows


def test_a_row_has_its_usages_price_and_memory(compared, setting):
    calls = []
    peaks = sorted(row.memory_bytes for row in compared.rows)
    limit = (peaks[0] + peaks[-1]) / 2
    priced = compare(setting, price=2.0, memory_limit=limit, advance=lambda: calls.append(1))
    assert len(calls) == len(pairs())
    for one, used, plain in zip(priced.rows, priced.usages, compared.rows, strict=True):
        assert np.sum(used.makespan) == one.makespan_seconds
        assert len(used.makespan) == one.minibatches
        assert one.dollars == pytest.approx(2 * one.gpu_hours)
        assert one.memory_fits == (one.memory_bytes <= limit)
        assert sum(one.memory_terms.values()) == one.memory_bytes
        assert one.memory_terms[one.largest_term] == max(one.memory_terms.values())
        assert (plain.dollars, plain.memory_fits) == (None, True)  # the GPU's memory is that of the catalogue
    by_sync = {sync: priced.row("lb-micro", sync).memory_bytes for sync in SYNCS}
    assert by_sync["collective"] < min(by_sync["on-demand"], by_sync["deferred"])
    shown = [row.memory_fits for row in summary.best_first(priced.rows)]
    assert shown == sorted(shown, reverse=True)
    unknown = replace(setting.cost, cluster=replace(setting.cost.cluster, memory_bytes=None))
    assert {r.memory_fits for r in compare(replace(setting, cost=unknown, minibatches=1)).rows} == {None}
    asked = replace(setting, price=2, minibatches=1)
    for rows, paid in ((compare(asked).rows, 2), (compare(asked, price=3).rows, 3)):
        assert all(r.dollars == pytest.approx(paid * r.gpu_hours) for r in rows)


def test_what_is_not_there_is_refused(compared):
    looks = [(compared.typical, [("a", "b")]), (compared.clearest, (REFERENCE, ("a", "b")))]
    looks += [(compared.timeline, (*pair, number)) for pair, number in ((REFERENCE, -1), (("a", "b"), 0))]
    for look, words in looks:
        with pytest.raises(InputError):
            look(*words)


def test_some_rows_alone_say_what_they_say_among_all(setting, compared):
    few = compare(setting, among=[*REST, MINI])
    for name in ("speedup", "sync_gain", "idle"):
        assert getattr(few.row(*MINI), name) == getattr(compared.row(*MINI), name)
    assert decide(few)
    with pytest.raises(InputError):
        decide(compare(setting, among=REST[:2]))


def usage(makespan, idle):
    """Of one device: so much of each minibatch is lost at its end."""
    makespan, idle = np.array(makespan, float), np.array(idle, float)
    nothing = np.zeros_like(makespan)
    return metrics.Usage(makespan, makespan * (1 - idle), nothing, makespan * idle, nothing, nothing, nothing)


def test_the_typical_one_idles_as_all_do_and_the_clearest_gains_most(compared):
    """All together idle 0.6: nearest is 0.5; where two are asked for, that which is off least in both."""
    one = usage([1, 1, 1], [0.4, 0.9, 0.5])
    assert typical([one]) == 2
    assert typical([one, usage([1, 1, 1], [0.5, 0.5, 0.9])]) == 0
    assert typical([usage([0, 1], [0, 0.5])]) == 1
    assert clearest(usage([4, 6, 9], [0, 0, 0]), usage([4, 3, 8], [0, 0, 0])) == 1
    spent = [compared.usage(*pair).makespan for pair in (REFERENCE, MINI)]
    assert compared.clearest(REFERENCE, MINI) == np.argmax(spent[0] / spent[1])
    assert 0 <= compared.typical(REFERENCE, MINI) < 6
    only = replace(compared, rows=compared.rows[:1], usages=compared.usages[:1])
    with pytest.raises(InputError):
        only.usage(*MINI)


@pytest.mark.parametrize("number", range(6))
def test_a_minibatch_alone_is_what_it_was_among_the_others(compared, number):
    for pair in (REFERENCE, MINI):
        alone = metrics.usage(compared.timeline(*pair, number))
        for name in ("makespan", "compute", *metrics.PARTS):
            assert getattr(alone, name)[0] == getattr(compared.usage(*pair), name)[number]


def test_a_queue_of_equal_lengths_is_none_and_seconds_say_where_they_are_from():
    words = {"devices": 8, "minibatch": 4, "minibatches": 2, "max_tokens": 16_384}
    alike = ask("fixed:length=4096", "r1-distill-qwen-1.5b", gpu="a100", **words)
    among = [("lb-micro", "collective"), ("lb-micro", "on-demand"), ("pool", "on-demand")]
    assert compare(alike, among=among).row("pool", "on-demand").idle < 1e-3
    assert least_trusted(["catalogue", "published fit"]) == "published fit"
    assert least_trusted(["catalogue", "catalogue"]) == "catalogue"
    assert least_trusted(["catalogue", "extrapolated"]) == "extrapolated"
    measured = ask("fixed:length=64", "qwen3-0.6b", gpu="h100", **words).cost.profile
    timed = replace(measured, fidelity="extrapolated", timings=(Timing("settle", 2, 1e-3, 0.0),))
    given = replace(measured, fidelity="calibrated", publish=0.02)
    assert len({fits.own_origin(one) for one in (alike.cost.profile, timed, given)}) == 3


@pytest.fixture(scope="module")
def priced():
    return compare(ask("longalign", "qwen3-8b", **H100), price=2.0)


def test_hours_and_dollars_have_the_interval_that_seconds_have(priced):
    """Ends are the same schedules with compute at its ends."""
    profile = priced.setting.cost.profile
    assert profile.low < 1 < profile.high
    for row in priced.rows:
        assert not row.certain
        assert row.gpu_hours_low == pytest.approx(row.gpu_hours * profile.low)
        assert row.dollars_high == pytest.approx(2 * row.gpu_hours * profile.high)
        assert row.model_low / row.makespan_seconds == pytest.approx(profile.low)
    pair = ("lb-micro", "collective")
    low, middle, high = priced.ends[pair]
    assert middle == pytest.approx(priced.row(*pair).makespan_seconds)  # few minibatches: all of them
    assert profile.low <= low / middle < 1 < high / middle <= profile.high


def test_what_devices_reach_is_flops_over_time_and_no_more_than_they_have(priced):
    """Flops themselves are held against others' in test_mfu; adapters get fewer."""
    model = priced.setting.cost.model
    lengths = [m for ids in priced.setting.draw() for m in priced.setting.trace.take(ids).tolist()]
    tokens, squares = sum(lengths), float(model.squares(lengths).sum())
    own, again = flops(model, Recipe(), tokens, squares)
    row = priced.row("lb-mini", "on-demand")
    assert row.tflops_per_device == pytest.approx(own / row.makespan_seconds / 8 / 1e12)
    assert row.mfu == pytest.approx(row.tflops_per_device / 989)
    assert row.hfu == pytest.approx(row.mfu * (own + again) / own)
    assert row.mfu < row.hfu < 0.8
    adapted, _ = flops(model, Recipe(lora=8), tokens, squares)
    kept = model.layers * model.layer_matmul_parameters + model.head_parameters
    assert own - adapted == pytest.approx(2 * tokens * kept)


def test_measured_seconds_have_none_and_stretched_ones_are_of_compute_alone(setting):
    profile = setting.cost.profile
    certain = replace(setting.cost, profile=replace(profile, low=1.0, high=1.0))
    sure = compare(replace(setting, minibatches=1, cost=certain))
    assert sure.ends == {}
    assert all(row.certain for row in sure.rows)
    longer = replace(profile, forward=Polynomial(1, 2, 3, 4, 5), optimizer=7.0).stretched(2.0)
    assert longer.forward == Polynomial(2, 4, 6, 8, 10)
    assert (longer.optimizer, longer.timings, longer.overhead) == (7.0, profile.timings, 2 * profile.overhead)


# Pairs.


@pytest.mark.parametrize("trainer", [None, "trl"])
@pytest.mark.parametrize("recompute", ["full", "none"])
def test_a_run_of_pairs_is_its_steps_and_one_pass_of_the_reference_model(trainer, recompute):
    """However many epochs. A pass is about a quarter of a step's seconds, as a forward is of its FLOPs."""
    lengths = np.array([[300 + 61 * i % 900, 200 + 97 * i % 1100] for i in range(320)]).ravel()
    trace = Trace("pairs", lengths, bundle=np.arange(640) // 2, unit=PAIR)
    asked = {"gpu": "h100", "devices": 4, "global_batch": 16, "in_order": True, "recompute": recompute}
    runs = [
        compare(ask(trace, "qwen2.5-7b", epochs=count, trainer=trainer, **asked)).as_json()["run"]["rows"]
        for count in (1.0, 2.0, 3.0)
    ]
    for one, two, three in zip(*runs, strict=True):
        epoch = two["seconds"] - one["seconds"]
        assert three["seconds"] - two["seconds"] == pytest.approx(epoch)
        assert one["seconds"] - epoch == pytest.approx(one["reference_seconds"]) == three["reference_seconds"]
        assert 0.1 < one["reference_seconds"] / epoch < 0.35


def test_nothing_but_pairs_has_a_reference_model():
    found = compare(ask([300, 500] * 40, "qwen2.5-7b", gpu="h100", devices=4, global_batch=16, epochs=1.0))
    assert {row["reference_seconds"] for row in found.as_json()["run"]["rows"]} == {0.0}

"""Seconds from what was measured otherwise: without recompute, for another size, joined with the catalogue."""

import json
from dataclasses import asdict, astuple, replace

import executed
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from odcsim import catalog, compare, profile
from odcsim import profile as profiles
from odcsim.catalog import fits
from odcsim.catalog.estimates import recompute
from odcsim.catalog.estimates.recompute import under
from odcsim.catalog.estimates.work import HOOKS
from odcsim.catalog.fits import WIDER_SCALE, estimate, scale
from odcsim.cluster import cluster_of
from odcsim.cost import Cost
from odcsim.decide.asking import ask
from odcsim.decide.rl import forward
from odcsim.decide.setting import cost_of, plan
from odcsim.errors import InputError
from odcsim.executors.simulation import fidelity, simulate, usage
from odcsim.fitting.microbatch_logs import Log, fit_log
from odcsim.profile import Passes, Polynomial, Profile, Timing
from odcsim.recipe import USUAL, Recipe
from odcsim.results.validation import validate
from odcsim.schedule import Schedule
from odcsim.timeline import read, write

SMALL, LARGE = (catalog.model(f"r1-distill-qwen-{size}") for size in ("1.5b", "7b"))
A100 = catalog.gpu("a100")
KEPT = Passes(Polynomial(1e-3, 2e-6, 1e-10, 1e-4), Polynomial(2e-3, 3e-6, 2e-10, 3e-4))
MEASURED = Profile(
    SMALL.name, "a100", "calibrated", "measured", head=Polynomial(1e-3, 1e-6), low=0.9, high=1.1, kept=KEPT,
    forward=Polynomial(1e-3, 1e-6, 1e-10, 1e-4), backward=Polynomial(3e-3, 3e-6, 3.5e-10, 3.5e-4),
)  # fmt: skip


def seconds(profile: Profile, lengths=(1000, 30_000), model=SMALL) -> np.ndarray:
    return Cost(model, profile, cluster_of(A100, 8), by(profile.recompute)).sample_seconds(np.array(lengths))


def by(recompute: bool) -> Recipe:
    return Recipe(recompute="full" if recompute else "none")


@given(st.sampled_from(["tiny", "r1-distill-qwen-1.5b", "qwen3-30b-a3b", "llama-3.1-8b"]))
def test_the_catalogue_counts_one_forward_less(name):
    """With recompute backward is longer by a forward, to the last token; the head stays as it is."""
    model = catalog.model(name)
    usual, kept = (estimate(model, A100, 8, by(on)) for on in (True, False))
    assert replace(kept, backward=usual.backward, origin=usual.origin, recompute=True) == usual
    for name, hooks in (("linear", 0.0), ("quadratic", 0.0), ("floor", HOOKS[0])):  # a backward's hooks are its own
        more = getattr(usual.forward, name) - hooks
        assert getattr(usual.backward, name) == pytest.approx(getattr(kept.backward, name) + more)


def test_what_was_measured_without_it_is_taken_as_it_is():
    found = under(MEASURED, SMALL, False)
    assert (found.forward, found.backward, found.recompute) == (KEPT.forward, KEPT.backward, False)
    assert (found.fidelity, found.low, found.high) == ("calibrated", MEASURED.low, MEASURED.high)
    assert under(MEASURED, SMALL, True) == MEASURED


def test_what_was_not_measured_follows_flops_and_says_so():
    """Of a kind of work that a model has none of, the coefficient stays."""
    unmeasured = replace(MEASURED, kept=Passes())
    found = under(unmeasured, SMALL, False)
    assert found.forward == MEASURED.forward
    ratios = np.array(astuple(found.backward)[:4]) / astuple(MEASURED.backward)[:4]
    assert ratios.tolist() == pytest.approx([2 / 3, 2 / 3, 2.5 / 3.5, 2.5 / 3.5])
    assert (found.fidelity, found.low, found.high) == ("extrapolated", 0.9 / recompute.WIDER, 1.1 * recompute.WIDER)
    linear = replace(SMALL, linear_layers=SMALL.layers, linear_parameters=1000, heads=0)
    assert under(unmeasured, linear, False).backward.quadratic == MEASURED.backward.quadratic


def test_of_a_fit_that_holds_the_head_only_the_layers_forward_goes():
    """The published fits: seconds for layers and head together, of which FLOPs give each its part. There and back is
    where it began, but for the head's part: what is left no longer has the shape of a fit without."""
    usual = fits.published(SMALL.name, "a100")
    found = under(usual, SMALL, False)
    layers = SMALL.layers * (SMALL.layer_forward(1.0, 0.0) + SMALL.layer_backward(1.0, 0.0))
    head = SMALL.head_forward(1.0) + SMALL.head_backward(1.0)
    saved = SMALL.layers * SMALL.layer_forward(1.0, 0.0) / (layers + head)
    before, after = (p.forward.linear + p.backward.linear for p in (usual, found))
    assert after / before == pytest.approx(1 - saved)
    assert after / before > 3 / 4
    assert np.all(seconds(found) < seconds(usual))
    for head, off in ((Polynomial(0.0, 1e-6), 1e-9), (Polynomial(), 0.01)):
        usual = replace(usual, head=head)
        back = under(under(usual, SMALL, False), SMALL, True)
        assert asdict(back.backward) == pytest.approx(asdict(usual.backward), rel=off)
        assert back.recompute


def test_balancers_and_executors_take_the_same_seconds(tmp_path):
    """Without recompute everything is quicker and holds more."""
    profiles.write(MEASURED, tmp_path / "p.json")
    known = {"profile": str(tmp_path / "p.json"), "gpu": "a100", "devices": 2, "minibatch": 2, "minibatches": 2}
    usual, kept = (ask("longalign", SMALL.name, **known, recompute=on) for on in (True, False))
    rows = []
    for setting, on in ((usual, True), (kept, False)):
        found = compare(setting)
        assert found.as_json()["inputs"]["recompute"] is setting.cost.profile.recompute is on
        simulated = simulate(plan(setting, "native"), setting.cost.by(sync="on-demand"))
        assert simulated.about.recipe.recomputes is on
        rows.append(found.rows)
    for one, other in zip(*rows, strict=True):
        assert other.makespan_seconds < one.makespan_seconds
        assert other.memory_bytes > one.memory_bytes
    assert usual.cost.profile == MEASURED
    lengths = np.array([1000, 2000])
    assert np.all(kept.cost.sample_seconds(lengths) == seconds(under(MEASURED, SMALL, False), lengths))


def test_a_timeline_carries_it_and_an_old_one_had_it(timeline, tmp_path):
    """A prediction with it is not held against a run without."""
    without = replace(timeline, about=replace(timeline.about, recipe=by(False).sharded("full")))
    for one, other in ((timeline, without), (without, timeline)):
        with pytest.raises(InputError):
            validate(one, [other])
    assert validate(without, [without]).as_json()["recompute"] is False
    write(without, tmp_path / "t.npz")
    with np.load(tmp_path / "t.npz") as columns:
        old = dict(columns)
    header = json.loads(str(old["header"]))
    assert header.pop("recompute") != "full"
    np.savez(tmp_path / "old.npz", **(old | {"header": np.array(json.dumps(header))}))
    assert read(tmp_path / "old.npz").about == timeline.about


def test_a_log_of_steps_without_it_is_split_as_their_flops_are():
    rng = np.random.default_rng(0)
    lengths = tuple(tuple(rng.integers(100, 3000, rng.integers(1, 6)).tolist()) for _ in range(30))
    log = Log(lengths, tuple(1e-5 * sum(of) + 2e-9 * sum(n * n for n in of) + 0.1 for of in lengths))
    usual, kept = (fit_log(log, SMALL, "a100", recipe=by(on)).profile for on in (True, False))
    assert (usual.recompute, kept.recompute) == (True, False)
    assert kept.backward.linear / kept.forward.linear == pytest.approx(2)
    assert kept.backward.quadratic / kept.forward.quadratic == pytest.approx(2.5)
    np.testing.assert_allclose(seconds(kept), seconds(usual))
    assert np.all(seconds(under(kept, SMALL, True)) > seconds(kept))


SOME = replace(
    MEASURED, overhead=0.5, optimizer=0.1, publish=0.05, embed=Polynomial(1e-4, 1e-8),
    timings=(Timing("gather", 8, 1e-4, 1e-10), Timing("publish", 8, 0.2), Timing("meeting", 8, 1e-5)),
)  # fmt: skip


def test_a_scaled_published_fit_keeps_the_other_published_fit_in_its_range():
    """The only two models of one family, measured on one GPU by one code, whose fits are published."""
    tokens = [4096, 16384, 65536]
    for known, wanted in ((SMALL, LARGE), (LARGE, SMALL)):
        guess = scale(fits.published(known.name, "a100"), known, wanted)
        ratio = seconds(guess, tokens, wanted) / seconds(fits.published(wanted.name, "a100"), tokens, wanted)
        assert np.all((ratio > 1 / WIDER_SCALE) & (ratio < WIDER_SCALE)), ratio
        assert np.abs(np.log(ratio)).max() > np.log(1.1), "the range would be wider than it need be"


def test_to_its_own_size_nothing_changes_but_the_trust_there_and_back_too():
    same, back = scale(SOME, SMALL, SMALL), scale(scale(SOME, SMALL, LARGE), LARGE, SMALL)
    wider = {"low": SOME.low / WIDER_SCALE, "high": SOME.high * WIDER_SCALE}
    assert same == replace(SOME, fidelity="extrapolated", origin=same.origin, **wider)
    for name in ("forward", "backward", "head", "embed"):
        mine, wanted = getattr(back, name), getattr(SOME, name)
        assert (mine.linear, mine.quadratic) == pytest.approx((wanted.linear, wanted.quadratic))
    assert (back.overhead, back.optimizer, back.publish) == pytest.approx((0.5, 0.1, 0.05))


def test_what_follows_what():
    large = scale(SOME, SMALL, LARGE)
    matmuls = LARGE.layer_matmul_parameters / SMALL.layer_matmul_parameters
    for mine, its in ((large, SOME), (large.kept, SOME.kept)):
        for found, known in ((mine.forward, its.forward), (mine.backward, its.backward)):
            assert found.linear / known.linear == pytest.approx(matmuls)
            assert found.quadratic / known.quadratic == pytest.approx(LARGE.heads / SMALL.heads)
            assert (found.constant, found.sample) == (known.constant, known.sample)
    gather, publish, meeting = large.timings
    assert (gather, meeting) == (SOME.timings[0], SOME.timings[2])  # a byte takes what it took
    assert publish.constant == pytest.approx(0.2 * LARGE.parameters / SMALL.parameters)


MODEL, GPU, DEVICES = "qwen2.5-1.5b", "a100", 8
LENGTHS = (300, 2000, 7000, 10_000, 15_000, 17_000, 40_000)
PLAN = tuple(((2 * d,), (2 * d + 1,)) for d in range(DEVICES))
SCHEDULES = [Schedule.of((n, n // 2) * DEVICES, PLAN) for n in LENGTHS]
BUSY = np.array(LENGTHS) >= 2000  # else a node's transfers take longer than what is computed beside them
JOINED = cost_of(MODEL, GPU, None, DEVICES)


def spent(cost):
    return usage(SCHEDULES, cost).makespan


@pytest.fixture
def saved(tmp_path):
    profile.write(JOINED.profile, tmp_path / "joined.profile")
    return str(tmp_path / "joined.profile")


def test_it_is_joined_and_says_so(saved):
    """A saved one is the same; what nobody knows below is extrapolated."""
    half, fewest = JOINED.profile.fewest // 2, 16_384
    assert (JOINED.profile.joined, half) == (True, fewest // 2)
    short = [Schedule.of((n, n // 2) * DEVICES, PLAN) for n in (half, half // 2)]
    assert (fidelity(JOINED, SCHEDULES), fidelity(JOINED, short)) == ("published fit", "catalogue")
    assert fidelity(JOINED, [*short, Schedule.of((half + 1,) * 16, PLAN)]) == "published fit"
    guess = fits.estimate(JOINED.model, catalog.gpu(GPU), DEVICES)
    assert (JOINED.profile.low, JOINED.profile.high) == (min(0.9, guess.low), max(1.1, guess.high))
    assert profile.read(saved) == JOINED.profile
    np.testing.assert_array_equal(spent(cost_of(MODEL, GPU, saved, DEVICES)), spent(JOINED))
    alone = replace(JOINED, profile=fits.published("r1-distill-qwen-1.5b", GPU))
    fewest = alone.profile.fewest
    for tokens, known in ((fewest, "published fit"), (fewest - 1, "extrapolated")):
        assert fidelity(alone, [Schedule.of((fewest, tokens), (((0,),), ((1,),)))]) == known


def test_executors_agree_and_the_interval_stretches_both_parts():
    usual = spent(JOINED)
    with executed.by("des"):
        np.testing.assert_array_equal(spent(JOINED), usual)
    low, high = (spent(replace(JOINED, profile=JOINED.profile.stretched(factor))) for factor in (0.5, 2.0))
    assert ((low < usual) & (usual < high)).all()
    np.testing.assert_allclose(high[BUSY], 2 * usual[BUSY], rtol=0.05)


def test_without_recompute_the_catalogues_part_has_none_either(saved):
    """Derived by FLOPs from a saved one, and as the catalogue says where it is at hand."""
    costs = [cost_of(MODEL, GPU, path, DEVICES, recipe=USUAL.by(recompute="none")) for path in (saved, None)]
    derived, direct = map(spent, costs)
    np.testing.assert_allclose(derived, direct, rtol=0.06)
    assert all((one < 0.9 * spent(JOINED))[BUSY].all() for one in (derived, direct))


def test_another_model_has_both_parts_scaled(saved):
    """Twice the layers of a model: twice the seconds, wherever there is no head."""
    small = JOINED.model
    twice = replace(small, name="twice", layers=2 * small.layers)
    none = replace(JOINED.profile, head=Polynomial(), below=replace(JOINED.profile.below, head=Polynomial()))
    both = replace(JOINED, profile=none), replace(JOINED, model=twice, profile=scale(none, small, twice))
    once, grown = (usage(SCHEDULES, cost).compute for cost in both)
    np.testing.assert_allclose(grown, 2 * once, rtol=0.05)  # embeddings and roots stay
    assert cost_of("qwen2.5-3b", None, saved, DEVICES).profile.below != JOINED.profile.below


def test_a_pass_without_backward_passes_into_the_catalogue_too():
    guess = replace(JOINED, profile=fits.estimate(JOINED.model, catalog.gpu(GPU), DEVICES))
    for length in (300, 2000, 8000):
        schedules = [Schedule.of((length,) * DEVICES, tuple(((d,),) for d in range(DEVICES)))]
        mine, theirs = (forward(cost.by(sync="collective"), schedules, 1)[0] for cost in (JOINED, guess))
        assert mine == pytest.approx(theirs, rel=0.15), length

"""Settings by name, and the schedules that follow from them. Samples that stay together: pairs, and rows that are
packed before training."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odcsim import InputError, Setting, Trace, ask, balance, compare, plan, profile, schedule
from odcsim.balance.balancer import Work
from odcsim.balance.refine import scenarios
from odcsim.catalog import fits
from odcsim.decide.evaluate import evaluate
from odcsim.decide.remedies import remedies
from odcsim.decide.setting import cost_of, draw_minibatches
from odcsim.decide.whole_run import steps
from odcsim.profile import Timing
from odcsim.reading import limits

MODEL = "r1-distill-qwen-1.5b"
WORDS = {"gpu": "h100", "devices": 4, "minibatch": 3, "minibatches": 4}


def trace(lengths: list[int], **columns: list[int]) -> Trace:
    return Trace("t", np.array(lengths), **{name: np.array(values) for name, values in columns.items()})


@settings(max_examples=40)
@given(
    st.lists(st.integers(1, 9000), min_size=24, max_size=60), st.integers(1, 4), st.integers(1, 6),
    st.sampled_from(balance.NAMES), st.booleans(), st.integers(0, 9000),
)  # fmt: skip
def test_every_balancers_plan_is_a_good_schedule_file_of_the_same_samples(
    tmp_path_factory, lengths, devices, minibatch, name, loss, extra
):
    recorded = trace(lengths, **({"loss": [n // 2 for n in lengths]} if loss else {}))
    words = {"gpu": "a100", "devices": devices, "minibatch": minibatch, "minibatches": 3, "seed": 7}
    asked = ask(recorded, MODEL, max_tokens=max(lengths) + extra, **words)
    file = plan(asked, name)
    path = tmp_path_factory.mktemp("plans") / "s.jsonl"
    assert schedule.write(file, path) == schedule.read(path) == file
    drawn = recorded.minibatches(devices * minibatch, 3, seed=7)
    for ids, found in zip(drawn, file.schedules, strict=True):
        assert found.samples == tuple(ids.tolist())
        assert found.lengths == tuple(lengths[i] for i in ids)
        assert found.loss == (tuple(lengths[i] // 2 for i in ids) if loss else ())
        assert len(found.devices) == devices
        assert not balance.runs_with(name, "collective") or not found.uneven


def test_a_robust_plan_knows_what_grows_with_the_square_and_need_not_guess():
    """With a sliding window that is not what fits the sums best."""
    asked = ask("longalign", "gpt-oss-20b", gpu="h100", devices=8, minibatch=8, minibatches=10, max_tokens=65536)
    guessed = []
    for ids, found in zip(asked.draw(), plan(asked, "lb-robust").schedules, strict=True):
        lengths = asked.trace.take(ids)
        given = lengths, asked.cost.sample_seconds(lengths), 8, 65536
        known = scenarios(*asked.cost.sample_parts(lengths))
        assert found.devices == balance.balance("lb-robust", *given, scenarios=known)
        guessed.append(found.devices == balance.balance("lb-robust", *given))
    assert not all(guessed)


def test_a_limit_a_cluster_file_and_a_profile_have_their_source(tmp_path):
    (tmp_path / "c.toml").write_text("devices_per_node = 2\nlatency_us = 0\n")
    path = str(tmp_path / "p.json")
    asked = ask(trace([5, 30, 10]), MODEL, gpu="a100", devices=4, minibatch=1, cluster=str(tmp_path / "c.toml"))
    assert (asked.limit, replace(asked, max_tokens=31).limit) == (30, 31)
    assert (asked.cost.cluster.nodes, asked.cost.cluster.latency) == (2, 0.0)
    own, other = asked.cost.profile, ask(trace([5]), MODEL, gpu="h100", devices=1, minibatch=1).cost.profile
    assert (own.fidelity, other.fidelity) == ("published fit", "catalogue")
    saved = replace(own, fidelity="calibrated")
    profile.write(saved, path)
    again = ask(trace([5, 6]), MODEL, profile=path, devices=4, devices_per_node=2).cost
    assert (again.profile, again.cluster.nodes) == (saved, 2)
    assert again.cluster.link_bandwidth == asked.cost.cluster.link_bandwidth
    profile.write(own, path)
    found = ask(trace([5]), "r1-distill-qwen-7b", profile=path).cost.profile
    assert (found.model, found.fidelity) == ("r1-distill-qwen-7b", "extrapolated")
    profile.write(replace(own, model="mine"), path)
    with pytest.raises(InputError):
        ask(trace([5]), "r1-distill-qwen-7b", profile=path)


@settings(max_examples=15)
@given(st.lists(st.integers(1, 9), min_size=24, max_size=40))
def test_a_minibatch_is_sorted_as_every_balancer_sorts_it(lengths):
    setting = ask(trace(lengths), MODEL, gpu="a100", devices=4, minibatch=6)
    [minibatch] = draw_minibatches(replace(setting, minibatches=1))
    unsure = scenarios(minibatch.linear, minibatch.quadratic)
    work = Work(minibatch.lengths, minibatch.weights, 4, 20, unsure)
    for balancer in balance.BALANCERS:
        assert balancer.assign(replace(work, order=minibatch.order)) == balancer.assign(work)


def test_a_profile_of_an_unknown_machine_with_measured_transfers_is_one_node_of_it(tmp_path):
    fit = replace(fits.published("r1-distill-qwen-1.5b", "a100"), gpu="my laptop")
    path = str(tmp_path / "p.json")
    profile.write(replace(fit, timings=(Timing("gather", 2, 1e-3, 1e-9), Timing("push", 2, 1e-3, 2e-9))), path)
    cluster = cost_of(fit.model, None, path, 12).cluster
    assert (cluster.gpus, cluster.nodes) == (12, 1)
    assert cluster.link_bandwidth == pytest.approx(5e8)
    with pytest.raises(InputError):
        cost_of(fit.model, None, path, 12, devices_per_node=4)
    profile.write(fit, path)
    with pytest.raises(InputError):
        cost_of(fit.model, None, path, 12)


def test_what_is_no_row_of_lengths_and_a_trace_that_does_not_suit_are_refused():
    for row in ([1, [2]], [1.5, 2], [0], [[1, 2]], [], ["a"], None, 5, [2**70]):
        with pytest.raises(InputError):
            ask(row, MODEL, gpu="a100")
    unfit = (trace([5, 30]), 20), (trace([99, 5], counts=[0, 9]), 4), (trace([5]), -1), (trace([5]), 0)
    for recorded, limit in unfit:
        asked = Setting(recorded, ask(recorded, MODEL, gpu="a100", devices=2).cost, 2, limit)
        with pytest.raises(InputError):
            plan(asked, "native")


def test_a_row_of_lengths_and_a_path_are_a_trace_and_in_order_keeps_the_recorded_order(tmp_path):
    (tmp_path / "a.csv").write_text("length\n5\n6\n")
    for one in ([5, 6], np.array([5, 6]), (5, 6), tmp_path / "a.csv"):
        assert ask(one, MODEL, gpu="a100", devices=1, minibatch=2).trace.lengths.tolist() == [5, 6]
    asked = ask(list(range(1, 13)), MODEL, gpu="a100", devices=2, minibatch=3, minibatches=2, in_order=True)
    found = plan(asked, "native").schedules
    assert [s.lengths for s in found] == [(1, 2, 3, 4, 5, 6), (7, 8, 9, 10, 11, 12)]
    assert found[0].devices == (((0,), (2,), (4,)), ((1,), (3,), (5,)))


def paired(sizes: list[int], lengths: list[int]) -> Trace:
    bundle = np.repeat(np.arange(len(sizes)), sizes)
    return Trace("bundles", np.array(lengths[: len(bundle)]), bundle=bundle)


@st.composite
def traces(draw):
    sizes = draw(st.lists(st.integers(1, 4), min_size=12, max_size=30))
    lengths = draw(st.lists(st.integers(1, 3000), min_size=sum(sizes), max_size=sum(sizes)))
    return paired(sizes, lengths)


@given(traces(), st.integers(0, 5))
def test_every_minibatch_has_whole_bundles(trace, seed):
    for ids in trace.minibatches(12, 3, seed=seed):
        starts = trace.starts(ids)
        assert len(starts) == 12
        numbers = trace.bundle[ids[starts]]
        assert np.array_equal(np.concatenate([np.flatnonzero(trace.bundle == n) for n in numbers]), ids)


@pytest.mark.parametrize("name", balance.ALL)
@given(trace=traces())
def test_what_stays_together_is_in_one_microbatch(name, trace):
    setting = ask(trace, "nano", max_tokens=trace.fullest + 500, **WORDS)
    for one in plan(setting, name).schedules:
        held = {i: number for number, mb in enumerate(one.contents()) for i in mb}
        assert sorted(held) == list(range(len(one.lengths)))
        bundles = trace.bundle[np.array(one.samples)]
        for bundle in np.unique(bundles):
            assert len({held[i] for i in np.flatnonzero(bundles == bundle)}) == 1
        assert one.fullest <= setting.limit


def test_units_of_one_are_samples():
    lengths = np.arange(1, 200) * 7 % 900 + 1
    alone, together = Trace("a", lengths), Trace("a", lengths, bundle=np.arange(199))
    found = [compare(ask(trace, "nano", **WORDS)).rows for trace in (alone, together)]
    assert found[0] == found[1]


def test_attention_is_that_of_each_sample_and_not_of_the_bundle():
    """Two samples of a bundle cost what they cost in a microbatch of a plan without bundles."""
    trace = paired([2] * 12, [4000] * 24)
    setting = ask(trace, "nano", max_tokens=8000, **WORDS)
    linear, quadratic = (of.sum() for of in setting.cost.sample_parts(trace.lengths[:2]))
    first = draw_minibatches(setting)[0]
    assert first.weights[0] == pytest.approx(linear + quadratic)
    row = evaluate(setting, [("native", "collective")]).rows[0]
    samples = replace(setting, trace=Trace("s", trace.lengths), minibatch=6)
    by_hand = evaluate(samples, [("lb-micro", "collective")]).rows[0]
    assert row.makespan_seconds == pytest.approx(by_hand.makespan_seconds)


def test_steps_count_bundles_and_dropping_leaves_no_half_of_one():
    assert steps(paired([2] * 24, [5] * 48), 3, 4) == 18
    assert limits.drop(paired([2, 2, 2], [5, 9, 5, 5, 7, 1]), 6).lengths.tolist() == [5, 5]


def test_a_bundle_in_two_places_is_refused():
    for more in ({"bundle": np.array([1, 2, 1])}, {"bundle": np.array([1, 2, 2]), "counts": np.array([1, 2, 1])}):
        with pytest.raises(InputError):
            Trace("a", np.array([1, 2, 3]), **more)


def test_of_tokens_that_carry_loss_in_a_sample_far_too_long_a_cutoff_is_said():
    lengths = np.array([9, 1_000_000_000, 9, 12, 9, 30, 9, 12])
    trace = Trace("a", lengths, loss=lengths - 9, bundle=np.repeat(np.arange(4), 2))
    setting = ask(trace, "qwen3-8b", gpu="a100", devices=2, minibatch=1, minibatches=1)
    assert any("--truncate" in way for way in remedies(setting))

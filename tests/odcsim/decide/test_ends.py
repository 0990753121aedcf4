"""The interval of seconds in what a comparison says: hours and dollars, what devices reach, where it would flip."""

from dataclasses import replace

import pytest

from odcsim import catalog
from odcsim.catalog.estimates.compute import flops
from odcsim.decide import answer, answer_words
from odcsim.decide.asking import ask
from odcsim.decide.comparison import compare
from odcsim.decide.ends import Ends
from odcsim.profile import Polynomial, stretched
from odcsim.recipe import Recipe

H100 = {"max_tokens": 0, "gpu": "h100", "devices": 8, "minibatch": 4, "minibatches": 6}


@pytest.fixture(scope="module")
def found():
    return compare(ask("longalign", "qwen3-8b", **H100), price=2.0)


def test_hours_and_dollars_have_the_interval_that_seconds_have(found):
    profile = found.setting.cost.profile
    assert profile.low < 1 < profile.high
    for row in found.rows:
        assert not row.certain
        assert row.gpu_hours_low == pytest.approx(row.gpu_hours * profile.low)
        assert row.dollars_high == pytest.approx(2 * row.gpu_hours * profile.high)
        assert row.model_low / row.makespan_seconds == pytest.approx(profile.low)


def test_measured_seconds_have_none(setting):
    profile = replace(setting.cost.profile, low=1.0, high=1.0)
    sure = compare(replace(setting, cost=replace(setting.cost, profile=profile)))
    assert sure.ends is None
    assert all(row.certain for row in sure.rows)
    assert " (" not in answer_words.hours_between(sure.rows[0])


def test_what_devices_reach_is_flops_over_time_and_no_more_than_they_have(found):
    model = found.setting.cost.model
    lengths = [m for ids in found.setting.draw() for m in found.setting.trace.take(ids).tolist()]
    tokens, squares = sum(lengths), float(model.squares(lengths).sum())
    own, again = flops(model, Recipe(), tokens, squares)
    assert own / tokens > 6 * (model.parameters - model.head_parameters)
    scores = model.layers * model.layer_forward(0.0, squares) / 2  # which a kernel's backward computes once more
    assert again == pytest.approx(model.layers * model.layer_forward(tokens, squares) + scores)
    row = found.row("lb-mini", "on-demand")
    assert row.tflops_per_device == pytest.approx(own / row.makespan_seconds / 8 / 1e12)
    assert row.mfu == pytest.approx(row.tflops_per_device / 989)
    assert row.mfu < row.hfu < 0.8


def test_without_recompute_only_scores_are_computed_again_and_adapters_get_fewer_flops():
    model = catalog.model("qwen3-8b")
    own, again = flops(model, Recipe(recompute="none"), 1000, 1e6)
    assert again == model.layers * model.layer_forward(0.0, 1e6) / 2
    adapted, _ = flops(model, Recipe(lora=8), 1000, 1e6)
    assert own - adapted == pytest.approx(
        2 * 1000 * (model.layers * model.layer_matmul_parameters + model.head_parameters)
    )


def test_stretched_seconds_are_of_compute_alone(setting):
    profile = replace(setting.cost.profile, forward=Polynomial(1, 2, 3, 4, 5), optimizer=7.0)
    longer = stretched(profile, 2.0)
    assert longer.forward == Polynomial(2, 4, 6, 8, 10)
    assert (longer.optimizer, longer.timings) == (7.0, profile.timings)
    assert longer.overhead == 2 * profile.overhead


def test_the_answer_says_where_in_the_interval_it_would_be_another(found):
    reply = answer.answer(found)
    assert reply.pays
    assert reply.flips is None  # inside a node nothing but compute counts

    def at_the_low_end(lead: float) -> str:
        seconds = {pair: 100.0 if pair[1] == "on-demand" else 100.0 * lead for pair in found.ends.low}
        return answer_words.verdict(answer.answer(replace(found, ends=replace(found.ends, low=seconds))))

    assert "times these seconds" not in at_the_low_end(1.3)
    low = found.setting.cost.profile.low
    assert at_the_low_end(1.01).endswith(
        f" The answer is No if compute takes {low:.2f} times these seconds: "
        "on-demand is then 1.01 times as fast as the best row without it."
    )


def test_ends_are_the_same_schedules_with_compute_at_its_ends(found):
    assert isinstance(found.ends, Ends)
    pair = ("lb-micro", "collective")
    low, middle, high = (seconds[pair] for seconds in (found.ends.low, found.ends.middle, found.ends.high))
    assert low < middle < high
    assert middle == pytest.approx(found.row(*pair).makespan_seconds)  # six minibatches: all of them
    profile = found.setting.cost.profile
    assert profile.low <= low / middle < 1 < high / middle <= profile.high


def test_only_rows_that_fit_are_chosen(found):
    tight = [replace(r, memory_fits=r.balancer == "lb-micro") for r in found.rows]
    reply = answer.answer(replace(found, rows=tuple(tight), memory_limit=80e9))
    assert (reply.best.balancer, reply.rival.balancer) == ("lb-micro", "lb-micro")
    none = [replace(r, memory_fits=False) for r in found.rows]
    reply = answer.answer(replace(found, rows=tuple(none), memory_limit=1e9))
    assert reply.best.memory_bytes == min(r.memory_bytes for r in found.rows if r.sync == "on-demand")
    assert answer_words.misfit(replace(found, memory_limit=1e9), reply)

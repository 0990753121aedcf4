"""A log of steps that the simulator made says of its run what is true of it."""

from dataclasses import replace

import pytest

import odcsim
from odcsim.decide import stock
from odcsim.decide.diagnosis.found import EFFORTS, PARTS
from odcsim.decide.diagnosis.logged import logged
from odcsim.decide.diagnosis.told import answer
from odcsim.decide.diagnosis.words import rests
from odcsim.decide.evaluate import evaluate
from odcsim.errors import InputError
from odcsim.neighbours.asking import flags

RUN = {
    "trace": "lognormal:median=2000,sigma=1.0,max=8192", "model": "qwen3-1.7b", "gpu": "h100", "devices": 4,
    "minibatch": 8, "minibatches": 60, "max_tokens": 8192,
}  # fmt: skip
FACTOR, CLOSE = 1.4, 0.03
WAYS = (("lb-micro", "collective"), ("native", "collective"), ("native", "deferred"), ("lb-mini", "on-demand"))


def true(**other):
    """The run that is logged, with compute so many times as long as anybody would say."""
    setting = odcsim.ask(**{**RUN, **other})
    return replace(setting, cost=setting.cost.stretched(FACTOR))


def log_of(tmp_path, setting, way):
    usage = evaluate(setting, [way]).usages[0]
    tokens = [int(setting.trace.take(ids).sum()) for ids in setting.draw()]
    rows = [f"{i},{s},{n}" for i, (s, n) in enumerate(zip(usage.makespan, tokens, strict=True), 1)]
    path = tmp_path / "log.csv"
    path.write_text("\n".join(["step,seconds,tokens", *rows]), encoding="utf-8")
    return str(path), usage


@pytest.fixture(params=WAYS, ids=" ".join)
def told(request, tmp_path):
    balancer, sync = request.param
    path, usage = log_of(tmp_path, true(), request.param)
    return request.param, usage, logged([path], RUN | {"balancer": balancer, "sync": sync})


def test_parts_are_those_of_the_run_and_sum_to_its_step(told):
    _, usage, (_, found, changes) = told
    assert list(found.by_step) == list(PARTS)
    assert [part.name for part in found.parts] == list(PARTS)
    assert sum(part.share for part in found.parts) == pytest.approx(1)
    assert found.seconds == pytest.approx(usage.makespan.mean(), rel=CLOSE)
    true = usage.idle_parts()
    assert found.share("lengths") == pytest.approx(true["wait_inside"] + true["wait_end"], abs=0.01)
    assert found.share("transfer") == pytest.approx(true["gather"] + true["push"], abs=0.01)
    for part in found.parts:
        assert part.low <= part.share <= part.high
    assert changes.replayed == 0
    assert not any("as long as measured" in words for words in rests(changes))


def test_a_step_takes_what_was_logged_whatever_is_drawn(tmp_path):
    """Of the same run with other draws."""
    path, usage = log_of(tmp_path, true(minibatches=30, seed=7), ("native", "collective"))
    _, found, changes = logged([path], RUN | {"balancer": "native"})
    mean = float(usage.makespan.mean())
    assert found.seconds == pytest.approx(mean)
    assert all(way.seconds * way.gain == pytest.approx(mean) for way in changes.ways)


def test_steps_of_other_batches_are_refused_by_both_figures(tmp_path):
    """Of a run whose steps held half as much, nothing is told."""
    path, _ = log_of(tmp_path, true(minibatches=30), ("native", "collective"))
    with pytest.raises(
        InputError, match=r"steps of [\d,]+ tokens, where these flags draw steps of [\d,]+; .*--minibatch"
    ):
        logged([path], RUN | {"balancer": "native", "minibatch": 16})


def test_gains_are_what_the_other_ways_take(told):
    _, usage, (_, _, changes) = told
    for way in changes.ways:
        seconds = evaluate(true(), [(way.balancer, way.sync)]).usages[0].makespan
        assert way.gain == pytest.approx(usage.makespan.sum() / seconds.sum(), rel=CLOSE)
        assert 1 < way.low <= way.gain <= way.high


def test_what_is_simulated_is_said_to_be(told):
    (balancer, sync), _, (run, found, changes) = told
    assert run.seen == ()
    assert any("simulated" in line for line in found.cannot)
    assert any(f"{balancer} under {sync}" in line for line in run.lacks)
    assert any("lengths each step held" in line for line in changes.cannot)


def test_one_that_balances_and_does_not_meet_has_nothing_to_gain(tmp_path):
    path, _ = log_of(tmp_path, true(), ("lb-mini", "on-demand"))
    assert logged([path], RUN | {"balancer": "lb-mini", "sync": "on-demand"})[2].ways == ()


@pytest.mark.parametrize("missing", ["trace", "model", "gpu", "devices"])
def test_a_flag_that_is_missing_is_named(missing, tmp_path):
    path, _ = log_of(tmp_path, true(minibatches=4), WAYS[0])
    with pytest.raises(InputError, match=f"add --{missing} of the run") as error:
        logged([path], {name: value for name, value in RUN.items() if name != missing})
    assert "\n" not in str(error.value)


def test_padding_is_a_part_of_its_own(tmp_path):
    """Rows of torchtitan are filled up to the limit."""
    run = true(trainer="torchtitan", minibatch=9)
    [(way, sync)] = stock.chosen(run, stock.known("torchtitan"))
    path, _ = log_of(tmp_path, way.setting, (way.rule.balancer, sync))
    _, found, _ = logged([path], RUN | {"trainer": "torchtitan", "minibatch": 9})
    full = way.setting.trace.bundles.mean / way.setting.limit
    padding, compute = found.share("padding"), found.share("compute")
    assert padding / (padding + compute) == pytest.approx(1 - full, abs=0.03)
    assert sum(part.share for part in found.parts) == pytest.approx(1)


def test_who_dealt_the_samples_has_to_be_said(tmp_path):
    """A step that is slow since nobody balances looks like one whose compute is slow."""
    path, _ = log_of(tmp_path, true(minibatches=30), ("native", "collective"))
    with pytest.raises(InputError, match="add --trainer, or --balancer"):
        logged([path], RUN)
    assert logged([path], RUN | {"balancer": "native"})[2].ways


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """TRL's batches, of a sample each."""
    path, _ = log_of(tmp_path_factory.mktemp("logs"), true(trainer="trl"), ("padded", "deferred"))
    return logged([path], RUN | {"trainer": "trl", "balancer": "padded", "sync": "deferred", "price": 2.0})


def test_a_trainers_setting_is_a_way_and_flags_knows_it(alone):
    _, _, changes = alone
    packing = next(way for way in changes.ways if way.effort == EFFORTS[0])
    assert "--packing true" in packing.setting
    told = answer(changes.inputs, [way.row for way in changes.ways])
    assert flags("trl", told, row=changes.ways.index(packing) + 1).settings["--packing"] is True
    assert packing.dollars_a_day == pytest.approx(4 * 24 * 2.0 * (1 - 1 / packing.gain))


def test_a_folder_is_as_good_as_the_log_in_it(tmp_path):
    way = WAYS[0]
    path, _ = log_of(tmp_path, true(), way)
    words = {name: value for name, value in RUN.items() if name != "minibatches"} | {"balancer": way[0], "sync": way[1]}
    of_file, of_folder = (odcsim.diagnose(source, **words).as_json() for source in (path, tmp_path))
    assert {**of_folder, "inputs": None} == {**of_file, "inputs": None}

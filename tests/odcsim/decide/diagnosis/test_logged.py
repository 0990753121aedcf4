"""A log of steps that the simulator made says of its run what is true of it."""

from dataclasses import replace

import pytest

import odcsim
from odcsim import InputError, flags
from odcsim.decide import stock
from odcsim.decide.diagnosis.log_diagnosis import diagnose_log
from odcsim.decide.diagnosis.outcome import EFFORTS, PARTS
from odcsim.decide.evaluate import evaluate

RUN = {
    "trace": "lognormal:median=2000,sigma=1.0,max=8192", "model": "qwen3-1.7b", "gpu": "h100", "devices": 4,
    "minibatch": 8, "minibatches": 30, "max_tokens": 8192,
}  # fmt: skip
FACTOR, CLOSE = 1.4, 0.03
WAYS = (("lb-micro", "collective"), ("native", "collective"), ("native", "deferred"), ("lb-mini", "on-demand"))


def true(**other):
    """The run that is logged, with compute so many times as long as anybody would say."""
    setting = odcsim.ask(**{**RUN, **other})
    return replace(setting, cost=replace(setting.cost, profile=setting.cost.profile.stretched(FACTOR)))


def without(name):
    return {key: value for key, value in RUN.items() if key != name}


def log_of(tmp_path, setting, way):
    usage = evaluate(setting, [way]).usages[0]
    tokens = [int(setting.trace.take(ids).sum()) for ids in setting.draw()]
    rows = [f"{i},{s},{n}" for i, (s, n) in enumerate(zip(usage.makespan, tokens, strict=True), 1)]
    path = tmp_path / "log.csv"
    path.write_text("\n".join(["step,seconds,tokens", *rows]), encoding="utf-8")
    return str(path), usage


@pytest.mark.parametrize("way", WAYS, ids=" ".join)
def test_parts_and_gains_are_those_of_the_run(way, tmp_path):
    balancer, sync = way
    path, usage = log_of(tmp_path, true(), way)
    run, found, changes = diagnose_log([path], RUN | {"balancer": balancer, "sync": sync})
    assert list(found.by_step) == list(PARTS) == [part.name for part in found.parts]
    assert sum(part.share for part in found.parts) == pytest.approx(1)
    assert all(part.low <= part.share <= part.high for part in found.parts)
    assert found.seconds == pytest.approx(usage.makespan.mean(), rel=CLOSE)
    idle = usage.idle_parts()
    assert found.share("lengths") == pytest.approx(idle["wait_inside"] + idle["wait_end"], abs=0.01)
    assert found.share("transfer") == pytest.approx(idle["gather"] + idle["push"], abs=0.01)
    assert changes.replayed == 0
    assert run.seen == ()
    assert all([found.cannot, run.lacks, changes.cannot])  # what is simulated is said to be
    assert bool(changes.ways) == (way != ("lb-mini", "on-demand"))
    for other in changes.ways:
        seconds = evaluate(true(), [(other.balancer, other.sync)]).usages[0].makespan
        assert other.gain == pytest.approx(usage.makespan.sum() / seconds.sum(), rel=CLOSE)
        assert 1 < other.low <= other.gain <= other.high


def test_a_step_takes_what_was_logged_whatever_is_drawn(tmp_path):
    """Of the same run with other draws."""
    path, usage = log_of(tmp_path, true(minibatches=30, seed=7), ("native", "collective"))
    _, found, changes = diagnose_log([path], RUN | {"balancer": "native"})
    mean = float(usage.makespan.mean())
    assert found.seconds == pytest.approx(mean)
    assert all(way.seconds * way.gain == pytest.approx(mean) for way in changes.ways)


def test_padding_is_a_part_of_its_own(tmp_path):
    """Rows of torchtitan are filled up to the limit."""
    run = true(trainer="torchtitan", minibatch=9)
    [way] = stock.choose(run)
    path, _ = log_of(tmp_path, way.setting, way.pair)
    _, found, _ = diagnose_log([path], RUN | {"trainer": "torchtitan", "minibatch": 9})
    full = way.setting.trace.bundles.mean / way.setting.limit
    padding, compute = found.share("padding"), found.share("compute")
    assert padding / (padding + compute) == pytest.approx(1 - full, abs=0.03)
    assert sum(part.share for part in found.parts) == pytest.approx(1)


def test_a_folder_is_as_good_as_the_log_in_it(tmp_path):
    way = WAYS[0]
    path, _ = log_of(tmp_path, true(), way)
    words = without("minibatches") | {"balancer": way[0], "sync": way[1]}
    of_file, of_folder = (odcsim.diagnose(source, **words).as_json() for source in (path, tmp_path))
    assert {**of_folder, "inputs": None} == {**of_file, "inputs": None}


@pytest.mark.parametrize("missing", ["trace", "model", "gpu", "devices"])
def test_what_does_not_say_the_run_is_refused(missing, tmp_path):
    path, _ = log_of(tmp_path, true(minibatches=4), ("native", "collective"))
    assert diagnose_log([path], RUN | {"balancer": "native"})
    with pytest.raises(InputError):
        diagnose_log([path], without(missing) | {"balancer": "native"})


def test_a_trainers_setting_is_a_way_and_flags_knows_it(tmp_path):
    """Of TRL's batches, of a sample each."""
    path, _ = log_of(tmp_path, true(trainer="trl"), ("padded", "deferred"))
    changes = diagnose_log([path], RUN | {"trainer": "trl", "balancer": "padded", "sync": "deferred", "price": 2.0})[2]
    packing = next(way for way in changes.ways if way.effort == EFFORTS[0])
    told = {"inputs": changes.inputs, "rows": [way.row for way in changes.ways]}
    assert flags("trl", told, row=changes.ways.index(packing) + 1).settings["--packing"] is True
    assert packing.dollars_a_day == pytest.approx(4 * 24 * 2.0 * (1 - 1 / packing.gain))

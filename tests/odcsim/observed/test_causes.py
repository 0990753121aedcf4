"""Recorded runs of stock FSDP2 of which it is known what they waited for: docs/studies/causes.py made them."""

import json

import pytest
from causes import CASES, Judged, Truth, idle_of, named
from causes_engine import CASES as ENGINE_CASES
from scripts import ROOT

from odcsim.decide.diagnosis.breakdown import break_down
from odcsim.decide.diagnosis.outcome import PARTS
from odcsim.observed.run_files import read

HOME = ROOT / "tests/odcsim/observed/fixtures"
RUNS = json.loads((HOME / "truth.json").read_text(encoding="utf-8"))["runs"]
ENGINE = json.loads((HOME / "engine/truth.json").read_text(encoding="utf-8"))
SCATTERED = 0.1  # of copies that take now longer here, now there, which looks like lengths where nobody knows these


@pytest.fixture(scope="module")
def found():
    return {name: break_down(read([str(HOME / f"{name}-rank{rank}.json.gz") for rank in range(2)])) for name in RUNS}


TRUTHS = {name: Truth(*(run[key] for key in ("cause", "idle", "step", "lost"))) for name, run in RUNS.items()}


def test_there_is_a_run_of_each_cause_and_one_of_none():
    assert list(RUNS) == list(CASES)
    assert list(ENGINE) == list(ENGINE_CASES)
    assert {truth.cause for truth in TRUTHS.values()} == {"", "lengths", "device", "transfer", "loader", "collector"}
    assert {case["cause"] for case in ENGINE.values()} == {"", "lengths", "device"}


@pytest.mark.parametrize("name", RUNS)
def test_the_cause_that_was_put_in_is_named_and_costs_what_it_costs_in_truth(found, name):
    """Within four points of the step, all at once, too; and what was not put in costs nothing like that."""
    truth, mine = TRUTHS[name], found[name]
    assert [part.name for part in mine.parts] == list(PARTS)
    assert sum(part.share for part in mine.parts) == pytest.approx(1)
    assert mine.seconds == pytest.approx(truth.step, rel=0.01)
    assert min(map(min, mine.by_step.values())) >= -1e-9
    assert named(mine) == truth.cause
    assert Judged(name, truth, "", idle_of(mine)).near
    for part in ("lengths", "device", "transfer", "loader", "collector"):
        near = SCATTERED if (name, part) == ("network", "lengths") else 0.04
        assert mine.share(part) == pytest.approx(truth.lost[part] / truth.step, abs=near)


@pytest.mark.parametrize(("name", "pace"), [("device", 1.5), ("all", 1.3), ("lengths", 1)])
def test_the_rank_that_is_slow_is_told_from_those_with_longer_samples(found, name, pace):
    assert [rank.pace for rank in found[name].ranks] == pytest.approx([1, pace], abs=0.05 * (pace > 1))


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("name", RUNS)
def test_of_a_rank_alone_no_waiting_is_called_a_transfer_nor_the_host_s(found, name, rank):
    alone = break_down(read([str(HOME / f"{name}-rank{rank}.json.gz")]))
    for part in ("transfer", "launch", "lengths", "device", "stages"):
        assert alone.share(part) <= found[name].share(part) + 0.01
    assert len(alone.cannot) > len(found[name].cannot)


@pytest.mark.parametrize("name", ENGINE)
def test_an_engine_s_step_is_what_the_schedule_makes_it(name):
    """Of its own timelines, which docs/studies/causes_engine.py made. Idle, and what ranks waited for, within four
    points of what the schedule computes: a timeline counts some milliseconds of the engine's own as compute."""
    true = ENGINE[name]
    found = break_down(read([str(HOME / f"engine/{name}{end}") for end in (".npz", ".jsonl")]))
    assert sum(part.share for part in found.parts) == pytest.approx(1)
    assert found.seconds == pytest.approx(true["step"], rel=0.01)
    assert idle_of(found) == pytest.approx(true["idle"], abs=0.04)
    for part in ("lengths", "device", "stages", "loader", "collector"):
        waited = true["waited"] / true["step"] if part == true["cause"] else 0.0
        assert found.share(part) == pytest.approx(waited, abs=0.04)

"""A whole step of reinforcement learning: groups stay whole, deals are complete, and seconds add up."""

import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from odcsim import catalog
from odcsim import profile as profiles
from odcsim.catalog import fits
from odcsim.cli import main
from odcsim.decide.asking import ask
from odcsim.decide.comparison import compare
from odcsim.decide.rollouts import pilot, whole
from odcsim.decide.rollouts.asking import rl
from odcsim.decide.rollouts.deals import DEALERS
from odcsim.decide.rollouts.pilot import RolloutBatch
from odcsim.decide.rollouts.whole import Around, WholeStep
from odcsim.errors import InputError
from odcsim.schedule import check
from odcsim.trace import Trace

DEVICES, UPDATES = 4, 2
BATCH = RolloutBatch(prompts=16, rollouts=4, updates=UPDATES, steps=3)


def recorded(groups=10, of=4, seed=0):
    """Lengths that say which group and which of it they are."""
    rng = np.random.default_rng(seed)
    lengths = np.concatenate([(g + 1) * 100 + np.arange(of) for g in range(groups)])
    step = np.repeat(np.arange(groups) % 2, of)
    order = rng.permutation(len(lengths))
    group = np.repeat(np.arange(groups), of)
    return Trace("pilot", lengths[order], group=group[order], step=step[order])


@given(st.integers(1, 12), st.integers(1, 5), st.integers(1, 9), st.integers(1, 5))
def test_groups_stay_whole_and_each_comes_before_any_again(groups, of, prompts, rollouts):
    batch = RolloutBatch(prompts, rollouts, steps=2)
    lengths = pilot.run(recorded(groups, of), batch, seed=1).lengths.reshape(-1, rollouts)
    of_group = lengths // 100
    assert (of_group == of_group[:, :1]).all()
    times = Counter(of_group[:, 0].tolist())
    assert max(times.values()) - min(times.get(g + 1, 0) for g in range(groups)) <= 1
    if rollouts <= of:
        assert all(len(set(row)) == rollouts for row in lengths.tolist())


def test_groups_are_of_a_prompt_in_a_step():
    trace = Trace("a", np.arange(1, 7), group=np.array([0, 0, 1, 0, 0, 1]), step=np.array([0, 0, 0, 1, 1, 1]))
    assert [trace.lengths[g].tolist() for g in pilot.groups(trace)] == [[1, 2], [3], [4, 5], [6]]


def test_updates_are_steps_of_the_run_and_siblings_are_in_one():
    run = pilot.run(recorded(), BATCH, seed=0)
    assert run.size == 3 * 64
    assert np.bincount(run.step).tolist() == [32] * 6
    assert all(len(set(run.step[run.group == g].tolist())) == 1 for g in np.unique(run.group))


def test_lengths_without_groups_are_drawn_singly():
    run = pilot.run(Trace("a", np.arange(1, 129)), replace(BATCH, steps=2), seed=0)
    assert sorted(run.lengths.tolist()) == list(range(1, 129))


def test_what_does_not_divide_is_refused():
    with pytest.raises(InputError, match="16 prompts x 4 rollouts do not divide into 3 updates on 4 devices"):
        RolloutBatch(16, 4, 3).share(4)


@pytest.fixture(scope="module", params=[9000, 4004])  # the longest sample has 4003
def setting(request):
    batch = BATCH.share(DEVICES)
    run = pilot.run(recorded(40), BATCH, seed=0)
    asked = {"gpu": "h100", "devices": DEVICES, "minibatch": batch, "max_tokens": request.param, "minibatches": 6}
    return ask(run, "qwen3-0.6b", **asked, in_order=True)


@pytest.mark.parametrize("dealer", DEALERS, ids=lambda d: d.name)
def test_every_deal_is_complete(setting, dealer):
    """Each sample once, nothing over the limit; as many microbatches on each device where they meet."""
    schedules = dealer.function(setting, UPDATES)
    assert len(schedules) == 6
    lengths = setting.trace.lengths.reshape(3, -1)
    for number, schedule in enumerate(schedules):
        filled = replace(schedule, devices=tuple(tuple(mb for mb in device if mb) for device in schedule.devices))
        check(filled, setting.limit, dealer.name)
        if "collective" in dealer.ways:
            assert not schedule.uneven
        step = lengths[number // UPDATES]
        if dealer.name == "padded":
            assert sum(schedule.lengths) >= step.reshape(UPDATES, -1)[number % UPDATES].sum()
        elif dealer.name != "rollout":
            assert sorted(schedule.lengths) == sorted(step.reshape(UPDATES, -1)[number % UPDATES].tolist())
    if dealer.name == "rollout":
        both = [sorted(a.lengths + b.lengths) for a, b in zip(schedules[::2], schedules[1::2], strict=True)]
        assert both == np.sort(lengths, axis=1).tolist()
        assert {len(s.lengths) for s in schedules} == {32}


def test_padding_makes_samples_as_long_as_the_longest_beside_them(setting):
    for schedule in DEALERS[0].function(setting, UPDATES):
        for device in schedule.devices:
            assert all(len({schedule.lengths[i] for i in microbatch}) <= 1 for microbatch in device)


@pytest.fixture(scope="module")
def rows(setting):
    return whole.steps(setting, UPDATES, Around(generation=2.0))


def test_seconds_of_a_step_add_up(rows):
    for row in rows:
        assert row.seconds == pytest.approx(row.training + 2 * row.forward + 2.0)
        assert 0 < row.forward < row.training
        critic = replace(row, around=Around(1, True, 2.0))
        assert critic.seconds == pytest.approx(2 * row.training + 2 * row.forward + 2.0)


@given(
    st.tuples(st.floats(0.1, 1), st.floats(1, 10)),
    st.floats(0, 100),
    st.floats(0, 20),
    st.integers(0, 3),
    st.booleans(),
)
def test_what_is_computed_is_uncertain_and_generation_is_not(between, generation, rate, passes, critic):
    one = WholeStep("a", "b", 3.0, 1.0, Around(passes, critic, generation), between=between, rate=rate)
    ends = [(end - generation) / (one.seconds - generation) for end in one.ends]
    assert ends == pytest.approx(between)
    told = one.as_json()
    for end, seconds in {"": one.seconds, "_low": one.ends[0], "_high": one.ends[1]}.items():
        assert told[f"step_seconds{end}"] == seconds
        assert told[f"dollars{end}"] == pytest.approx(rate * seconds)


def test_a_step_is_paid_for_by_all_devices_at_the_price(setting):
    """Training alone costs what the rows of a comparison do, at the same minibatches."""
    compared = compare(setting, price=3.6).row("lb-micro", "collective")
    one = next(r for r in whole.steps(replace(setting, price=3.6), UPDATES, Around(0)) if r.dealer == "lb-micro")
    assert one.dollars(one.seconds) * BATCH.steps == pytest.approx(compared.dollars)
    ends = [one.dollars(at) * BATCH.steps for at in one.ends]
    assert ends == pytest.approx([compared.dollars_low, compared.dollars_high])
    assert all(r.as_json()["dollars"] is None for r in whole.steps(setting, UPDATES, Around()))


def test_each_piece_of_the_work_is_told_once(setting):
    done = []
    whole.steps(setting, UPDATES, Around(), advance=lambda: done.append(1))
    assert len(done) == whole.pieces()


def test_a_step_is_told_with_its_price_and_interval():
    ahead = replace(row("lb-mini", "on-demand", 10.0), between=(0.9, 1.2), rate=0.5)
    few, misfit = row("packed", "collective", 30.0), replace(row("padded", "collective", 1.0), memory_fits=False)
    told = "A step takes 20 s and $10.00 under on-demand + lb-mini (90 % interval 18.8 s to 22.4 s, $9.40 to $11.20)."
    assert whole.takes([few, ahead, misfit]) == [told]
    assert whole.takes([few]) == ["A step takes 40 s under collective + packed."]
    assert whole.takes([replace(few, rate=0.001)]) == ["A step takes 40 s and $0.04 under collective + packed."]
    assert whole.takes([misfit]) == []


def test_who_does_not_meet_waits_no_longer(setting):
    schedules = next(d for d in DEALERS if d.name == "packed").function(setting, UPDATES)
    met, apart = (whole.forward(setting.cost, way, schedules, UPDATES) for way in ("collective", "on-demand"))
    assert (apart <= met * 1.0001).all()
    assert (apart < met * 0.999).any()


def test_on_one_device_a_forward_pass_is_the_forward_of_its_microbatches():
    one = ask(Trace("a", np.full(8, 1000)), "qwen3-0.6b", gpu="h100", devices=1, minibatch=8, max_tokens=4000,
              minibatches=1, in_order=True)  # fmt: skip
    schedules = DEALERS[1].function(one, 1)
    p, model = one.cost.profile, one.cost.model
    squares = float(model.squares(np.full(4, 1000)).sum())
    each = [max(f.floor, f.constant + f.linear * 4000 + f.quadratic * squares + f.sample * 4)
            for f in (p.forward, p.embed, p.head)]  # fmt: skip
    expected = 2 * (model.layers * each[0] + each[1] + each[2] / 3)
    assert whole.forward(one.cost, "collective", schedules, 1)[0] == pytest.approx(expected, rel=0.02)


def row(dealer, way, training):
    return WholeStep(dealer, way, training, 1.0, Around(2, False, 8.0))


def test_the_verdict_is_of_the_whole_step():
    told = whole.verdict([row("lb-mini", "on-demand", 10.0), row("lb-micro", "collective", 20.0),
                          row("rollout", "collective", 30.0)])  # fmt: skip
    assert "makes the training pass 2.00 times as fast as collective + lb-micro, the whole step 1.50 times" in told[0]
    assert told[1] == "Training is 50% of the step: if it took no time, the step would be 2.00 times as fast."
    assert "3.00 times as fast as collective + rollout, the whole step 2.00 times" in told[2]
    assert "does not pay here" in whole.verdict([row("lb-mini", "on-demand", 20.0), *rest()])[0]


def test_what_does_not_fit_is_never_the_answer():
    few, many = row("rollout", "collective", 30.0), row("lb-mini", "on-demand", 10.0)
    told = whole.verdict([few, replace(many, memory_fits=False)])
    assert told[0] == "Of those that fit memory, collective + rollout is the fastest."
    assert told[2] == "No rule of assigning samples is faster here than verl's."
    told = whole.verdict([replace(few, memory_fits=False), many])
    assert told[0] == "Of those that fit memory, on-demand + lb-mini is the fastest."
    assert told[2] == "Verl's rule does not fit memory here."
    assert whole.verdict([replace(each, memory_fits=False) for each in (few, many)]) == [
        "Out of memory: nothing here fits."
    ]


def rollouts(prompts, rng):
    """Lengths of which most of what varies is between prompts."""
    logs = 7 + 0.7 * rng.standard_normal((prompts, 1)) + 0.2 * rng.standard_normal((prompts, 4))
    return Trace("pilot", np.exp(logs).ravel().astype(np.int64) + 16, group=np.repeat(np.arange(prompts), 4))


def stepped(trace, steps, tmp_path):
    """By a profile whose seconds are certain."""
    return rl(trace, "qwen2.5-1.5b", profile=str(tmp_path / "p.json"), gpu="h100", devices=4, max_tokens=40_000,
              prompts=8, rollouts=4, steps=steps)  # fmt: skip


def test_the_interval_of_a_step_is_of_which_prompts_were_drawn(tmp_path):
    """Pilots of 40 prompts, and what steps take of very many."""
    known = fits.estimate(catalog.model("qwen2.5-1.5b"), catalog.gpu("h100"), 1)
    profiles.write(replace(known, low=1.0, high=1.0), tmp_path / "p.json")
    true = {
        row.dealer + row.way: row.seconds
        for row in stepped(rollouts(6000, np.random.default_rng(0)), 700, tmp_path).rows
    }
    held = []
    for seed in range(40):
        for row in stepped(rollouts(40, np.random.default_rng(seed + 1)), 20, tmp_path).rows:
            low, high = row.ends
            assert low < row.seconds < high
            held.append(low <= true[row.dealer + row.way] <= high)
    assert 0.85 <= np.mean(held) < 1


SHARDED = {"full": {"devices": DEVICES}, "hybrid": {"devices": DEVICES, "devices_per_node": 2, "sharding": "hybrid"}}


@pytest.mark.parametrize("sharding", SHARDED)
def test_seconds_and_memory_are_those_of_a_comparison(sharding):
    """The same minibatches, limit and recipe: two commands on one question do not contradict each other."""
    run = pilot.run(recorded(40), BATCH, seed=0)
    size = {"minibatch": BATCH.share(DEVICES), "max_tokens": 9000, "minibatches": 6, "in_order": True}
    asked = ask(run, "qwen3-0.6b", gpu="h100", **size, **SHARDED[sharding])
    compared = compare(asked)
    for found in whole.steps(asked, UPDATES, Around()):
        if found.dealer in ("lb-micro", "sorted-slice", "lb-mini"):
            same = compared.row(found.dealer, found.way)
            assert found.training * BATCH.steps == pytest.approx(same.makespan_seconds)
            assert found.memory_bytes == pytest.approx(same.memory_bytes)
            assert found.memory_fits == same.memory_fits


def test_a_cluster_that_the_scan_cannot_run_is_run(tmp_path):
    (tmp_path / "c.toml").write_text("jitter = 0.05\n")
    size = {"minibatch": BATCH.share(DEVICES), "max_tokens": 9000, "minibatches": 6, "in_order": True}
    where = {"gpu": "h100", "devices": DEVICES, "cluster": str(tmp_path / "c.toml")}
    asked = ask(pilot.run(recorded(), BATCH, 0), "qwen3-0.6b", **where, **size)
    assert all(row.training > 0 for row in whole.steps(asked, UPDATES, Around()))


def test_a_step_that_fits_nowhere_says_what_would(tmp_path, capsys):
    lines = "\n".join(f"{g // 4},{500 + 100 * g}" for g in range(64))
    (tmp_path / "a.csv").write_text("prompt_id,length\n" + lines)
    asked = ["rl", str(tmp_path / "a.csv"), "--model", "llama-3.1-70b", "--gpu", "H100", "--devices", "8",
             "--prompts", "16", "--rollouts", "4", "--steps", "1"]  # fmt: skip
    assert main(asked) == 0
    out = capsys.readouterr().out
    assert "Out of memory: nothing here fits.\nOptions that fit: " in out
    assert "8 x h100, 16 prompts x 4 rollouts in 1 update," in out
    assert max(map(len, out.split("\n\n")[0].splitlines()[1:10])) <= 80
    assert "as fast as" not in out
    assert "A step takes" not in out
    assert main([*asked, "--price", "3"]) == 0
    assert max(map(len, capsys.readouterr().out.split("\n\n")[0].splitlines()[1:10])) <= 80
    assert main([*asked, "--lora", "16"]) == 0
    assert "Nothing here" not in capsys.readouterr().out


def rest():
    return [row("lb-micro", "collective", 20.0), row("rollout", "collective", 30.0)]


def test_the_command(tmp_path, capsys):
    trace = recorded(6)
    lines = (f"{s},{g},{n}" for s, g, n in zip(trace.step, trace.group, trace.lengths, strict=True))
    (tmp_path / "a.csv").write_text("step,prompt_id,length\n" + "\n".join(lines))
    asked = ["rl", str(tmp_path / "a.csv"), "--model", "qwen3-0.6b", "--gpu", "h100", "--devices", "2",
             "--prompts", "8", "--rollouts", "4", "--updates", "2", "--steps", "2", "--max-tokens", "2000"]  # fmt: skip
    assert main([*asked, "--generation-seconds", "30s"]) == 0
    out = capsys.readouterr().out
    assert "8 prompts x 4 rollouts in 2 updates, at most 2,000 tokens" in out
    assert "2 steps with 30 s of generation each" in out
    assert "drawn independently" not in out
    assert main([*asked, "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["inputs"].items() >= {"gpu": "h100", "recompute": True, "sharding": "full"}.items()
    assert type(content["inputs"]["grouped"]) is bool
    assert len(content["rows"]) == 7
    assert main([*asked, "--price", "2.5", "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["inputs"]["price"] == 2.5
    assert all(row["dollars_low"] < row["dollars"] < row["dollars_high"] for row in content["rows"])
    assert main([*asked[:-1], "300"]) == 2
    assert "over --max-tokens 300" in capsys.readouterr().err

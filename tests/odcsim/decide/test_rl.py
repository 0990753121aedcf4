"""A whole step of reinforcement learning: groups stay whole, deals are complete, and seconds add up."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from odcsim import InputError, Trace, ask, catalog, compare, rl
from odcsim import profile as profiles
from odcsim.catalog import fits
from odcsim.decide.generation import GenerationTime
from odcsim.decide.rl import DEALERS, Around, RolloutBatch, draw_steps, forward, predict_step
from odcsim.decide.setting import draw_minibatches
from odcsim.decide.way import Way
from odcsim.question import Question
from odcsim.results.intervals import apart
from odcsim.schedule import check, flattened

DEVICES, UPDATES = 4, 2
BATCH = RolloutBatch(prompts=16, rollouts=4, updates=UPDATES, steps=3)
SPENT = st.floats(0, 20)
NOTHING = GenerationTime(0.0)
ALL = apart(1)  # prompts that are all there are: nothing is open about which were drawn


def recorded(groups=10, of=4, seed=0):
    """Lengths that say which group and which of it they are."""
    lengths = np.concatenate([(g + 1) * 100 + np.arange(of) for g in range(groups)])
    group, order = np.repeat(np.arange(groups), of), np.random.default_rng(seed).permutation(len(lengths))
    return Trace("pilot", lengths[order], group=group[order], step=group[order] % 2)


@given(st.integers(1, 12), st.integers(1, 5), st.integers(1, 9), st.integers(1, 5))
def test_groups_stay_whole_and_each_comes_before_any_again(groups, of, prompts, rollouts):
    batch = RolloutBatch(prompts, rollouts, steps=2)
    run, drawn_prompts, size = draw_steps(recorded(groups, of), batch, seed=1)
    assert (size, drawn_prompts.shape) == (groups, (2, prompts))
    lengths = run.lengths.reshape(-1, rollouts)
    of_group = lengths // 100
    assert (of_group == of_group[:, :1]).all()
    times = Counter(of_group[:, 0].tolist())
    assert max(times.values()) - min(times.get(g + 1, 0) for g in range(groups)) <= 1
    if rollouts <= of:
        assert all(len(set(row)) == rollouts for row in lengths.tolist())


def test_groups_are_of_a_prompt_in_a_step_lengths_without_any_drawn_singly_and_siblings_in_one_update():
    trace = Trace("a", np.arange(1, 7), group=np.array([0, 0, 1, 0, 0, 1]), step=np.array([0, 0, 0, 1, 1, 1]))
    run, prompts, size = draw_steps(trace, RolloutBatch(4, 2, steps=1), seed=0)
    assert size == 4
    assert sorted(prompts[0].tolist()) == [0, 1, 2, 3]
    siblings = dict(zip(prompts[0].tolist(), run.lengths.reshape(4, 2).tolist(), strict=True))
    assert {prompt: sorted(of) for prompt, of in siblings.items()} == {0: [1, 2], 1: [3, 3], 2: [4, 5], 3: [6, 6]}
    alone, prompts, size = draw_steps(Trace("a", np.arange(1, 129)), replace(BATCH, steps=2), seed=0)
    assert sorted(alone.lengths.tolist()) == list(range(1, 129))
    assert (size, prompts.shape) == (128, (2, 64))
    run = draw_steps(recorded(), BATCH, seed=0)[0]
    assert run.size == 3 * 64
    assert np.bincount(run.step).tolist() == [32] * 6
    assert all(len(set(run.step[run.group == g].tolist())) == 1 for g in np.unique(run.group))
    with pytest.raises(InputError):
        RolloutBatch(16, 4, 3).share(Question(devices=4))


@pytest.fixture(scope="module", params=[9000, 4004])  # the longest sample has 4003
def setting(request):
    batch = BATCH.share(Question(devices=DEVICES))
    run = draw_steps(recorded(40), BATCH, seed=0)[0]
    asked = {"gpu": "h100", "devices": DEVICES, "minibatch": batch, "max_tokens": request.param, "minibatches": 6}
    return ask(run, "qwen3-0.6b", **asked, in_order=True)


@pytest.mark.parametrize("dealer", DEALERS, ids=lambda d: d.name)
def test_every_deal_is_complete(setting, dealer):
    """Each sample once, nothing over the limit; as many microbatches on each device where they meet."""
    schedules = dealer.schedules(setting, draw_minibatches(setting), UPDATES)
    assert len(schedules) == 6
    lengths = setting.trace.lengths.reshape(3, -1)
    for number, schedule in enumerate(schedules):
        filled = schedule.dealt(flattened([[mb for mb in device if mb] for device in schedule.devices]))
        check(filled, setting.limit, dealer.name)
        if "collective" in dealer.syncs:
            assert not schedule.uneven
        update = lengths[number // UPDATES].reshape(UPDATES, -1)[number % UPDATES]
        if dealer.name == "padded":
            assert sum(schedule.lengths) >= update.sum()
            step = lengths[number // UPDATES].reshape(UPDATES, DEVICES, -1)
            for rank, device in enumerate(schedule.devices):  # of all that it generated, whichever update
                assert {schedule.lengths[i] for mb in device for i in mb} == {step[:, rank].max()}
                assert len({len(mb) for mb in device}) == 1
        elif dealer.name != "rollout":
            assert sorted(schedule.lengths) == sorted(update.tolist())
    if dealer.name == "rollout":
        both = [sorted(a.lengths + b.lengths) for a, b in zip(schedules[::2], schedules[1::2], strict=True)]
        assert both == np.sort(lengths, axis=1).tolist()
        assert {len(s.lengths) for s in schedules} == {32}


def deal(setting, name):
    return next(d for d in DEALERS if d.name == name).schedules(setting, draw_minibatches(setting), UPDATES)


@pytest.mark.parametrize("pair", [("padded", "collective"), ("rollout", "on-demand"), ("lb-mini", "on-demand")])
def test_seconds_of_a_step_add_up(setting, pair):
    def step(passes, critic=False, generation=0.0):
        around = Around(passes, critic)
        return predict_step(
            Way(setting, *pair), deal(setting, pair[0]), UPDATES, around, ALL, GenerationTime(generation)
        )

    training, forward = step(0).training, step(1).forward
    assert 0 < forward < training
    for around in ((0, False, 2.0), (2, False, 2.0), (1, True, 2.0)):
        one, passes, critic = step(*around), *around[:2]
        assert one.training == pytest.approx((1 + critic) * training)
        assert one.forward == pytest.approx((passes + critic) * forward)
        assert one.row.makespan_seconds == pytest.approx(one.training + one.forward + 2.0)


def test_training_alone_costs_what_the_rows_of_a_comparison_do_at_the_same_minibatches(setting):
    pairs = [("lb-micro", "collective"), ("lb-micro", "on-demand")]
    compared = compare(setting, price=3.6, among=pairs).rows[0]
    schedules, priced = deal(setting, "lb-micro"), replace(setting, price=3.6)
    one = predict_step(Way(priced, *pairs[0]), schedules, UPDATES, Around(0), ALL, NOTHING).row
    paid = [at * BATCH.steps for at in (one.dollars, one.dollars_low, one.dollars_high)]
    assert paid == pytest.approx([compared.dollars, compared.dollars_low, compared.dollars_high])
    assert one.memory_bytes == compared.memory_bytes
    assert (
        predict_step(Way(setting, *pairs[0]), schedules, UPDATES, Around(0), ALL, NOTHING).as_json()["dollars"] is None
    )


@given(st.tuples(st.floats(0.1, 1), st.floats(1, 10)), SPENT, SPENT, st.integers(0, 3), st.booleans())
def test_what_is_computed_is_uncertain_and_generation_is_not_and_all_devices_are_paid_for(
    setting, between, generation, price, passes, critic
):
    cost = setting.cost
    cost = replace(cost, profile=replace(cost.profile, low=between[0], high=between[1]))
    asked, around = replace(setting, price=price, cost=cost), Around(passes, critic)
    way, said = Way(asked, "packed", "collective"), GenerationTime(generation)
    one = predict_step(way, deal(setting, "packed"), UPDATES, around, ALL, said)
    told = one.as_json()
    for end, times in {"": 1.0, "_low": between[0], "_high": between[1]}.items():
        seconds = times * (one.training + one.forward) + generation
        assert told[f"step_seconds{end}"] == pytest.approx(seconds)
        assert told[f"dollars{end}"] == pytest.approx(price * DEVICES * seconds / 3600)


def test_who_does_not_meet_waits_no_longer(setting):
    schedules = deal(setting, "packed")
    met, alone = (forward(setting.cost.by(sync=sync), schedules, UPDATES) for sync in ("collective", "on-demand"))
    assert (alone <= met * 1.0001).all()
    assert (alone < met * 0.999).any()
    by_update = forward(setting.cost.by(sync="collective"), schedules, 1).reshape(-1, UPDATES)
    assert met == pytest.approx(by_update.sum(axis=1))
    by_update = forward(setting.cost.by(sync="on-demand"), schedules, 1).reshape(-1, UPDATES)
    assert (by_update.max(axis=1) < alone).all()
    assert (alone <= by_update.sum(axis=1) * (1 + 1e-9)).all()


def test_on_one_device_a_forward_pass_is_the_forward_of_its_microbatches():
    asked = {"gpu": "h100", "devices": 1, "minibatch": 8, "max_tokens": 4000, "minibatches": 1, "in_order": True}
    one = ask(Trace("a", np.full(8, 1000)), "qwen3-0.6b", **asked)
    p, model = one.cost.profile, one.cost.model
    squares = float(model.squares(np.full(4, 1000)).sum())
    layer, embed, head = (
        max(f.floor, f.constant + f.linear * 4000 + f.quadratic * squares + f.sample * 4)
        for f in (p.forward, p.embed, p.head)
    )
    expected = 2 * (model.layers * layer + embed + head / 3)
    schedules = DEALERS[1].schedules(one, draw_minibatches(one), 1)
    met, alone = (forward(one.cost.by(sync=sync), schedules, 1)[0] for sync in ("collective", "on-demand"))
    assert met == pytest.approx(expected, rel=0.02)
    assert alone == pytest.approx(met)


def rollouts(prompts, rng):
    """Lengths of which most of what varies is between prompts."""
    logs = 7 + 0.7 * rng.standard_normal((prompts, 1)) + 0.2 * rng.standard_normal((prompts, 4))
    return Trace("pilot", np.exp(logs).ravel().astype(np.int64) + 16, group=np.repeat(np.arange(prompts), 4))


def test_the_interval_of_a_step_is_of_which_prompts_were_drawn(tmp_path):
    """Pilots of 40 prompts, and what steps take of very many, by a profile whose seconds are certain."""
    known = fits.estimate(catalog.model("qwen2.5-1.5b"), catalog.gpu("h100"), 1)
    profiles.write(replace(known, low=1.0, high=1.0), tmp_path / "p.json")
    asked = {"profile": str(tmp_path / "p.json"), "gpu": "h100", "devices": 4, "max_tokens": 40_000, "prompts": 8}
    asked["generation_seconds"] = 0

    def stepped(prompts, seed, steps):
        trace = rollouts(prompts, np.random.default_rng(seed))
        return [step.row for step in rl(trace, "qwen2.5-1.5b", rollouts=4, steps=steps, **asked).rows]

    true = {row.name: row.makespan_seconds for row in stepped(6000, 0, 700)}
    held = []
    for row in (row for seed in range(1, 41) for row in stepped(40, seed, 20)):
        assert row.model_low < row.makespan_seconds < row.model_high
        held.append(row.model_low <= true[row.name] <= row.model_high)
    assert 0.85 <= np.mean(held) < 1

"""Generation by bytes and FLOPs: against what the same answers take one step of decoding at a time, and its bounds."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from odcsim import InputError, Trace, catalog, levers, rl
from odcsim.cluster import cluster_of
from odcsim.decide.generation import ALONE, BANDWIDTH, STEP, TOKEN, Engine, engine_of, generate

GPU = catalog.gpu("h100")
ANSWERS = st.lists(st.tuples(st.integers(1, 60), st.integers(1, 80)), min_size=1, max_size=12)
MODELS = ("qwen3-0.6b", "qwen3-30b-a3b", "gpt-oss-20b")


def engine(model="qwen3-0.6b", gpus=1, room=None):
    one = Engine(catalog.model(model), GPU, gpus, GPU.memory_bytes)
    if room is None:
        return one
    weights = 2 * one.model.parameters / gpus
    return replace(one, memory=weights + room * one.cache)


def columns(answers):
    return tuple(np.array(of, dtype=np.int64) for of in zip(*answers, strict=True))


@given(ANSWERS, st.sampled_from(MODELS))
def test_answers_that_all_fit_take_their_steps_of_decoding_one_after_the_other(answers, model):
    prompts, lengths = columns(answers)
    one, expected = engine(model), 0.0
    for step in range(lengths.max()):
        there = lengths > step
        expected += one.step(int(there.sum()), float((prompts[there] + step + 0.5).sum()))
    assert one.write(prompts, lengths)[0] == pytest.approx(expected, rel=1e-6)


def one_by_one(engine, prompts, lengths):
    """The same, a step of decoding at a time."""
    there, left = prompts.tolist(), lengths.tolist()
    waiting, writing, seconds, admits = list(range(len(left))), [], 0.0, True
    while waiting or writing:
        while admits and waiting:
            held = sum(there[i] for i in writing)
            if writing and held + there[waiting[0]] + len(writing) >= engine.room:
                break
            writing.append(waiting.pop(0))
        held, admits = sum(there[i] for i in writing), False
        if len(writing) > 1 and held + len(writing) > engine.room:
            waiting.insert(0, writing.pop())
            seconds += engine.read(there[waiting[0]])
            continue
        seconds += engine.step(len(writing), held + len(writing) / 2)
        for i in writing:
            there[i], left[i] = there[i] + 1, left[i] - 1
        if ended := [i for i in writing if not left[i]]:
            writing, admits = [i for i in writing if i not in ended], True
    return seconds


@given(ANSWERS, st.floats(1.0, 4.0))
def test_whoever_came_last_makes_room_and_goes_on_when_another_has_ended(answers, times):
    prompts, lengths = columns(answers)
    short = engine(room=int((prompts + lengths).max()) * times + 1)
    assert short.write(prompts, lengths)[0] == pytest.approx(one_by_one(short, prompts, lengths), rel=1e-6)


@given(ANSWERS, st.floats(1.0, 4.0))
def test_where_memory_is_short_all_are_written_later_and_never_sooner(answers, times):
    prompts, lengths = columns(answers)
    longest = int((prompts + lengths).max())
    short, whole = engine(room=longest * times + 1), engine()
    seconds, tail = short.write(prompts, lengths)
    free, _ = whole.write(prompts, lengths)
    alone = sum(whole.write(prompts[i : i + 1], lengths[i : i + 1])[0] for i in range(len(prompts)))
    assert free * (1 - 1e-9) <= seconds
    assert seconds <= alone + sum(short.read(longest) for _ in range(100 * len(prompts)))
    assert 0 <= tail <= seconds


@pytest.mark.parametrize("model", MODELS)
def test_a_step_reads_its_bytes_and_no_more_experts_than_there_are(model):
    one = engine(model)
    least = BANDWIDTH * GPU.memory_bandwidth
    embedding = 0 if one.model.tied else one.model.head_parameters
    few, every = ((2 * (size - embedding)) for size in (one.model.active_parameters, one.model.parameters))
    assert one.step(1, 0) - STEP - TOKEN == pytest.approx(one.weights(1) / least)
    assert few == pytest.approx(one.weights(1), rel=1e-3)
    assert every == pytest.approx(one.weights(10**6))
    assert one.step(8, 1000) > one.step(8, 0)
    assert engine(model, gpus=2).weights(4) == pytest.approx(one.weights(4) / 2)


def test_an_engine_has_the_fewest_gpus_that_hold_it_and_says_where_none_do():
    node = cluster_of(GPU, 8)
    sizes = {name: engine_of(catalog.model(name), GPU, node, ALONE).gpus for name in ("llama-3.1-8b", "llama-3.1-70b")}
    assert sizes == {"llama-3.1-8b": 1, "llama-3.1-70b": 4}
    assert engine_of(catalog.model("llama-3.1-8b"), GPU, node, ALONE, 2).gpus == 2
    with pytest.raises(InputError, match="--tensor-parallel 3 on 8 GPUs"):
        engine_of(catalog.model("llama-3.1-8b"), GPU, node, ALONE, 3)
    steps = [(np.full(8, 10), np.full(8, 100))]
    large = engine_of(catalog.model("llama-3.1-405b"), GPU, node, ALONE)
    assert generate(large, 8, steps, 1) is None


def trace(loss=True):
    rng = np.random.default_rng(0)
    answers = np.minimum(rng.lognormal(6, 0.8, 256).astype(int) + 8, 4000)
    lengths = answers + 100
    return Trace("own", lengths, loss=answers if loss else None, group=np.repeat(np.arange(32), 8))


ASKED = {"gpu": "h100", "devices": 8, "prompts": 16, "rollouts": 8, "steps": 3, "price": 2.0}


def test_gpus_that_generate_alone_overlap_with_those_that_train_and_all_are_paid_for():
    found = rl(trace(), "qwen3-0.6b", **ASKED)
    assert [split.generators for split in found.splits] == [4, 6]
    for split in found.splits:
        step, row = split.step, split.step.row
        trained = rl(trace(), "qwen3-0.6b", **{**ASKED, "devices": 8 - split.generators, "generation_seconds": 0})
        same = trained.row(row.balancer, row.sync)
        if split.step.row.memory_bytes == same.row.memory_bytes:  # by the same token limit
            assert step.trained == pytest.approx(same.trained)
        assert split.in_turn == pytest.approx(step.trained + step.generation)
        assert row.makespan_seconds == pytest.approx(max(step.trained, step.generation))
        assert row.dollars == pytest.approx(8 * row.makespan_seconds / 3600 * 2.0)
        assert row.model_low <= row.makespan_seconds <= row.model_high
        assert step.generation > found.generation.seconds
    given = rl(trace(), "qwen3-0.6b", **ASKED, generation_seconds=5)
    assert (given.splits, given.generation.seconds, given.generation.estimated) == ((), 5.0, False)


def test_answers_are_what_is_generated_where_the_lengths_say_so():
    some, every = (rl(trace(loss), "qwen3-0.6b", **ASKED).generation.seconds for loss in (True, False))
    assert some < every


def test_a_run_is_its_steps():
    found = rl(trace(), "qwen3-0.6b", **ASKED, total_steps=300)
    for step, spent in zip(found.rows, found.as_json()["run"]["rows"], strict=True):
        for whole, each in (("seconds", "makespan_seconds"), ("dollars", "dollars"), ("seconds_high", "model_high")):
            assert spent[whole] == pytest.approx(300 * getattr(step.row, each))
    assert rl(trace(), "qwen3-0.6b", **ASKED).as_json()["run"] is None


def test_what_a_lever_saves_is_what_the_same_question_says_with_it():
    asked = {**ASKED, "updates": 4}
    found = rl(trace(), "qwen3-0.6b", **asked)
    for lever in levers(found).found:
        words = lever.change.flags.split()
        changed = dict(zip((w.strip("-").replace("-", "_") for w in words[::2]), words[1::2], strict=True))
        changed = {name: int(value) if value.isdigit() else value for name, value in changed.items()}
        if "truncate" in changed:
            continue
        again = rl(trace(), "qwen3-0.6b", **{**asked, **changed}).row(*found.best.row.pair).row
        samples = changed.get("prompts", 16) / 16
        assert lever.row.dollars == pytest.approx(again.dollars / samples), lever.change.flags
    assert any(lever.change.flags.startswith("--prompts") for lever in levers(found).found)
    names = {lever.change.flags for lever in levers(found).found} | {one.flags for one in levers(found).tried}
    assert {"--prompts 32", "--prompts 64", "--updates 2", "--updates 1", "--devices 4"} <= names


def test_a_pilot_of_few_answers_leaves_more_open():
    """And intervals of many hold what far more of the same say; those of few often do not, which answers say."""

    def answers(prompts, seed):
        rng = np.random.default_rng(seed)
        found = np.exp(7 + 0.8 * rng.standard_normal((prompts, 1)) + 0.4 * rng.standard_normal((prompts, 8)))
        found = found.astype(int).clip(8, 16_000).ravel()
        return Trace("own", found + 100, loss=found, group=np.repeat(np.arange(prompts), 8))

    def asked(prompts, seed):
        return rl(answers(prompts, seed), "qwen3-0.6b", **{**ASKED, "steps": 10}).generation

    few, many = [asked(16, seed) for seed in range(8)], [asked(400, seed) for seed in range(3)]
    assert np.mean([one.open for one in many]) < 0.8 * np.mean([one.open for one in few])
    true = asked(4000, 9).seconds
    held = [one.seconds * one.between[0] <= true <= one.seconds * one.between[1] for one in many]
    assert all(held)

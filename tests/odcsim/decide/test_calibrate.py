"""A log that the simulator made, with compute a known number of times as long, says that number."""

import json
import math
import re
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

import odcsim
from odcsim import InputError
from odcsim import profile as profiles
from odcsim.cli import main
from odcsim.decide import calibrate
from odcsim.decide.evaluate import evaluate
from odcsim.fitting.steps import LoggedStep

RUN = {
    "trace": "lognormal:median=900,sigma=0.5,max=4096", "model": "qwen3-1.7b", "gpu": "h100", "devices": 4,
    "minibatch": 8, "max_tokens": 8192, "minibatches": 100,
}  # fmt: skip
WAYS = (("lb-micro", "collective"), ("native", "deferred"), ("lb-robust", "on-demand"))
FLAGS = [RUN["trace"], *"--model qwen3-1.7b --gpu h100 --devices 4 --minibatch 8 --max-tokens 8192".split()]
RATE = ["--measured-tokens-per-second", "30,000"]


@cache
def simulated(way=WAYS[0], **other):
    return calibrate.Simulated(odcsim.ask(**{**RUN, **other}), way)


@cache
def other_steps(factor, way=WAYS[0], **other):
    """Seconds and tokens of steps of other samples of the same lengths, with compute so many times as long."""
    run = simulated(way, seed=7, **{"minibatches": 900, **other})
    return run.with_compute(factor), run.tokens


def log(seconds, tokens, noise=0.0, seed=0):
    luck = np.exp(noise * np.random.default_rng(seed).standard_normal(len(seconds)))
    every = zip((seconds * luck).tolist(), tokens.tolist(), strict=True)
    return tuple(LoggedStep(i, 1, s, t) for i, (s, t) in enumerate(every, 1))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("rate", [9_000.0, 60_000.0])
def test_a_profile_gives_the_throughput_back(way, rate, tmp_path):
    """Through its file and every door's evaluation."""
    found = calibrate.by_rate(simulated(way), rate)
    profiles.write(found.profile(), tmp_path / "p.json")
    row = evaluate(odcsim.ask(**RUN, profile=str(tmp_path / "p.json")), [way]).row(*way)
    assert row.tokens_per_second == pytest.approx(rate, rel=1e-3)
    assert found.rate == pytest.approx(rate)
    assert (row.fidelity, row.model_low < row.makespan_seconds < row.model_high) == ("scaled", True)


def test_the_interval_holds_nine_of_ten():
    seconds, tokens = other_steps(1.3)
    true, inside = simulated().slope.tokens / simulated().with_compute(1.3).mean(), 0
    for seed in range(28):
        some = slice(30 * seed, 30 * seed + 30)
        found = calibrate.by_steps(simulated(), log(seconds[some], tokens[some], 0.04, seed))
        inside += abs(math.log(found.rate / true)) < math.log(found.high)
    assert inside >= 25


def test_a_batch_unlike_the_logged_one_is_doubted():
    seconds, tokens = other_steps(1.3)
    for times, doubts in ((1.1, 0), (2.0, 1)):
        found = calibrate.by_steps(simulated(), log(times * seconds, times * tokens))
        assert sum(line.startswith("doubtful") for line in calibrate.sentences(found)) == doubts


def test_long_steps_of_long_samples_are_no_outliers():
    """What the lengths of a step explain, the simulated steps have as well."""
    other = {"trace": "longalign", "max_tokens": 65536, "minibatch": 1}
    found = calibrate.by_steps(simulated(**other), log(*other_steps(1.0, **other)))
    assert len(found.left_out) < 9  # of 900
    assert found.low < 1 / found.factor < found.high


def test_steps_that_differ_enough_tell_what_a_step_takes_beside_its_tokens():
    """Of long samples, so that no layer waits for the host."""
    few = {"trace": "lognormal:median=3000,sigma=0.5,max=8192", "devices": 2, "minibatch": 1, "minibatches": 200}
    seconds, tokens = other_steps(1.3, **few)
    waits = log(seconds + 2 * seconds.mean(), tokens, 0.01)
    found = calibrate.by_steps(simulated(**few), waits)
    assert found.told
    assert found.beside == pytest.approx(2 * seconds.mean(), rel=0.1)
    assert found.factor == pytest.approx(1.3, rel=0.2)
    assert found.rate == pytest.approx(sum(s.tokens for s in waits) / sum(s.seconds for s in waits), rel=0.1)
    optimizer = found.profile().timing("optimizer", 2).constant
    assert optimizer == pytest.approx(simulated(**few).setting.cost.profile.optimizer + found.beside)


def test_a_row_of_several_optimizer_steps_is_told_by_its_tokens():
    """Each of them has what a step takes beside its tokens."""
    few = {"devices": 2, "minibatch": 1, "minibatches": 200}
    rows = log(*(values.reshape(50, 4).sum(axis=1) for values in other_steps(1.3, **few)))
    found, taken_for_one = (calibrate.by_steps(simulated(**few), rows, updates=of) for of in (True, False))
    assert found.factor == pytest.approx(1.3, rel=0.05)
    assert taken_for_one.factor > 1.5


def test_on_other_numbers_of_devices_it_is_extrapolated_and_for_the_flags_of_its_run(tmp_path):
    path = str(tmp_path / "p.json")
    profiles.write(calibrate.by_rate(simulated(), 30_000.0).profile(), path)
    for devices, fidelity in ((4, "scaled"), (8, "extrapolated")):
        setting = odcsim.ask(**{**RUN, "devices": devices}, profile=path)
        assert evaluate(setting, [WAYS[0]]).fidelity == fidelity
        own = odcsim.ask(**{**RUN, "devices": devices}).cost.transfers(one_sided=True)["optimizer"]
        assert setting.cost.transfers(one_sided=True)["optimizer"] == pytest.approx(own)
    run = {**RUN, "lora": 16, "attention": "fa3"}
    profiles.write(calibrate.by_rate(calibrate.Simulated(odcsim.ask(**run), WAYS[0]), 30_000.0).profile(), path)
    assert profiles.read(path).recipe == ("attention fa3", "lora 16")
    recipe = odcsim.ask(**RUN, profile=path).cost.recipe
    assert (recipe, recipe.lora) == (odcsim.ask(**run, profile=path).cost.recipe, 16)
    with pytest.raises(InputError):
        odcsim.ask(**run | {"attention": "usual"}, profile=path)


def test_steps_without_tokens_hold_what_is_drawn_and_a_single_row_has_no_scatter():
    seconds, tokens = other_steps(1.3)
    blind = tuple(replace(step, tokens=None) for step in log(seconds, tokens))
    found = calibrate.by_steps(simulated(), blind)
    assert (found.told, found.factor) == (False, pytest.approx(1.3, rel=0.05))
    whole = (LoggedStep(900, 900, float(seconds.sum()), float(tokens.sum())),)
    row, rate = calibrate.by_steps(simulated(), whole), calibrate.by_rate(simulated(), tokens.sum() / seconds.sum())
    assert row.factor == pytest.approx(rate.factor, rel=0.01)
    told = [" ".join(calibrate.sentences(one)).count("scatter") for one in (row, rate, found)]
    assert told == [1, 1, 0]


def rows_of(argv, capsys):
    assert main([*argv, "--json"]) == 0
    return {(row["balancer"], row["sync"]): row for row in json.loads(capsys.readouterr().out)["rows"]}


def test_compare_takes_the_number_itself(capsys):
    row = rows_of(["compare", *FLAGS, *RATE, "--minibatches", "30"], capsys)[WAYS[0]]
    assert row["tokens_per_second"] == pytest.approx(30_000, rel=0.01)
    assert main(["compare", *FLAGS, *RATE, "--profile", "p.json"]) == 2


@pytest.mark.parametrize("trainer", ["trl", "verl", "axolotl"])
def test_a_trainer_runs_its_own_way_and_gets_its_throughput_back(trainer, tmp_path, capsys):
    words = ["--minibatches", "30", "--trainer", trainer]
    fit = ["fit", "--trace", *FLAGS, *words, *RATE, "-o", str(tmp_path / "p.json")]
    assert main(fit) == 0
    sync, balancer = re.search(r"under (\S+) \+ (\S+),", capsys.readouterr().out).groups()
    row = rows_of(["compare", *FLAGS, *words, "--profile", str(tmp_path / "p.json")], capsys)[balancer, sync]
    assert row["tokens_per_second"] == pytest.approx(30_000, rel=0.01)
    assert main([*fit, "--balancer", "lb-mini", "--sync", "on-demand"]) == 2

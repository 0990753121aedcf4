"""A log that the simulator made, with compute a known number of times as long, says that number."""

import json
import math
import re
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import odcsim
from odcsim import profile as profiles
from odcsim.cli import main
from odcsim.decide import calibrate
from odcsim.decide.calibrate import Simulated
from odcsim.decide.evaluate import evaluate
from odcsim.errors import InputError
from odcsim.fitting.steps import LoggedStep

RUN = {
    "trace": "lognormal:median=900,sigma=0.5,max=4096", "model": "qwen3-1.7b", "gpu": "h100", "devices": 4,
    "minibatch": 8, "max_tokens": 8192, "minibatches": 100,
}  # fmt: skip
WAYS = (("lb-micro", "collective"), ("native", "deferred"), ("lb-robust", "on-demand"))


LONG = {"trace": "lognormal:median=3000,sigma=0.5,max=8192"}  # of which no layer waits for the host


@cache
def simulated(way=WAYS[0], **other):
    return Simulated(odcsim.ask(**{**RUN, **other}), way)


@cache
def other_steps(factor, way=WAYS[0], **other):
    """Seconds and tokens of steps of other samples of the same lengths, with compute so many times as long."""
    run = simulated(way, seed=7, **{"minibatches": 900, **other})
    return run.with_compute(factor), run.tokens


@cache
def told(factor):
    return simulated().with_compute(factor).mean()


def log(seconds, tokens, noise=0.0, seed=0):
    luck = np.exp(noise * np.random.default_rng(seed).standard_normal(len(seconds)))
    every = zip((seconds * luck).tolist(), tokens.tolist(), strict=True)
    return tuple(LoggedStep(i, 1, s, t) for i, (s, t) in enumerate(every, 1))


def missed(factor, noise, count, seed):
    """How far the seconds that are found are off the true ones, in half intervals, and how long a half is."""
    seconds, tokens = (values[30 * seed :][:count] for values in other_steps(factor))
    found = calibrate.by_steps(simulated(), log(seconds, tokens, noise, seed))
    true = simulated().slope.tokens / told(factor)
    return abs(math.log(found.rate / true)) / math.log(found.high), math.log(found.high)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(st.sampled_from((0.5, 1.0, 4.0)), st.floats(0, 0.1), st.integers(10, 60), st.integers(0, 28))
def test_the_factor_is_found_about_within_its_own_interval(factor, noise, count, seed):
    """Nine times of ten within it, and never twice as far off."""
    off, half = missed(factor, noise, count, seed)
    assert off < 2
    assert half < 0.1 + 2 * noise


def test_the_interval_holds_nine_of_ten():
    every = [missed(1.3, 0.04, 30, seed)[0] < 1 for seed in range(28)]
    assert sum(every) >= 25


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


def test_first_steps_and_those_that_saved_are_left_out():
    seconds, tokens = (values[:60] for values in other_steps(1.3))
    slow = seconds.copy()
    slow[[0, 20, 40]] *= 9
    clean, found = (calibrate.by_steps(simulated(), log(of, tokens, 0.02)) for of in (seconds, slow))
    assert [step.step for step in found.left_out] == [1, 21, 41]
    assert found.factor == pytest.approx(clean.factor, rel=0.02)
    assert clean.left_out == ()


def test_long_steps_of_long_samples_are_no_outliers():
    """What the lengths of a step explain, the simulated steps have as well."""
    other = {"trace": "longalign", "max_tokens": 65536, "minibatch": 1}
    found = calibrate.by_steps(simulated(**other), log(*other_steps(1.0, **other)))
    assert len(found.left_out) < 9  # of 900
    assert found.low < 1 / found.factor < found.high


def test_steps_that_differ_enough_tell_what_a_step_takes_beside_its_tokens():
    few = {**LONG, "devices": 2, "minibatch": 1, "minibatches": 200}
    seconds, tokens = other_steps(1.3, **few)
    waits = log(seconds + 2 * seconds.mean(), tokens, 0.01)
    found = calibrate.by_steps(simulated(**few), waits)
    assert found.told
    assert found.beside == pytest.approx(2 * seconds.mean(), rel=0.1)
    assert found.factor == pytest.approx(1.3, rel=0.2)
    assert found.rate == pytest.approx(sum(s.tokens for s in waits) / sum(s.seconds for s in waits), rel=0.1)
    optimizer = found.profile().timing("optimizer", 2).constant
    assert optimizer == pytest.approx(simulated(**few).setting.cost.profile.optimizer + found.beside)


@pytest.mark.parametrize("noise", [0.0, 0.03])
def test_steps_of_like_tokens_tell_one_factor(noise):
    seconds, tokens = other_steps(1.3)
    alike = log(np.full(60, seconds.mean()), np.full(60, tokens.mean()), noise)
    found = calibrate.by_steps(simulated(), alike)
    assert (found.told, found.beside) == (False, 0.0)
    assert found.factor == pytest.approx(1.3, rel=0.03)


def test_steps_without_tokens_hold_what_is_drawn():
    seconds, tokens = other_steps(1.3)
    blind = tuple(replace(step, tokens=None) for step in log(seconds, tokens))
    found = calibrate.by_steps(simulated(), blind)
    assert not found.told
    assert found.factor == pytest.approx(1.3, rel=0.05)


def test_a_row_of_several_optimizer_steps_is_told_by_its_tokens():
    """Each of them has what a step takes beside its tokens."""
    few = {"devices": 2, "minibatch": 1, "minibatches": 200}
    rows = log(*(values.reshape(50, 4).sum(axis=1) for values in other_steps(1.3, **few)))
    found, taken_for_one = (calibrate.by_steps(simulated(**few), rows, updates=of) for of in (True, False))
    assert found.factor == pytest.approx(1.3, rel=0.05)
    assert taken_for_one.factor > 1.5


def test_steps_of_other_tokens_are_told_before_seconds_that_nobody_measured():
    """Their seconds at the tokens that are drawn are no step's."""
    far = simulated(devices=16, devices_per_node=2)
    held, drawn = 40 * far.slope.tokens, far.slope.tokens
    rows = [LoggedStep(i, 1, 2 * far.slope.seconds, held) for i in range(1, 9)]
    with pytest.raises(InputError, match=f"a step held {held:,.0f} tokens, and {drawn:,.0f} are drawn by these flags"):
        calibrate.by_steps(far, tuple(rows))
    alike = [LoggedStep(i, 1, 1e-3, drawn) for i in range(1, 9)]
    with pytest.raises(InputError, match="its transfers alone take"):
        calibrate.by_steps(far, tuple(alike))


def test_a_step_faster_than_its_transfers_is_refused():
    far = simulated(devices=16, devices_per_node=2)
    with pytest.raises(InputError, match=r"its transfers alone take \S+ s by the flags; see --devices"):
        calibrate.by_rate(far, 1e9)


def test_a_profile_holds_for_the_flags_of_its_run(tmp_path):
    run = {**RUN, "lora": 16, "attention": "fa3"}
    profiles.write(calibrate.by_rate(Simulated(odcsim.ask(**run), WAYS[0]), 30_000.0).profile(), tmp_path / "p.json")
    path = str(tmp_path / "p.json")
    assert profiles.read(path).recipe == ("attention fa3", "lora 16")
    assert odcsim.ask(**RUN, profile=path).cost.recipe == odcsim.ask(**run, profile=path).cost.recipe
    assert odcsim.ask(**RUN, profile=path).cost.recipe.lora == 16
    with pytest.raises(InputError, match="measured with attention fa3; its seconds include that: ask with attention"):
        odcsim.ask(**{**run, "attention": "usual"}, profile=path)
    with pytest.raises(InputError, match="stack with a profile"):
        odcsim.ask(**run, stack="plain", profile=path)


def test_on_other_numbers_of_devices_it_is_extrapolated(tmp_path):
    found = calibrate.by_rate(simulated(), 30_000.0)
    profiles.write(found.profile(), tmp_path / "p.json")
    for devices, fidelity in ((4, "scaled"), (8, "extrapolated")):
        setting = odcsim.ask(**{**RUN, "devices": devices}, profile=str(tmp_path / "p.json"))
        assert evaluate(setting, [WAYS[0]]).fidelity == fidelity
        own = odcsim.ask(**{**RUN, "devices": devices}).cost.transfers(one_sided=True)["optimizer"]
        assert setting.cost.transfers(one_sided=True)["optimizer"] == pytest.approx(own)


FLAGS = (
    "--trace", RUN["trace"], "--model", RUN["model"], "--gpu", "h100", "--devices", "4", "--minibatch", "8",
    "--max-tokens", "8192", "--minibatches", "100",
)  # fmt: skip


def fitted(*argv: object) -> int:
    return main(["fit", *map(str, argv)])


def test_a_number_and_a_single_row_say_that_they_have_no_scatter():
    seconds, tokens = other_steps(1.3)
    whole = (LoggedStep(900, 900, float(seconds.sum()), float(tokens.sum())),)
    row, rate, rows = (
        calibrate.by_steps(simulated(), whole),
        calibrate.by_rate(simulated(), float(tokens.sum() / seconds.sum())),
        calibrate.by_steps(simulated(), log(seconds, tokens)),
    )
    assert row.factor == pytest.approx(rate.factor, rel=0.01)
    told = ["no scatter of its own" in " ".join(calibrate.sentences(found)) for found in (row, rate, rows)]
    assert told == [True, True, False]


def test_a_batch_unlike_the_logged_one_is_doubted():
    seconds, tokens = other_steps(1.3)
    for times, doubted in ((1.1, False), (2.0, True)):
        found = calibrate.by_steps(simulated(), log(times * seconds, times * tokens))
        assert any(line.startswith("doubtful: a step held ") for line in calibrate.sentences(found)) is doubted
    far = calibrate.by_rate(simulated(), simulated().rate / 9)
    assert any("those of all devices" in line for line in calibrate.sentences(far))


def test_the_command_says_what_it_found_and_could_not_tell(tmp_path, capsys):
    seconds, tokens = (values[:60] for values in other_steps(1.3))
    rows = [{"step": s.step, "seconds": s.seconds, "tokens": s.tokens} for s in log(seconds, tokens, 0.01)]
    rows[0]["seconds"] *= 20
    (tmp_path / "log.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert fitted(tmp_path / "log.jsonl", *FLAGS, "-o", tmp_path / "p.json") == 0
    out = capsys.readouterr().out
    assert "read as a log of steps: 60 rows of 60 steps, by 'step', 'seconds', 'tokens'\n" in out
    assert "tokens/s under collective + lb-micro, 0.7" in out
    assert "left out: 1 row unlike the others: step 1 (" in out
    assert "not known: which lengths a step held" in out
    assert math.isclose(profiles.read(tmp_path / "p.json").low, 0.96, abs_tol=0.04)


def test_compare_takes_the_number_itself(capsys):
    argv = ["compare", *FLAGS[1:], "--measured-tokens-per-second", "30,000"]
    assert main([*argv, "--json"]) == 0
    out, err = capsys.readouterr()
    told, way = json.loads(out), "taken to have run lb-micro under collective: 'odcsim fit --balancer ... --sync ...'"
    assert err.splitlines()[0] == f"odcsim compare: {way} says otherwise"
    row = next(row for row in told["rows"] if (row["balancer"], row["sync"]) == WAYS[0])
    assert row["tokens_per_second"] == pytest.approx(30_000, rel=0.01)
    assert told["inputs"]["cost"].startswith("measured: 30,000 tokens/s under collective + lb-micro on 4 devices, 0.")
    assert main([*argv, "--profile", "p.json"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_compare_doubts_a_number_as_fit_does(tmp_path, capsys):
    assert fitted(*FLAGS, "--measured-tokens-per-second", "110", "-o", tmp_path / "p.json") == 0
    doubts = [line for line in capsys.readouterr().out.splitlines() if line.startswith("doubtful: ")]
    assert len(doubts) == 1
    assert main(["compare", *FLAGS[1:], "--measured-tokens-per-second", "110"]) == 0
    assert f"odcsim compare: {doubts[0]}\n" in capsys.readouterr().err


@pytest.mark.parametrize("trainer", ["trl", "verl", "axolotl"])
def test_a_trainer_runs_its_own_way_and_gets_its_throughput_back(trainer, tmp_path, capsys):
    argv = [*FLAGS, "--trainer", trainer, "--measured-tokens-per-second", "30,000", "-o", tmp_path / "p.json"]
    assert fitted(*argv) == 0
    out = capsys.readouterr().out
    assert f"not known: which of its ways {trainer} ran: the fastest is taken" in out
    sync, balancer = re.search(r"under (\S+) \+ (\S+),", out).groups()
    words = [*FLAGS[1:8], *FLAGS[10:], "--minibatch", "8", "--trainer", trainer, "--profile", str(tmp_path / "p.json")]
    assert main(["compare", *words, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    row = next(row for row in rows if (row["balancer"], row["sync"]) == (balancer, sync))
    assert row["tokens_per_second"] == pytest.approx(30_000, rel=0.01)
    assert fitted(*argv, "--balancer", "lb-mini", "--sync", "on-demand") == 2
    known = capsys.readouterr().err.partition(f"lb-mini under on-demand with --trainer {trainer}; it runs ")[2]
    assert f"{balancer} (" in known


@pytest.mark.parametrize(
    ("argv", "problem"),
    [
        ((), "nothing to fit; give a log"),
        (("--measured-tokens-per-second", "9k"), "--trace is needed for a log of steps and for tokens per second"),
        (("--measured-tokens-per-second", "0", *FLAGS), "'0' is not a number above 0"),
        (
            ("log.csv", "--measured-tokens-per-second", "9k", *FLAGS),
            "log.csv: --measured-tokens-per-second beside a log",
        ),
        (
            ("--measured-tokens-per-second", "9k", *FLAGS, "--balancer", "lb-mini"),
            "lb-mini under collective; its counts",
        ),
        (("--measured-tokens-per-second", "9k", *FLAGS, "--balancer", "none"), "unknown balancer 'none'"),
        (("log.csv", *FLAGS), "log.csv:2: seconds is 'x'; expected a number from 0"),
        (("micro.csv", *FLAGS), "micro.csv: --trace given for microbatches"),
    ],
)
def test_one_line_for_what_cannot_be_fitted(argv, problem, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "log.csv").write_text("step,seconds,tokens\n1,x,9\n2,1,9\n")
    (tmp_path / "micro.csv").write_text("lengths,seconds\n1;2,1\n")
    try:
        code = fitted(*argv, "-o", "p.json")
    except SystemExit as left:
        code = left.code
    err = capsys.readouterr().err
    assert (code, err.count("\n")) == (2, 1)
    assert problem in err
    assert not (tmp_path / "p.json").exists()

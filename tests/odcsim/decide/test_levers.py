"""What would cost less, against brute force: every changed question asked by itself; and why devices idle."""

import json
import os
import random
import re
from dataclasses import replace

import numpy as np
import pytest

import odcsim
from odcsim.cli import main
from odcsim.decide.cause import IDLE, LONGEST, REST, SHARES, TRANSFERS, cause_of
from odcsim.decide.decision import NOTABLE
from odcsim.errors import InputError
from odcsim.results import capacity
from odcsim.say import advice_words

SEEDS = range(3) if "THOROUGH" not in os.environ else [int(os.environ["BREAKING_SEED"]) * 10 + n for n in range(10)]
FLAG = re.compile(r"--([a-z-]+)(?: ([a-z0-9]+))?")


def drawn(seed):
    """Lengths with a long tail, written by nobody, and what is asked of them."""
    rng = random.Random(seed)
    lengths = np.random.default_rng(seed).lognormal(rng.uniform(5, 7), rng.uniform(0.8, 1.6), 900)
    lengths = lengths.clip(16, rng.choice([4096, 16_384])).astype(int)
    model = rng.choice(["qwen2.5-0.5b", "qwen2.5-1.5b", "qwen2.5-7b"])
    return lengths, model, rng.choice(["h100", "a100"]), rng.choice([4, 8]), rng.choice([16, 32])


def words(flags):
    """As arguments of Python."""
    found = {name.replace("-", "_"): value for name, value in FLAG.findall(flags)}
    return {name: True if not value else int(value) if value.isdecimal() else value for name, value in found.items()}


@pytest.mark.parametrize("seed", SEEDS)
def test_a_lever_of_an_advice_is_what_it_says_of_the_changed_question(seed):
    lengths, model, gpu, devices, batch = drawn(seed)
    asked = {"trace": lengths, "model": model, "gpus": gpu, "devices": devices, "global_batch": batch}
    asked |= {"price": 2.0, "minibatches": 6}
    advice = odcsim.advise(**asked)
    levers = odcsim.levers(advice)
    assert (levers.cause is None) == (advice.rent.row.idle < IDLE)
    base, costs = levers.base, [lever.row.dollars for lever in levers.found]
    assert costs == sorted(costs)
    for lever in levers.found:
        alone = alone_of(asked, lever.change.flags).rent.row
        assert (lever.row.dollars, lever.row.makespan_seconds, lever.row.idle) == (
            alone.dollars, alone.makespan_seconds, alone.idle,
        )  # fmt: skip
        assert lever.row.dollars * NOTABLE <= base.dollars
    for change in levers.tried:
        rent = rent_of(asked, change.flags)
        assert rent is None or rent.row.dollars * NOTABLE > base.dollars or capacity.level(rent) > capacity.level(base)
    if levers.cause:  # nothing that somebody would try by hand is left out
        every = {one.change.flags for one in levers.found} | {change.flags for change in levers.tried}
        assert {"--group-by-length", f"--global-batch {2 * batch}", f"--devices {devices // 2}"} <= every


def alone_of(asked, flags):
    more = words(flags)
    if "truncate" in more:
        more["trace"] = np.minimum(asked["trace"], more.pop("truncate"))
    return odcsim.advise(**asked | more)


def rent_of(asked, flags):
    try:
        return alone_of(asked, flags).rent
    except InputError:
        return None


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("size", ["minibatch", "global_batch"])
def test_a_lever_of_a_comparison_is_the_same_row_of_the_changed_question(seed, size):
    lengths, model, gpu, devices, batch = drawn(seed)
    asked = {"trace": lengths, "model": model, "gpu": gpu, "devices": devices, "minibatches": 6, "epochs": 1.0}
    asked |= {"max_tokens": 17_000, size: batch // devices if size == "minibatch" else batch}
    comparison = odcsim.compare(odcsim.ask(**asked))
    levers = odcsim.levers(comparison)
    for lever in levers.found:
        more = words(lever.change.flags)
        if lever.change.flags.startswith("no "):
            more = {"max_tokens": None}
        if "truncate" in more:
            more["trace"] = np.minimum(lengths, more.pop("truncate"))
        other = odcsim.compare(odcsim.ask(**asked | more))
        row = other.spent(other.row(*lever.row.pair))  # of those who meet, where GPUs share sequences
        assert lever.row.gpu_hours == pytest.approx(row.gpu_hours, rel=1e-12)
        assert (lever.row.idle, lever.row.memory_bytes) == (row.idle, row.memory_bytes)
        assert lever.row.gpu_hours * NOTABLE <= levers.base.gpu_hours


def cause(lengths, balancer="sorted-slice", sync="collective", **asked):
    known = {"gpu": "h100", "devices": 8, "minibatch": 4, "minibatches": 8, "max_tokens": 40_000}
    comparison = odcsim.compare(odcsim.ask(lengths, "qwen2.5-1.5b", **known | asked))
    row = comparison.row(balancer, sync)
    return cause_of(row, comparison.setting.cost.workers), row


def test_each_cause_is_named_where_it_was_made(tmp_path):
    long = [30_000, *[500] * 31] * 20
    found, row = cause(long, in_order=True)
    assert found.kind == LONGEST
    work = [
        odcsim.ask(long, "qwen2.5-1.5b", gpu="h100").cost.sample_seconds(np.array(of)).sum()
        for of in (long[:32], long[:1])
    ]
    assert row.busy == pytest.approx(work[0] / work[1])
    assert found.share <= row.idle <= 1 - row.busy / 8 + 0.2

    slow = tmp_path / "slow.toml"
    slow.write_text("link_gb_s = 1\n")
    found, _ = cause([500] * 640, cluster=str(slow))
    assert found.kind == TRANSFERS

    uneven = np.random.default_rng(0).permutation([2000] * 320 + [4000] * 320)
    found, row = cause(uneven, "native", "on-demand")
    assert found.kind == SHARES
    assert found.share <= row.idle
    found, _ = cause([4000] * 640)
    assert found is None


def test_a_setting_made_by_hand_has_a_cause_and_no_levers():
    setting = odcsim.ask([30_000, *[500] * 31] * 20, "qwen2.5-1.5b", gpu="h100", devices=8, minibatch=4, minibatches=4)
    levers = odcsim.levers(odcsim.compare(replace(setting, question=None)))
    assert levers.cause.kind in (LONGEST, REST)
    assert not levers.found
    assert not levers.tried


@pytest.mark.parametrize("command", ["compare", "advise", "rl"])
def test_programs_get_what_people_read(tmp_path, capsys, command):
    """By the command line as by Python; and the rest is as without it."""
    lengths, model, *_ = drawn(1)
    (tmp_path / "lengths.csv").write_text("\n".join(["length", *map(str, lengths)]) + "\n")
    own = {
        "compare": "--gpu h100 --devices 8 --minibatch 2 --minibatches 6",
        "advise": "--gpus h100 --devices 8 --global-batch 16 --minibatches 6",
        "rl": "--gpu h100 --devices 8 --prompts 8 --rollouts 2 --steps 2",
    }
    words = [command, str(tmp_path / "lengths.csv"), "--model", model, *own[command].split(), "--json"]

    def told(*more):
        assert main([*words, *more]) == 0
        return json.loads(capsys.readouterr().out)

    with_them, without = told("--levers"), told()
    found = with_them.pop("levers")
    assert with_them == without
    assert found["found"]
    assert [one["times"] for one in found["found"]] == sorted(one["times"] for one in found["found"])
    for one in found["found"]:
        assert one["gpu_hours"] == pytest.approx(one["times"] * found["base"]["gpu_hours"])


def test_where_no_offer_is_in_time_the_changes_that_would_be_are_named():
    asked = {"trace": np.r_[np.full(400, 300), 16_000], "model": "qwen2.5-1.5b", "gpus": "h100", "devices": 8}
    asked |= {"global_batch": 16, "price": 2.0, "minibatches": 6}
    usual = odcsim.advise(**asked)
    late = odcsim.advise(**asked, deadline=usual.rent.seconds * 0.8)
    assert late.rent is None
    assert late.nearest.name == usual.rent.name
    found = odcsim.levers(late)
    soon = [lever for lever in found.found if lever.row.makespan_seconds <= late.wish.deadline]
    assert soon
    [said] = advice_words.changed(late, found)
    assert said in list(advice_words.answer(late, levers=found).sentences)
    assert all(lever.change.flags in said for lever in soon)
    for lever in soon:
        again = alone_of(asked | {"deadline": late.wish.deadline}, lever.change.flags)
        assert again.rent is not None or "--truncate" in lever.change.flags

"""Samples split over gangs of devices, from the plan through the file and the executors to the answer."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from odcsim import schedule
from odcsim.balance import SPLIT
from odcsim.cli import Parser, balance, compare, simulate
from odcsim.decide import answer, answer_words
from odcsim.decide.asking import ask
from odcsim.decide.comparison import Comparison, pairs
from odcsim.decide.comparison import compare as compare_all
from odcsim.decide.evaluate import measure
from odcsim.decide.setting import plan
from odcsim.errors import InputError
from odcsim.executors import analytic, des
from odcsim.executors.simulation import Simulation
from odcsim.executors.simulation import simulate as run_file
from odcsim.plots.rows import idle, speedups
from odcsim.program import program
from odcsim.schedule import Header, Schedule, ScheduleFile

ONE = Schedule(
    (80, 9, 30, 7), (((0,), (1,)), ((0,),), ((2, 3),)), (5, 6, 7, 8), gangs=(2, 1, 1, 1), split_overhead=0.05
)
HEADER = Header(SPLIT, "m", "published fit: x", max_tokens=50, devices=3, seed=0)
ARGS = ("--model", "r1-distill-qwen-1.5b", "--gpu", "a100", "--devices", "8", "--minibatch", "2", "--minibatches", "5")


@pytest.fixture(scope="module")
def asked():
    sizes = {"devices": 8, "minibatch": 2, "minibatches": 5}
    return ask("longalign", "r1-distill-qwen-1.5b", gpu="a100", split_overhead=0.05, **sizes)


@pytest.fixture(scope="module")
def compared(asked) -> Comparison:
    return compare_all(asked)


def typed(capsys, *argv):
    parser = Parser(prog="odcsim")
    commands = parser.add_subparsers(parser_class=Parser)
    for module in (balance, compare, simulate):
        module.add(commands)
    args = parser.parse_args(list(map(str, argv)))
    args.run(args)
    return capsys.readouterr().out


def test_the_file_keeps_gangs_and_what_they_cost(tmp_path):
    written = schedule.write(ScheduleFile(HEADER, (ONE,)), tmp_path / "s.jsonl")
    assert schedule.read(tmp_path / "s.jsonl") == written
    assert written.schedules == (ONE,)
    assert json.loads((tmp_path / "s.jsonl").read_text().splitlines()[1])["gangs"] == [2, 1, 1, 1]
    others = (replace(ONE, split_overhead=0.06), replace(ONE, gangs=(), split_overhead=0.0))
    digests = {ScheduleFile(HEADER, (s,)).compute_digest() for s in (ONE, *others)}
    assert len(digests) == 3


def test_a_file_without_gangs_does_not_speak_of_them(tmp_path):
    plain = Schedule((8, 9), (((0,),), ((1,),), ()))
    schedule.write(ScheduleFile(HEADER, (plain,)), tmp_path / "s.jsonl")
    assert "gangs" not in (tmp_path / "s.jsonl").read_text()
    assert "split" not in (tmp_path / "s.jsonl").read_text().splitlines()[1]


def test_the_limit_counts_the_tokens_that_a_device_holds():
    assert ONE.tokens((0,)) == 40
    assert ONE.tokens((2, 3)) == 37
    schedule.check(ONE, 40, "here")
    with pytest.raises(InputError, match="device 0 microbatch 0 holds 40 tokens, over max_tokens 39"):
        schedule.check(ONE, 39, "here")


@pytest.mark.parametrize(
    ("devices", "gangs", "problem"),
    [
        ((((0,),), ((1,),), ((2, 3),)), (2, 1, 1, 1), "missing, repeated or out of range"),  # a part is missing
        ((((0,),), ((0,),), ((0,), (1, 2, 3))), (2, 1, 1, 1), "missing, repeated or out of range"),  # one too many
        ((((0,), (0,)), ((1,),), ((2, 3),)), (2, 1, 1, 1), "sample 0 is split over 2 devices"),  # both on one device
        ((((0,),), ((1,), (0,)), ((2, 3),)), (2, 1, 1, 1), "sample 0 is split over 2 devices"),  # not first
        ((((0,),), ((0, 1),), ((2, 3),)), (2, 1, 1, 1), "sample 0 is split over 2 devices"),  # not alone
        ((((0,),), ((0,),), ((1, 2, 3),)), (2, 1, 1), "3 gangs for 4 lengths"),
    ],
)
def test_a_gang_that_would_not_stay_in_step_is_refused(devices, gangs, problem):
    with pytest.raises(InputError, match=problem):
        schedule.check(replace(ONE, devices=devices, gangs=gangs), 1000, "here")


@pytest.mark.parametrize("value", [-0.1, 1.5, "0.1", True, None, [0.1]])
def test_an_overhead_that_is_no_fraction_is_refused(value, tmp_path):
    path = tmp_path / "s.jsonl"
    schedule.write(ScheduleFile(HEADER, (ONE,)), path)
    head, line = path.read_text().splitlines()
    entry = json.loads(line) | {"split_overhead": value}
    path.write_text(f"{head}\n{json.dumps(entry)}\n")
    with pytest.raises(InputError, match="split_overhead is"):
        schedule.read(path)


def test_each_device_of_a_gang_computes_its_part(asked):
    """By the seconds of a program: part of the sample's linear and quadratic work, and a microbatch's constants."""
    cost = replace(asked.cost, cluster=replace(asked.cost.cluster, devices=2))
    lengths = (40_000, 8_000)
    whole = Schedule(lengths, (((0,),), ((1,),)))
    split = Schedule(lengths, (((0,),), ((0,), (1,))), gangs=(2, 1), split_overhead=0.1)
    timed = []
    for found in (whole, split):
        steps = program(cost.model.layers, max(found.microbatches), "on-demand")
        timed.append(dict(zip(steps.durations, cost.durations(steps, cost.load([found]))[:, 0], strict=True)))
    alone, parted = timed
    for what in ("forward", "backward"):
        assert parted[what, 0] == pytest.approx([alone[what, 0][0] * 1.1 / 2] * 2)
        assert parted[what, 1] == pytest.approx([0.0, alone[what, 0][1]])
    assert parted["overhead", 0].tolist() == [alone["overhead", 0][0]] * 2


@given(st.integers(0, 2**16), st.integers(2, 9), st.sampled_from([0.0, 0.05, 0.3]))
def test_gangs_end_together_and_both_executors_agree_to_the_last_bit(seed, devices, overhead):
    sizes = {"devices": devices, "minibatch": 2, "minibatches": 1, "seed": seed}
    setting = ask("longalign", "r1-distill-qwen-1.5b", gpu="h100", split_overhead=overhead, **sizes)
    found = plan(setting, SPLIT).schedules
    steps = program(setting.cost.model.layers, max(found[0].microbatches), "on-demand")
    seconds = setting.cost.durations(steps, setting.cost.load(found))
    asked, had = analytic.run(steps, seconds)
    again = des.run(steps, seconds)
    assert np.array_equal(asked, again[0])
    assert np.array_equal(had, again[1])
    first = [i for i, step in enumerate(steps.steps) if step.microbatch == 0]
    for i, gang in enumerate(found[0].gangs):
        together = [d for d, device in enumerate(found[0].devices) if device[:1] == ((i,),)]
        if gang > 1:
            assert (had[first][:, 0, together] == had[first][:, 0, together[:1]]).all()


@pytest.mark.parametrize(("per_node", "largest"), [(8, 8), (4, 4), (6, 2), (12, 4)])
def test_no_gang_spans_two_nodes(per_node, largest):
    sizes = {"devices": 24, "minibatch": 1, "minibatches": 8, "devices_per_node": per_node}
    setting = ask("longalign", "r1-distill-qwen-1.5b", gpu="h100", split_overhead=0.0, **sizes)
    for found in plan(setting, SPLIT).schedules:
        for i, gang in enumerate(found.gangs):
            nodes = {d // per_node for d, device in enumerate(found.devices) if device[:1] == ((i,),)}
            assert gang == 1 or len(nodes) == 1
    assert max(gang for found in plan(setting, SPLIT).schedules for gang in found.gangs) == largest


def test_memory_and_fidelity_count_a_device_s_part(asked):
    """A profile that knows microbatches of half the longest sample knows parts of it."""
    setting = replace(asked, cost=replace(asked.cost, profile=replace(asked.cost.profile, most_tokens=40)))
    part = ScheduleFile(replace(HEADER, devices=8), (replace(ONE, devices=(*ONE.devices, *[()] * 5)),))
    whole = ScheduleFile(replace(HEADER, devices=8), (Schedule((80, 9), (((0, 1),), *[()] * 7)),))
    names = [run_file(f, Simulation(setting.cost, "on-demand", "analytic")).about.fidelity for f in (part, whole)]
    assert names == ["catalogue", "extrapolated"]


@pytest.mark.parametrize("gpu", ["a100", "h100"])
@pytest.mark.parametrize("devices", [8, 64])
@pytest.mark.parametrize("length", [100, 4000, 60_000])
def test_a_microbatch_takes_about_the_seconds_that_gangs_are_weighed_by(gpu, devices, length):
    """What one more microbatch adds to a simulated minibatch; transfers of one may hide behind the other's compute."""
    cost = ask("longalign", "r1-distill-qwen-7b", gpu=gpu, devices=devices, minibatch=1).cost
    ends = []
    for count in (1, 2):
        found = Schedule(
            (length,) * devices * count, tuple(tuple((d * count + m,) for m in range(count)) for d in range(devices))
        )
        ends.append(
            measure(ScheduleFile(HEADER, (found,)), Simulation(cost, "on-demand", "analytic")).usage.makespan[0]
        )
    weighed = cost.microbatch_times()(float(cost.sample_seconds(np.array([length]))[0]))
    assert ends[1] - ends[0] == pytest.approx(weighed, rel=0.1)


@pytest.mark.parametrize(("devices", "minibatch"), [(64, 1), (64, 2), (8, 2)])
def test_where_microbatches_are_dear_it_does_not_lose_to_lb_mini(devices, minibatch):
    """Short samples on a fit with a large constant: a planner that looked at samples alone took 1.6 times as long."""
    sizes = {"devices": devices, "minibatch": minibatch, "minibatches": 6}
    setting = ask("azure-chat", "r1-distill-qwen-7b", gpu="a100", split_overhead=0.05, **sizes)
    spent = {}
    for name in ("lb-mini", SPLIT):
        spent[name] = measure(
            plan(setting, name), Simulation(setting.cost, "on-demand", "analytic")
        ).usage.makespan.sum()
    assert spent[SPLIT] <= 1.01 * spent["lb-mini"]


@pytest.mark.parametrize("odd", [{"jitter": 0.1}, {"slow": ((1, 1.2),)}])
def test_what_would_break_the_step_of_a_gang_is_refused(odd, asked):
    cost = replace(asked.cost, cluster=replace(asked.cost.cluster, **odd))
    with pytest.raises(InputError, match="a gang that splits a sample stays in step"):
        Simulation(cost, "on-demand", "des").check(plan(asked, SPLIT).schedules)
    Simulation(cost, "on-demand", "des").check(plan(asked, "lb-mini").schedules)


def test_the_row_is_there_when_asked_for_and_only_then(asked, compared):
    assert [(r.balancer, r.sync) for r in compared.rows if r.balancer == SPLIT] == [(SPLIT, "on-demand")]
    assert compared.as_json()["inputs"]["split_overhead"] == 0.05
    plain = replace(asked, split_overhead=None)
    assert pairs(asked) == [*pairs(plain), (SPLIT, "on-demand")]
    assert pairs(plain) == pairs()
    with pytest.raises(InputError, match="'split' needs to know what splitting costs"):
        plan(plain, SPLIT)


def test_the_answer_rests_on_what_runs_and_tells_of_what_does_not(compared):
    row, found = compared.row(SPLIT, "on-demand"), answer.answer(compared)
    assert row.makespan_seconds == min(r.makespan_seconds for r in compared.rows)
    assert SPLIT not in {found.best.balancer, found.rival.balancer, found.chosen.balancer}
    told = " ".join(answer_words.sentences(compared, found))
    gain = found.best.makespan_seconds / row.makespan_seconds
    assert gain > 1.2
    best = answer_words.named(found.best)
    assert f"would run {gain:.2f} times as fast as {best}, at 5% more work for each doubling" in told
    assert "simulated only" in told
    for figure in (idle(compared.rows), speedups(compared.rows)):
        assert SPLIT not in figure.layout.title.text.partition("<br>")[0]
    others = replace(compared, rows=tuple(r for r in compared.rows if r.balancer != SPLIT))
    assert "simulated only" not in " ".join(answer_words.sentences(others, answer.answer(others)))


def test_balance_writes_what_simulate_reads_and_compare_shows(tmp_path, capsys, compared):
    where = tmp_path / "s.jsonl"
    typed(capsys, "balance", "longalign", "--balancer", "split", "--split-overhead", "0.05", *ARGS, "-o", where)
    command = ("simulate", where, "--sync", "on-demand", "--gpu", "a100", "--json", "-o", tmp_path / "t.npz")
    row = json.loads(typed(capsys, *command))
    assert row["makespan_seconds"] == compared.row(SPLIT, "on-demand").makespan_seconds
    shown = typed(capsys, "compare", "longalign", "--split-overhead", "0.05", *ARGS)
    assert any(line.split()[:2] == ["split", "on-demand"] for line in shown.splitlines())
    assert not any(line.split()[:1] == ["split"] for line in typed(capsys, "compare", "longalign", *ARGS).splitlines())


@pytest.mark.parametrize("value", ["-0.1", "1.1", "x", "nan"])
def test_an_overhead_out_of_range_is_refused(value, capsys):
    with pytest.raises((InputError, SystemExit)):
        typed(capsys, "compare", "longalign", f"--split-overhead={value}", *ARGS)
    with pytest.raises(InputError, match="--split-overhead is"):
        ask("longalign", "r1-distill-qwen-1.5b", gpu="a100", split_overhead=-0.1)


def test_an_overhead_without_splitting_is_refused(tmp_path, capsys):
    with pytest.raises(InputError, match="--split-overhead with --balancer lb-mini"):
        typed(
            capsys,
            "balance",
            "longalign",
            "--balancer",
            "lb-mini",
            "--split-overhead",
            "0.1",
            *ARGS,
            "-o",
            tmp_path / "s",
        )
    assert list(tmp_path.iterdir()) == []

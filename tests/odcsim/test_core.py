"""The core on programs that nobody has named: every step of drawn ones by hand, a pipeline by its recurrence, and the
syncs of the table as they always were."""

from dataclasses import asdict, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import program

from odcsim import InputError, ask, plan
from odcsim.core import Builder, simulate, usage
from odcsim.cost import Load
from odcsim.executors import des
from odcsim.executors.simulation import usage as of_schedules
from odcsim.program import KINDS, SYNCS
from odcsim.results.metrics import PARTS

LANES = ("compute", "a", "b")


@st.composite
def programs(draw):
    """Some steps in a few lanes, each behind a few others, and the seconds of each on each device."""
    steps, devices, count = Builder(), draw(st.integers(1, 3)), draw(st.integers(1, 12))
    for number in range(count):
        lane = draw(st.sampled_from(LANES))
        kinds = ["compute", "overhead"] if lane == "compute" else ["gather", "push", "overhead"]
        kind = draw(st.sampled_from(kinds))
        after = draw(st.lists(st.integers(-1, number - 1), max_size=3)) if number else []
        microbatch = draw(st.integers(-1, 1))
        meets = kind != "compute" and draw(st.booleans())
        steps.add(kind, lane, f"{number}", microbatch=microbatch, after=after, meets=meets)
    seconds = draw(
        st.lists(st.lists(st.integers(0, 5), min_size=devices, max_size=devices), min_size=count, max_size=count)
    )
    return steps.program(), [[float(n) for n in row] for row in seconds]


def by_hand(program, seconds):
    """When each device asked for and had each step, one after the other."""
    devices, asked, had = range(len(seconds[0])), [], []
    for number, step in enumerate(program.steps):
        before = [i for i in range(number) if program.steps[i].lane == step.lane][-1:]
        asked.append([max((had[i][d] for i in (*before, *step.after)), default=0.0) for d in devices])
        start = [max(asked[-1])] * len(devices) if step.meets else asked[-1]
        had.append([start[d] + seconds[number][d] for d in devices])
    return asked, had


@settings(max_examples=200)
@given(programs())
def test_every_step_of_any_program_is_asked_for_and_had_as_by_hand(drawn):
    steps, seconds = drawn
    block = simulate(steps, lambda timed, _: seconds[int(timed)])
    asked, had = by_hand(steps, seconds)
    assert block.asked[:, 0].tolist() == asked
    assert block.had[:, 0].tolist() == had
    events = des.run(steps, np.array(seconds)[:, None])
    assert events[0][:, 0].tolist() == asked
    assert events[1][:, 0].tolist() == had
    spent, devices = usage(block), len(seconds[0])
    assert spent.makespan[0] == max(map(max, had))
    assert spent.compute[0] == sum(sum(seconds[i]) for i, s in enumerate(steps.steps) if s.kind == "compute")
    whole = spent.makespan[0] * devices
    assert spent.idle() == pytest.approx(1 - spent.compute[0] / whole if whole else 0.0)
    assert min(float(getattr(spent, part)[0]) for part in PARTS) >= 0


@pytest.mark.parametrize("sync", SYNCS)
def test_a_sync_of_the_table_is_such_a_program(sync):
    asked = {"gpu": "a100", "devices": 4, "minibatch": 3, "minibatches": 2, "max_tokens": 4096}
    setting = ask("uniform:min=20,max=2000,samples=64", "tiny", **asked)
    cost = setting.cost.by(sync=sync)
    for schedule in plan(setting, "lb-micro").schedules:
        load = Load.of(cost.model, [schedule])
        made = cost.program(len(load.tokens))
        rows = dict(zip(made.durations, cost.durations(made, load), strict=True))
        found = usage(simulate(made, lambda timed, m, rows=rows: rows[timed, m]))
        assert asdict(found) == {name: pytest.approx(of) for name, of in asdict(of_schedules([schedule], cost)).items()}
        anew = Builder()
        for step in made.steps:
            timed, m = made.durations[step.duration]
            assert m in (step.microbatch, -1)
            how = {name: getattr(step, name) for name in ("microbatch", "unit", "after", "meets")}
            anew.add(step.kind, step.lane, timed, **how)
        same = anew.program(sync, made.layers, made.microbatches, prefetch=made.prefetch)
        assert replace(same, sharding=made.sharding, exchange=made.exchange) == made


def test_the_pages_pipeline_is_its_recurrence(capsys):
    """Of one forward and one backward in turn: stage 0 two microbatches ahead, and each handover a meeting of both."""
    space: dict = {}
    exec(program("howto/core.md", "two_stages.py"), space)
    work, send, sent, back, free = space["work"], space["SEND"], {}, {}, [0.0, 0.0]
    order = ["F0", "F1", *(part for m in range(len(work)) for part in (f"B{m}", f"F{m + 2}"))]
    for part in (part for part in order if int(part[1:]) < len(work)):
        m = int(part[1:])
        if part[0] == "F":
            free[0] += work[m] / 6
            sent[m] = max(free[0], sent.get(m - 1, 0.0)) + send
            free[1] = max(free[1], sent[m]) + work[m] / 6 + work[m] / 3
            back[m] = max(free[1], back.get(m - 1, 0.0)) + send
        else:
            free[0] = max(free[0], back[m]) + work[m] / 3
    assert capsys.readouterr().out.startswith(f"{max(*free, *back.values()):.3f} s ")


def test_many_minibatches_are_as_each_alone():
    steps = Builder()
    first = steps.add("compute", "compute", "work", microbatch=0)
    steps.add("push", "push", "send", after=[first], meets=True)
    work = np.random.default_rng(0).random((5, 3))
    both = steps.program()
    whole = usage(simulate(both, lambda timed, _: work if timed == "work" else 0.5))
    for number, row in enumerate(work):
        alone = usage(simulate(both, lambda timed, _, row=row: row if timed == "work" else 0.5))
        assert alone.makespan[0] == whole.makespan[number] == row.max() + 0.5


@pytest.mark.parametrize(("wrong", "words"), [
    (lambda b: b.add("wait", "compute", "x"), "kind 'wait'"),
    (lambda b: b.add("compute", "compute", "x", after=[3]), "step 0 comes after step 3"),
    (lambda b: b.add("compute", "compute", "x", after=[-2]), "step 0 comes after step -2"),
    (lambda b: b.add("compute", "compute", "x", microbatch=-2), "microbatch -2"),
    (lambda b: b.program(), "without steps"),
    (lambda b: b.add("compute", "compute", "x", meets=True), "compute that meets"),
])  # fmt: skip
def test_what_is_no_program_is_refused(wrong, words):
    with pytest.raises(InputError, match=words):
        wrong(Builder())
    assert set(KINDS) >= {"compute", "gather", "push", "meeting"}


@pytest.mark.parametrize(("seconds", "words"), [
    (lambda *_: [1.0, -1.0], "'a' of microbatch 0"),
    (lambda *_: float("nan"), "not all finite"),
    (lambda timed, _: [1.0, 2.0] if timed == "a" else [1.0, 2.0, 3.0], "shapes"),
    (lambda *_: np.ones((1, 1, 2)), "axes"),
    (lambda *_: np.ones(0), "of no device"),
    (lambda *_: "fast", "no numbers"),
])  # fmt: skip
def test_seconds_that_are_none_are_refused(seconds, words):
    steps = Builder()
    steps.add("compute", "compute", "a", microbatch=0)
    steps.add("compute", "compute", "b", microbatch=0)
    with pytest.raises(InputError, match=words):
        simulate(steps.program(), seconds)

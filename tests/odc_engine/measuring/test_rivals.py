"""Runs of rivals: the same samples for each, in turns that favour nobody, and none of them twice."""

from dataclasses import replace
from itertools import groupby, pairwise

import numpy as np
import pytest

from odc_engine.backends import threads
from odc_engine.backends.backend import Use
from odc_engine.doctor.probes.base import Absent, Hearing
from odc_engine.job import Job
from odc_engine.measuring import rivals
from odc_engine.measuring.probes import COLLECTIVE, CONTEST, ON_DEMAND, SORTED, contestants, pushes
from odc_engine.measuring.rivals import REPEATS, Runs, cost_of, one_sided, planned, turns
from odcsim import timeline
from odcsim.executors.simulation import Simulation, simulate
from odcsim.profile import TRANSFERS, Polynomial, Profile, Timing
from odcsim.recipe import Recipe

KNOWN = Profile(
    CONTEST.model,
    "",
    "calibrated",
    "",
    forward=Polynomial(0.0, 1e-7, 1e-12),
    backward=Polynomial(0.0, 3e-7, 3e-12),
    head=Polynomial(0.0, 1e-7),
    timings=tuple(Timing(kind, 4, 1e-4) for kind in TRANSFERS),
)
EVERY = contestants("longalign", "cuda")
OURS = one_sided(EVERY)


def files():
    return planned(CONTEST, cost_of(CONTEST, KNOWN), "longalign", EVERY)


def job(rival):
    return Job(
        schedules=(),
        cost=cost_of(CONTEST, KNOWN).by(**rival.choices),
        backend=threads.CPU,
        emulate=False,
        timeout=60.0,
        seed=rivals.SEED,
    )


@pytest.fixture
def ran(monkeypatch):
    """What would be run, in turn; its timelines are simulated."""
    asked = []

    def run(file, job, output, *, quiet):
        asked.append((job.recipe.sync, file.header.balancer))
        assert quiet
        assert job.schedules == file.schedules
        timeline.write(simulate(file, Simulation(job.cost)), output)
        return 0

    monkeypatch.setattr("odc_engine.runs.run.run", run)
    return asked


def perform(folder):
    heard = []
    runs = Runs(folder, "longalign", files())
    runs.run({rival: job(rival) for rival in EVERY}, lambda *of: heard.append(of))
    return runs, heard


def test_everybody_has_the_same_samples_and_they_fit():
    every = list(files().values())
    assert all([s.lengths for s in file.schedules] == [s.lengths for s in every[0].schedules] for file in every)
    assert len(every[0].schedules) == CONTEST.minibatches
    assert max(max(s.lengths) for s in every[0].schedules) <= CONTEST.longest
    assert {file.header.balancer for file in every} == {rival.balancer for rival in EVERY}


def test_even_samples_are_all_alike():
    assert {length for of in rivals.drawn(CONTEST, "even") for length in of} == {CONTEST.longest // 4}


def test_the_first_run_of_each_counts_for_nothing_and_nobody_is_always_first():
    every = list(turns(EVERY))
    rounds = {number: [rival for rival, _ in of] for number, of in groupby(every, key=lambda turn: turn[1])}
    assert list(rounds) == [-1, *range(REPEATS)]
    assert all(set(of) == set(EVERY) for of in rounds.values())
    firsts = [of[0] for of in rounds.values()]
    assert all(one != other for one, other in pairwise(firsts))
    assert REPEATS >= 3


def test_each_counts_as_often_and_the_warm_up_leaves_nothing(ran, tmp_path):
    runs, heard = perform(tmp_path)
    assert [number for *_, number, _ in heard] == sorted(number for *_, number, _ in heard)
    assert ran == [(rival.sync, rival.balancer) for rival, _, _ in heard]
    assert len(ran) == len(EVERY) * (1 + REPEATS)
    assert {len(lines) for lines in runs.kept().values()} == {REPEATS}
    assert len(list(tmp_path.glob("*.npz"))) == len(EVERY) * REPEATS


def test_memory_is_given_back_before_every_run(ran, tmp_path, monkeypatch):
    forgot = []
    monkeypatch.setattr(rivals, "forget", lambda: forgot.append(len(ran)))
    perform(tmp_path)
    assert forgot == list(range(len(ran)))


def test_runs_that_are_there_are_not_done_again_but_warmed_up_for(ran, tmp_path):
    runs, _ = perform(tmp_path)
    ran.clear()
    perform(tmp_path)
    assert ran == []
    runs.path(EVERY[0], 1).unlink()
    perform(tmp_path)
    assert sorted(ran) == sorted([*(of for of in (COLLECTIVE, SORTED, COLLECTIVE, ON_DEMAND)), COLLECTIVE])


def test_runs_of_other_schedules_do_not_count(ran, tmp_path):
    runs, _ = perform(tmp_path)
    line = timeline.read(runs.path(OURS, 0))
    timeline.write(replace(line, about=replace(line.about, digest="another")), runs.path(OURS, 0))
    assert len(runs.kept()[OURS]) == REPEATS - 1
    ran.clear()
    perform(tmp_path)
    assert ran.count(ON_DEMAND) == 2


def simulated():
    every = files()
    return {rival: simulate(file, Simulation(cost_of(CONTEST, KNOWN), rival.sync)) for rival, file in every.items()}


def test_seconds_are_those_of_all_minibatches():
    from odcsim.results.metrics import usage

    line = simulated()[EVERY[0]]
    assert rivals.seconds([line, line]) == pytest.approx(np.full(2, usage(line).makespan.sum()))


def push(block):
    return np.array([float(step.kind == "push") for step in block.program.steps])[:, None, None]


def test_pushes_lie_beside_backward_but_for_the_last_of_a_microbatch():
    """In a simulation where a push takes less than a layer's backward, all but the first layer's are hidden whole."""
    line = simulated()[OURS]
    share, total = rivals.hidden([line])
    assert 0.95 < share <= 1
    assert total > 0
    late = tuple(replace(b, asked=b.asked + 1e6 * push(b), had=b.had + 1e6 * push(b)) for b in line.blocks)
    assert rivals.hidden([replace(line, blocks=late)])[0] < 0.1


@pytest.mark.usefixtures("ran")
def test_where_nothing_ran_nothing_can_be_said_of_pushes(tmp_path):
    """A probe that failed is told once."""
    hearing = Hearing(tmp_path, name="pushes")
    with pytest.raises(Absent, match="left no timelines"):
        pushes(hearing)
    perform(tmp_path)
    assert pushes(hearing).data["reached"]


def test_the_rival_at_its_best_keeps_layers_whole_and_over_nccl_has_its_buffers_registered():
    [best] = [rival for rival in EVERY if rival.best]
    assert (best.sync, best.choices) == ("collective", {"sync": "collective", "reshard": False})
    [library] = [rival for rival in contestants("against-nccl", "cuda") if rival.best]
    assert library.choices == {"sync": "collective", "reshard": False, "copies": "engines"}
    assert library.backend.env(Use(2, Recipe(**library.choices)))["NCCL_CTA_POLICY"] == "2"
    assert "NCCL_CTA_POLICY" not in library.backend.env(Use(2, Recipe(sync="collective")))
    assert len({rival.stem for rival in EVERY}) == len({rival.name for rival in EVERY}) == len(EVERY)

"""sorted-slice under syncs that meet in every microbatch: never behind lb-micro, whose samples and gradients it has."""

from dataclasses import replace
from itertools import product

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from odcsim.balance.lb_micro import lb_micro
from odcsim.balance.sorted_slice import lockstep, sorted_slice
from odcsim.decide.asking import ask
from odcsim.decide.evaluate import measure
from odcsim.decide.setting import Setting, assign, cost_of, drawn, plan
from odcsim.executors.simulation import Simulation
from odcsim.heuristics.balancer import Work
from odcsim.recipe import recipe_of
from odcsim.trace import Trace

LONGEST = 4096


@given(
    st.lists(st.integers(1, LONGEST), min_size=4, max_size=60),
    st.integers(1, 8),
    st.integers(1, 8),
    st.sampled_from([0.0, 50.0, 2000.0]),
)
def test_it_never_waits_longer_than_lb_micro(lengths, devices, room, least):
    tokens = np.sort(np.array(lengths))[::-1]
    seconds = lambda weight: 10 + max(least, weight)  # noqa: E731 - transfers hide behind compute, or it behind them
    work = Work(tokens, tokens + tokens**2 / 2000, devices, room * LONGEST, constant=10, seconds=seconds)
    assert lockstep(sorted_slice(work).slots, work) <= lockstep(lb_micro(work).slots, work)


@settings(max_examples=30)
@given(
    lengths=st.lists(st.integers(1, LONGEST), min_size=4, max_size=60),
    nodes=st.sampled_from([(2, 2), (5, 5), (8, 8), (8, 2), (12, 4)]),
    minibatch=st.integers(1, 6),
    room=st.sampled_from([1, 2, 8, 64]),
    model=st.sampled_from(["qwen3-0.6b", "r1-distill-qwen-1.5b", "qwen3-8b"]),
    gpu=st.sampled_from(["a100", "h100", "l40s"]),
    choices=st.fixed_dictionaries(
        {
            "reshard": st.booleans(),
            "streams": st.sampled_from(["one", "two"]),
            "sharding": st.sampled_from(["full", "hybrid"]),
            "recompute": st.sampled_from(["full", "none"]),
        }
    ),
    slow=st.sampled_from([(), ((0, 1.3),)]),
)
def test_by_the_seconds_that_are_simulated_it_is_never_behind(
    lengths, nodes, minibatch, room, model, gpu, choices, slow
):
    """In no minibatch, under both syncs that meet, however nodes exchange: not by its own estimate alone."""
    (devices, inside), trace = nodes, Trace("t", np.resize(lengths, 72))
    cost = cost_of(model, gpu, None, devices, inside, recipe=recipe_of(choices))
    cost = replace(cost, cluster=replace(cost.cluster, slow=slow))
    setting = Setting(trace, cost, minibatch, max_tokens=room * trace.longest, minibatches=4)
    files = [plan(setting, balancer) for balancer in ("sorted-slice", "lb-micro")]
    for sync, exchange in product(("collective", "deferred"), ("end", "layers")):
        how = Simulation(cost, sync, "analytic", exchange=exchange)
        ours, theirs = (measure(file, how).usage.makespan for file in files)
        assert (ours <= theirs).all()


def test_an_estimate_that_is_wrong_is_not_believed():
    """Two devices with short samples: by it sorting is ahead in minibatches in which it is not."""
    setting = ask("lognormal:median=200,sigma=0.8,max=2000", "r1-distill-qwen-1.5b", gpu="l40s", devices=2, minibatch=7)
    roughly, exactly = (assign(setting, "sorted-slice", drawn(setting), exactly=it) for it in (False, True))
    changed = [a != b for a, b in zip(roughly.schedules, exactly.schedules, strict=True)]
    assert 0 < sum(changed) < len(changed) / 2
    how = Simulation(setting.cost, "deferred", "analytic")
    assert measure(exactly, how).usage.makespan.sum() < measure(roughly, how).usage.makespan.sum()


def test_links_that_are_shared_and_speeds_that_swing_stop_nobody():
    cost = cost_of("qwen3-0.6b", "a100", None, 8, 4)
    cluster = replace(cost.cluster, nics_per_node=1, jitter=0.1, swing=0.1, sample_noise=0.1)
    setting = Setting(Trace("t", np.arange(1, 40)), replace(cost, cluster=cluster), 2, minibatches=2)
    assert plan(setting, "sorted-slice") == plan(replace(setting, cost=cost), "sorted-slice")

"""Laws of programs: what each sync issues, in which order, and who waits for whom."""

from collections import Counter
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import COMPUTES, PREFETCHES

from odcsim.errors import InputError
from odcsim.program import (
    COMM,
    COMPUTE,
    EVERY,
    GATHER,
    PUSH,
    ROOT,
    SHARDED,
    SHARDINGS,
    SYNCS,
    WHOLE,
    Program,
    check_counts,
    program,
)

GOLDEN = Path(__file__).parent / "golden"
sizes = st.integers(1, 6), st.integers(0, 3)
programs, sharding = (
    st.builds(program, *sizes, *map(st.sampled_from, (SYNCS, PREFETCHES, some))) for some in (SHARDINGS, SHARDED)
)


def of(p: Program, **wanted: object) -> list[int]:
    """The steps whose fields are these."""
    return [i for i, s in enumerate(p.steps) if all(getattr(s, name) == value for name, value in wanted.items())]


def timed(p: Program, what: str, microbatch: int = 0) -> list[int]:
    return [i for i, s in enumerate(p.steps) if p.durations[s.duration] == (what, microbatch)]


SMALL = {sync: program(2, 2, sync) for sync in SYNCS}
SMALL |= {f"{sync}-hybrid": program(1, 1, sync, sharding="hybrid") for sync in ("collective", "on-demand")}


@pytest.mark.parametrize("name", SMALL)
def test_the_text_of_a_small_program(name):
    """To be read: number, lane, what, and what it comes after."""
    assert f"{SMALL[name]}\n" == (GOLDEN / f"{name}.txt").read_text()


@given(programs)
def test_lanes_partition_the_steps(p):
    """Steps come after earlier ones of other lanes, so nobody waits in a circle; each names a row that stands for it.
    And the same shape is the same program and text."""
    one_sided = p.sync == "on-demand"
    lanes = {"gather": GATHER, "push": PUSH} if one_sided else {"gather": COMM, "push": COMM}
    for i, (step, before) in enumerate(zip(p.steps, p.previous_in_lane(), strict=True)):
        assert step.lane == lanes.get(step.kind, COMPUTE)
        assert before == max([j for j in of(p, lane=step.lane) if j < i], default=-1)
        assert list(step.after) == sorted(set(step.after))
        assert all(0 <= need < i and p.steps[need].lane != step.lane for need in step.after)
        what, microbatch = p.durations[step.duration]
        assert microbatch == step.microbatch
        assert (what in COMPUTES) == (step.kind == "compute")
        assert step.kind == "compute" or what.startswith(step.kind)
    assert {s.duration for s in p.steps} == set(range(len(p.durations)))
    assert program(p.layers, p.microbatches, p.sync, p.prefetch, p.sharding) == p
    assert hash(p) == hash(Program(p.sync, p.layers, p.microbatches, p.prefetch, p.steps, p.durations, p.sharding))
    lines = str(p).splitlines()
    assert len(lines) == len(set(lines)) == len(p.steps)


@given(st.integers(1, 6), st.integers(0, 3), st.sampled_from(["collective", "deferred"]), st.sampled_from(PREFETCHES))
def test_without_sharding_nothing_is_gathered_and_devices_meet_where_gradients_leave(layers, microbatches, sync, ahead):
    whole, sharded = (program(layers, microbatches, sync, ahead, how) for how in (WHOLE, "full"))
    assert not of(whole, kind="gather")
    assert [s.unit for s in whole.steps if s.kind == "push"] == [s.unit for s in sharded.steps if s.kind == "push"]
    computes = [[s.unit for s in p.steps if s.kind == "compute"] for p in (whole, sharded)]
    assert computes[0] == computes[1]
    assert {s.kind for s in whole.steps if s.meets} <= {"push", "meeting"}
    for m in range(microbatches):  # a push sums what a backward has made
        for unit in range(layers + 1):
            [push] = of(whole, kind="push", microbatch=m, unit=unit) or [None]
            what = "embed backward" if unit == ROOT else "backward"
            [made] = [i for i in timed(whole, what, m) if whole.steps[i].unit == unit]
            assert push is None or made in whole.steps[push].after
    assert program(layers, microbatches, "on-demand", ahead, WHOLE) == program(layers, microbatches, "on-demand", ahead)


@given(sharding)
def test_each_sync_moves_what_it_must(p):
    """Every layer is gathered twice (it is resharded after its forward), the root once (it is not). And each microbatch
    computes every unit forward and backward in order."""
    layers, microbatches = p.layers, p.microbatches
    gathers, pushes = ([i for i in of(p, kind=kind) if p.steps[i].unit >= 0] for kind in ("gather", "push"))
    pushing = [microbatches - 1] * (microbatches > 0) if p.sync == "deferred" else list(range(microbatches))
    gathered, pushed = (Counter((p.steps[i].microbatch, p.steps[i].unit) for i in some) for some in (gathers, pushes))
    assert gathered == {(m, u): 1 if u == ROOT else 2 for m in range(microbatches) for u in range(layers + 1)}
    assert pushed == {(m, u): 1 for m in pushing for u in range(layers + 1)}
    forward, backward = ([(what, unit + 1) for unit in range(layers)] for what in ("forward", "backward"))
    for m in range(microbatches):
        done = [(p.durations[p.steps[i].duration][0], p.steps[i].unit) for i in of(p, kind="compute", microbatch=m)]
        assert done == [("embed", ROOT), *forward, ("head", ROOT), *backward[::-1], ("embed backward", ROOT)]


@given(programs)
def test_where_devices_meet(p):
    """Collectives: in every transfer and at the end. On-demand: twice per minibatch, and nowhere inside.

    Hybrid sharding: once more, when a node has all parameters.
    """
    meetings = [s for s in p.steps if s.meets]
    ends = [s for s in meetings if s.lane == COMPUTE]
    assert {s.microbatch for s in ends} == {EVERY}
    hybrid = p.sharding == "hybrid"
    last = ["meeting", *["push"] * hybrid, "optimizer"]
    if p.sync == "on-demand":
        assert [s.kind for s in meetings] == ["meeting"] * (2 + hybrid)
        last += ["publish", "meeting"]
    else:
        assert len(meetings) == 1 + hybrid + sum(s.lane == COMM for s in p.steps)
        assert not of(p, kind="publish")
    assert [s.kind for s in p.steps[p.end :]] == [*last, *["gather", "meeting"] * hybrid]


@given(sharding)
def test_hybrid_sharding_leaves_a_node_twice_a_minibatch_and_full_with_every_transfer(p):
    """Once before the optimizer, with gradients, once after it, with parameters; and both are waited for."""
    away = [i for i, s in enumerate(p.steps) if p.leaves_node(s)]
    full = program(p.layers, p.microbatches, p.sync, p.prefetch)
    assert p.steps[: p.end] == full.steps[: full.end]
    if p.sharding == "full":
        assert away == [i for i, s in enumerate(p.steps) if s.kind in ("gather", "push")]
        return
    [optimizer] = of(p, kind="optimizer")
    summed, fetched = away
    assert summed < optimizer < fetched
    assert (p.steps[summed].kind, p.steps[fetched].kind) == ("push", "gather")
    assert summed in p.steps[optimizer].after
    assert fetched in p.steps[-1].after
    assert p.steps[fetched].after == (fetched - 1,)  # the word that peers' shards are new, or the optimizer


@given(sharding)
def test_the_root_gather_is_exposed_and_waits_for_the_last_push(p):
    """FSDP2's root gather waits for the compute stream, which the root push of the microbatch before it holds up. What
    else computes waits for its own gather, a push for the backward that made its gradient, the optimizer for all."""
    for step in p.steps:
        before = [(n, p.steps[n]) for n in step.after]
        if step.kind == "compute" and step.unit != ROOT:
            assert [(s.unit, s.microbatch) for _, s in before if s.kind == "gather"] == [(step.unit, step.microbatch)]
        if step.kind == "push" and step.unit >= 0:
            made = timed(p, "embed backward" if step.unit == ROOT else "backward", step.microbatch)
            assert step.after == tuple(n for n in made if p.steps[n].unit == step.unit)
            assert len(step.after) == 1
    meeting = of(p, kind="meeting")[0]
    assert p.steps[meeting].after == tuple([i for i in of(p, kind="push") if p.steps[i].unit >= 0][-1:])
    assert all(s.lane == COMPUTE or s.unit < 0 for s in p.steps[meeting:])
    assert not [s for s in p.steps[meeting:] if s.kind == "compute"]
    for m in range(p.microbatches):
        [root], [overhead], [embed] = (timed(p, what, m) for what in ("gather root", "overhead", "embed"))
        assert (p.steps[root].after, p.steps[embed].after) == ((overhead,), (root,))
        before = [i for i in of(p, kind="push", unit=ROOT) if i < overhead]
        assert p.steps[overhead].after == tuple(before[-1:])


@given(sharding)
def test_how_far_a_gather_runs_ahead(p):
    """In compute steps between the one that a gather waits for and the one that it is for.

    fsdp2: forward gather i + 1 may start when compute i - 1 does, that is after compute i - 2 (two ahead); backward
    gather i - 1 when backward i does, after backward i + 1 (one ahead).
    """
    forward, backward = {"none": (0, 0), "fsdp2": (2, 1)}.get(p.prefetch, (0, 0))
    if p.prefetch.isdigit():
        forward = backward = int(p.prefetch)
    for m in range(p.microbatches):
        computes = of(p, kind="compute", microbatch=m)
        head = p.layers + 1
        for place in (*range(1, head), *range(head + 1, len(computes) - 1)):
            [gather] = [n for n in p.steps[computes[place]].after if p.steps[n].kind == "gather"]
            first = 0 if place < head else head  # of this pass; its gathers can run ahead no further than that
            behind = max(first - 1, place - 1 - (forward if place < head else backward))
            assert p.steps[gather].after == tuple(computes[max(behind, 0) : behind + 1])


@given(programs)
def test_a_backward_waits_for_the_push_that_holds_its_buffer(p):
    """The push two layers back (with prefetch; the one before without): backward i - 2 waits for push i."""
    trail = 1 if p.prefetch == "none" else 2
    for m in range(p.microbatches):
        computes = of(p, kind="compute", microbatch=m)
        pushes = of(p, kind="push", microbatch=m)
        for place, i in enumerate(computes[p.layers + 2 :]):  # the backward of layer L - place, then the embedding's
            waits = [n for n in p.steps[i].after if p.steps[n].kind == "push"]
            assert waits == (pushes[place - trail : place - trail + 1] if pushes and place >= trail else [])


WRONG = [
    (0, 1, "collective"), (1, -1, "collective"), (1, 1, "colective"),
    *((1, 1, "collective", prefetch) for prefetch in ("0", "-1", "²", "9" * 5000, "fsdp")),
    (1, 1, "collective", "fsdp2", "hybird"), (1, 1, "collective", "fsdp2", "hybrid", "layer"),
]  # fmt: skip


def test_counts_may_differ_only_without_meetings_inside_and_what_is_no_program_is_refused():
    check_counts("on-demand", (4, 1, 0))
    check_counts("collective", (2, 2))
    calls = [partial(check_counts, sync, (4, 1, 2), where="minibatch 3") for sync in ("collective", "deferred")]
    for call in (*calls, *(partial(program, *arguments) for arguments in WRONG)):
        with pytest.raises(InputError):
            call()

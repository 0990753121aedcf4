"""Laws of programs: what each sync issues, in which order, and who waits for whom."""

from collections import Counter
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import COMPUTES, PREFETCHES

from odcsim.errors import InputError
from odcsim.program import COMM, COMPUTE, EVERY, GATHER, PUSH, ROOT, SHARDINGS, SYNCS, Program, check_counts, program

GOLDEN = Path(__file__).parent / "golden"
sizes = st.integers(1, 6), st.integers(0, 3)
programs = st.builds(program, *sizes, *map(st.sampled_from, (SYNCS, PREFETCHES, SHARDINGS)))


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
def test_steps_come_after_earlier_steps_of_other_lanes(p):
    """So the order of the list is one in which everything can be issued, and nobody waits in a circle."""
    for i, step in enumerate(p.steps):
        assert list(step.after) == sorted(set(step.after))
        assert all(0 <= need < i and p.steps[need].lane != step.lane for need in step.after)


@given(programs)
def test_lanes_partition_the_steps(p):
    """And each step names a row that stands for it."""
    one_sided = p.sync == "on-demand"
    for step in p.steps:
        expected = {"gather": GATHER, "push": PUSH} if one_sided else {"gather": COMM, "push": COMM}
        assert step.lane == expected.get(step.kind, COMPUTE)
    for i, before in enumerate(p.previous_in_lane()):
        assert before == max([j for j in of(p, lane=p.steps[i].lane) if j < i], default=-1)
    assert {s.duration for s in p.steps} == set(range(len(p.durations)))
    for step in p.steps:
        what, microbatch = p.durations[step.duration]
        assert microbatch == step.microbatch
        assert (what in COMPUTES) == (step.kind == "compute")
        assert step.kind == "compute" or what.startswith(step.kind)


@given(programs)
def test_each_sync_moves_what_it_must(p):
    layers, microbatches = p.layers, p.microbatches
    gathers, pushes = ([i for i in of(p, kind=kind) if p.steps[i].unit >= 0] for kind in ("gather", "push"))
    # Every layer is gathered twice (it is resharded after its forward), the root once (it is not).
    pushing = [microbatches - 1] * (microbatches > 0) if p.sync == "deferred" else list(range(microbatches))
    gathered, pushed = (Counter((p.steps[i].microbatch, p.steps[i].unit) for i in some) for some in (gathers, pushes))
    assert gathered == {(m, u): 1 if u == ROOT else 2 for m in range(microbatches) for u in range(layers + 1)}
    assert pushed == {(m, u): 1 for m in pushing for u in range(layers + 1)}


@given(programs)
def test_each_microbatch_computes_every_unit_forward_and_backward_in_order(p):
    for m in range(p.microbatches):
        done = [(p.durations[p.steps[i].duration][0], p.steps[i].unit) for i in of(p, kind="compute", microbatch=m)]
        forward = [("forward", layer) for layer in range(1, p.layers + 1)]
        backward = [("backward", layer) for layer in range(p.layers, 0, -1)]
        assert done == [("embed", ROOT), *forward, ("head", ROOT), *backward, ("embed backward", ROOT)]


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


@given(programs)
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


@given(programs)
def test_what_computes_pushes_and_the_optimizer_wait_for(p):
    """Their own gathers, the backward that made a gradient, and every push."""
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


@given(programs)
def test_the_root_gather_is_exposed_and_waits_for_the_last_push(p):
    """FSDP2's root gather waits for the compute stream, which the root push of the microbatch before it holds up."""
    for m in range(p.microbatches):
        (root,) = timed(p, "gather root", m)
        (overhead,) = timed(p, "overhead", m)
        (embed,) = timed(p, "embed", m)
        assert p.steps[root].after == (overhead,)
        assert p.steps[embed].after == (root,)
        before = [i for i in of(p, kind="push", unit=ROOT) if i < overhead]
        assert p.steps[overhead].after == tuple(before[-1:])


@given(programs)
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
        for place, i in enumerate(computes):
            gathers = [n for n in p.steps[i].after if p.steps[n].kind == "gather"]
            if place == 0 or place == head or place == len(computes) - 1:
                continue
            (gather,) = gathers
            first = 0 if place < head else head  # of this pass; its gathers can run ahead no further than that
            behind = place - 1 - (forward if place < head else backward)
            wanted = computes[max(behind, first - 1)] if max(behind, first - 1) >= 0 else None
            assert p.steps[gather].after == (() if wanted is None else (wanted,))


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


@given(programs)
def test_the_same_shape_is_the_same_program_and_text(p):
    assert program(p.layers, p.microbatches, p.sync, p.prefetch, p.sharding) == p
    assert hash(p) == hash(Program(p.sync, p.layers, p.microbatches, p.prefetch, p.steps, p.durations, p.sharding))
    lines = str(p).splitlines()
    assert len(lines) == len(set(lines)) == len(p.steps)


WRONG = [
    (0, 1, "collective"), (1, -1, "collective"), (1, 1, "colective"),
    *((1, 1, "collective", prefetch) for prefetch in ("0", "-1", "²", "9" * 5000, "fsdp")),
    (1, 1, "collective", "fsdp2", "hybird"), (1, 1, "collective", "fsdp2", "hybrid", "ahead"),
]  # fmt: skip


def test_counts_may_differ_only_without_meetings_inside_and_what_is_no_program_is_refused():
    check_counts("on-demand", (4, 1, 0))
    check_counts("collective", (2, 2))
    calls = [partial(check_counts, sync, (4, 1, 2), where="minibatch 3") for sync in ("collective", "deferred")]
    for call in (*calls, *(partial(program, *arguments) for arguments in WRONG)):
        with pytest.raises(InputError):
            call()

"""Lengths from a file beside a run's go to its microbatches by rank, step and number, or are refused."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from watches import ran, step, wrote

from odcsim.errors import InputError
from odcsim.observed.held import LACKED, UNSURE, joined, of_table, of_watched
from odcsim.observed.run import RanMicrobatch, RanStep, SeenRun
from odcsim.observed.watched import read_ranks


def run(ranks=(0, 1), microbatches=2):
    ran = tuple(RanMicrobatch(rank, i, 1.0) for rank in ranks for i in reversed(range(microbatches)))
    return SeenRun("made", max(ranks) + 1, tuple(ranks), (RanStep(3, 2.0, ran),), rests="seconds", lacks=(*LACKED, "x"))


def table(folder, rows, names="device,step,lengths"):
    path = folder / "lengths.csv"
    path.write_text("\n".join([names, *rows]) + "\n")
    return path


def found(run):
    return {(m.rank, m.number): m.lengths for step in run.steps for m in step.microbatches}


def test_rows_go_to_microbatches_in_their_order(tmp_path):
    path = table(tmp_path, ["1,3,7", "0,3,5;6", "0,3,9", "1,3,8", "0,4,1"])
    known = joined(run(), of_table(path, False), str(path))
    assert found(known) == {(0, 0): (5, 6), (0, 1): (9,), (1, 0): (7,), (1, 1): (8,)}
    assert (known.rests, known.lacks) == ("lengths", ("x", UNSURE))
    assert [m.seconds for m in known.steps[0].microbatches] == [1.0] * 4
    path = table(tmp_path, ["3,5", "3,6"], "step,lengths")  # a lone rank needs no device
    assert found(joined(run((5,)), of_table(path, True), str(path))) == {(5, 0): (5,), (5, 1): (6,)}


def test_microbatches_that_no_trace_told_apart_come_from_the_lengths_and_counts_must_agree(tmp_path):
    path = table(tmp_path, ["0,3,5", "0,3,6"])
    bare = run((0,))
    bare = replace(bare, steps=(replace(bare.steps[0], microbatches=()),))
    assert found(joined(bare, of_table(path, True), str(path))) == {(0, 0): (5,), (0, 1): (6,)}
    two = ["0,3,5", "0,3,6"]
    for rows in ([*two, "1,3,7"], two, ["0,2,5", "0,2,6", "1,2,7", "1,2,8"]):
        path = table(tmp_path, rows)
        with pytest.raises(InputError):
            joined(run(), of_table(path, False), str(path))


def test_what_the_watcher_saw_has_padding_too(tmp_path):
    rows = [step(3, [ran(0, 1, [5], computed=8), ran(1, 1, [6, 2], computed=16)])]
    known = joined(run(), of_watched(read_ranks(wrote(tmp_path, [rows, rows]))), "here")
    assert found(known)[1, 1] == (6, 2)
    assert [m.computed for m in known.steps[0].microbatches] == [8, 16, 8, 16]


# The samples of each of a rank's two microbatches, in each step.
STEPS = st.lists(st.lists(st.lists(st.integers(2, 500), min_size=1, max_size=3), min_size=2, max_size=2), min_size=2)


def that_ran(steps, padding=0, shifted=False):
    """A run whose tokens are known; `shifted`: a sample's last token is a label alone."""
    ran = []
    for number, microbatches in enumerate(steps):
        tokens = [sum(held) + padding - shifted * len(held) for held in microbatches]
        ran.append(RanStep(number, 1.0, tuple(RanMicrobatch(0, i, 1.0, tokens=each) for i, each in enumerate(tokens))))
    return SeenRun("made", 1, (0,), tuple(ran), rests="tokens")


def held_in(steps):
    return {(0, n): [(tuple(held), sum(held)) for held in microbatches] for n, microbatches in enumerate(steps)}


@given(STEPS, st.integers(0, 64), st.booleans())
def test_lengths_of_the_same_steps_are_taken_whatever_the_padding(steps, padding, shifted):
    known = joined(that_ran(steps, padding, shifted), held_in(steps), "here")
    assert [[list(m.lengths) for m in step.microbatches] for step in known.steps] == steps
    assert UNSURE not in known.lacks


@given(STEPS, st.sampled_from([1, -1]))
def test_those_of_the_step_before_or_after_are_refused_where_tokens_tell(steps, off):
    """A watcher counts from 1 and a profiler from 0. Where the lengths hold no more than ran, it may be padding."""
    other = steps[off:] + steps[:off]
    pairs = [pair for two in zip(other, steps, strict=True) for pair in zip(*two, strict=True)]
    if all(sum(given) - len(given) <= sum(ran) for given, ran in pairs):
        joined(that_ran(steps), held_in(other), "here")
        return
    with pytest.raises(InputError):
        joined(that_ran(steps), held_in(other), "here")

"""Plans in arrays are those in tuples, whoever asks for which."""

import copy
import pickle
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from odcsim.flat import NOTHING, flattened, taken
from odcsim.schedule import Schedule

PLANS = st.lists(st.lists(st.lists(st.integers(0, 9), max_size=4).map(tuple), max_size=4).map(tuple), min_size=1).map(
    tuple
)
VALUES = np.array([0.1, 0.7, 1e9, 3.3, 1e-9, 2.0, 5.5, 0.3, 7.1, 1.9])


@given(PLANS, PLANS, st.permutations(range(10)))
def test_what_was_flattened_is_the_same_plan(plan, other, numbers):
    flat = flattened(plan)
    assert flat.nested() == plan
    assert flat != plan
    assert (flat == flattened(other)) == (plan == other)
    assert flat == flattened(plan)
    renamed = tuple(tuple(tuple(numbers[i] for i in part) for part in device) for device in plan)
    assert flat.numbered(np.array(numbers)).nested() == renamed
    assert flat.of_sums(VALUES).tolist() == [sum([VALUES[i] for i in part]) for device in plan for part in device]


@given(PLANS, st.lists(st.tuples(st.lists(st.integers(0, 9)).map(tuple), st.integers(0, 99))))
def test_who_takes_an_entry_runs_it_behind_its_own(plan, drawn):
    entries, takers = [entry for entry, _ in drawn], [taker % len(plan) for _, taker in drawn]
    found = taken(flattened(plan), flattened((entries,)), np.array(takers, dtype=np.int64))
    expected = [list(device) for device in plan]
    for entry, taker in zip(entries, takers, strict=True):
        expected[taker].append(entry)
    assert found.nested() == tuple(map(tuple, expected))


@pytest.mark.parametrize("queue", [(), ((3,), (2,))])
def test_a_schedule_by_arrays_is_the_one_by_tuples(queue):
    plain = Schedule((5, 6, 7, 8), (((0, 1),), ()), (7, 8, 9, 3), (1, 2, 3, 4), queue)
    unassigned = replace(plain, devices=(), queue=())

    def made():
        return unassigned.dealt(flattened(plain.devices), flattened((queue,)) if queue else NOTHING)

    assert made() == plain == copy.copy(made()) == pickle.loads(pickle.dumps(made())) == replace(made())
    assert repr(made()) == repr(plain)
    assert (made().queue, made().fullest) == (queue, 11)
    assert not hasattr(made(), "nobody")

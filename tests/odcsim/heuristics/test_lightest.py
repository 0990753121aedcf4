"""Blocks and heaps find the part that looking at all of them finds."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odcsim.heuristics import lightest
from odcsim.heuristics.lightest import lightest_with_room

LIMIT = 12


def looked_for(weights, tokens, limit, parts):
    loads, used, owner = [0.0] * parts, [0] * parts, []
    for weight, size in zip(weights, tokens, strict=True):
        room = [(loads[part], used[part], part) for part in range(parts) if used[part] + size <= limit]
        if not room:
            return None
        part = min(room)[2]
        owner.append(part)
        loads[part] += weight
        used[part] += size
    return owner, loads


SAMPLE = st.tuples(st.one_of(st.integers(0, 9).map(float), st.floats(0, 9)), st.integers(1, LIMIT))


@settings(max_examples=300, deadline=None)
@given(st.lists(SAMPLE, min_size=1, max_size=60), st.integers(1, 40), st.sampled_from([1, 64]))
def test_the_lightest_part_with_room_has_the_sample(samples, parts, arrays_from):
    samples.sort(reverse=True)
    weights, tokens = ([sample[k] for sample in samples] for k in (0, 1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lightest, "MANY", arrays_from)
        found = lightest_with_room(np.array(weights), np.array(tokens), LIMIT, parts)
    assert (found and (found[0].tolist(), found[1].tolist())) == looked_for(weights, tokens, LIMIT, parts)

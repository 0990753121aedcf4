"""All devices at once are packed as one after the other, to the last sample."""

import numpy as np
import pytest
from draws import cost, longalign
from hypothesis import given, settings
from hypothesis import strategies as st

from odcsim.heuristics import packed_rows
from odcsim.heuristics.in_rows import split_rows
from odcsim.heuristics.packed_rows import pack_alike, pack_each
from odcsim.heuristics.packing import pack
from odcsim.heuristics.trades import hold

many = settings(max_examples=200, deadline=None)
LIMIT = 1000


@st.composite
def held(draw):
    """What devices hold, with costs that follow lengths or not, and are equal or not."""
    lengths = np.array(draw(st.lists(st.integers(1, LIMIT), min_size=1, max_size=40)))
    few = st.lists(st.integers(0, 5).map(float), min_size=len(lengths), max_size=len(lengths)).map(np.array)
    any_weight = st.lists(st.floats(0.1, 9), min_size=len(lengths), max_size=len(lengths)).map(np.array)
    weights = draw(st.one_of(st.just(cost(32.0 * lengths)), few, any_weight))
    order = np.lexsort((-lengths, -weights))
    devices = draw(st.integers(1, 6))
    owner = draw(st.lists(st.integers(0, devices - 1), min_size=len(lengths), max_size=len(lengths)))
    return hold(np.array(owner), devices), weights[order], lengths[order], LIMIT


@given(held())
@many
def test_arrays_pack_as_lists_do(case):
    plain = [packing(*case) for packing in (pack_alike, pack_each)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packed_rows, "FEW", 1)
        assert [packing(*case) for packing in (pack_alike, pack_each)] == plain


@given(held(), st.integers(1, 5))
@many
def test_a_sure_row_is_the_plain_split(case, parts):
    rows, weights, _, _ = case
    if weights.min() == 0:
        return
    where, sure = split_rows(np.append(weights, 0.0)[rows], parts)
    for row, group, is_sure in zip(where, rows, sure, strict=True):
        samples = [i for i in group.tolist() if i < len(weights)]
        plain = pack(samples, weights.tolist(), [0] * len(weights), 1, parts)
        mine = [[i for i, part in zip(group.tolist(), row.tolist(), strict=True) if part == at] for at in range(parts)]
        assert not is_sure or [[i for i in part if i < len(weights)] for part in mine] == plain


@pytest.mark.parametrize("parts", [2, 3, 5])
def test_rows_of_real_lengths_are_sure(parts):
    weights = np.sort(cost(longalign(0, 64 * 8)) * (1 + 1e-9 * np.arange(64 * 8)))[::-1]
    assert split_rows(weights.reshape(8, 64).T, parts).sure.all()

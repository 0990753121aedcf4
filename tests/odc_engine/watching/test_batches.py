"""Lengths of samples as batches of trainers hold them."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from odc_engine.watching.batches import holding

LENGTHS = st.lists(st.integers(1, 9), min_size=1, max_size=5)
IGNORED = -100


def padded(lengths, *, left=False):
    width = max(lengths)
    mask = torch.tensor([[1] * n + [0] * (width - n) for n in lengths])
    return mask.flip(1) if left else mask


@given(LENGTHS, st.booleans())
def test_a_mask_tells_rows_and_padding(lengths, left):
    mask = padded(lengths, left=left)
    places = (mask.cumsum(1) - 1).clamp(min=0)
    for more in ({}, {"position_ids": places}, {"position_ids": places.masked_fill(mask == 0, 1)}):
        batch = {"input_ids": torch.zeros_like(mask), "attention_mask": mask, **more}
        assert holding(batch)() == (tuple(lengths), mask.numel())


@given(LENGTHS, st.integers(0, 3))
def test_positions_that_begin_anew_tell_packed_samples(lengths, pad):
    """Padding at a row's end counts on as positions do, or stands still; the mask knows it."""
    positions = torch.cat([torch.arange(n) for n in lengths] + [torch.zeros(pad, dtype=torch.int64)])[None]
    mask = torch.tensor([[1] * sum(lengths) + [0] * pad])
    ids = torch.zeros_like(positions)
    batch = {"input_ids": ids, "position_ids": positions, "attention_mask": mask}
    assert holding(batch)() == (tuple(lengths), sum(lengths) + pad)
    if not pad:
        assert holding({"input_ids": ids, "position_ids": positions})() == (tuple(lengths), sum(lengths))


@given(LENGTHS)
def test_borders_and_told_lengths_count_before_all_else(lengths):
    ids = torch.zeros(1, sum(lengths), dtype=torch.int64)
    borders = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
    assert holding({"input_ids": ids, "cu_seq_lens_q": borders})() == (tuple(lengths), sum(lengths))
    for told in (lengths, [lengths], torch.tensor(lengths)):
        assert holding({"input_ids": ids, "seq_lengths": told})() == (tuple(lengths), sum(lengths))


@given(st.lists(st.integers(2, 9), min_size=1, max_size=5))
def test_the_last_label_ends_a_row_where_nothing_else_tells(lengths):
    ids = torch.zeros(len(lengths), max(lengths), dtype=torch.int64)
    labels = ids.masked_fill(padded(lengths) == 0, IGNORED)
    labels[:, 0] = IGNORED  # a prompt
    assert holding({"input_ids": ids, "labels": labels})() == (tuple(lengths), ids.numel())


MASK, HERE = torch.tensor([[1, 1, 0, 1, 1, 0]]), {"input_ids": torch.zeros(2, 7, dtype=torch.int64)}
LABELS = torch.tensor([[1, 2, 3, IGNORED], [1, 2, IGNORED, IGNORED]])
BATCHES = {
    "nothing": ({}, ((), 0)),
    "an image": ({"pixel_values": torch.zeros(2, 3)}, ((), 0)),
    "ids alone": (HERE, ((7, 7), 14)),
    "embedded": ({"inputs_embeds": torch.zeros(2, 7, 4)}, ((7, 7), 14)),
    "positions in three dimensions": (HERE | {"position_ids": torch.zeros(3, 2, 7)}, ((7, 7), 14)),
    "a mask of pairs": (HERE | {"attention_mask": torch.zeros(2, 1, 7, 7)}, ((7, 7), 14)),
    "masked": ({"input_ids": MASK, "attention_mask": MASK, "position_ids": MASK.cumsum(1) - 1}, ((4,), 6)),
    "labels": ({"input_ids": LABELS, "labels": LABELS}, ((3, 2), 8)),
    "packed": ({"input_ids": LABELS, "position_ids": torch.tensor([[0, 1, 2, 3], [0, 1, 0, 1]])}, ((4, 2, 2), 8)),
}


@pytest.mark.parametrize("name", BATCHES)
def test_wherever_tensors_usually_are_made_batches_hold_so_much(name):
    """As under `torch.set_default_device("cuda")`. Tokens that are masked inside a sample do not end it."""
    batch, held = BATCHES[name]
    with torch.device("meta"):
        assert holding(batch)() == held

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


def test_tokens_that_are_masked_inside_a_sample_do_not_end_it():
    mask = torch.tensor([[1, 1, 0, 1, 1, 0]])
    batch = {"input_ids": mask, "attention_mask": mask, "position_ids": mask.cumsum(1) - 1}
    assert holding(batch)() == ((4,), 6)


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


@pytest.mark.parametrize(
    ("batch", "held"),
    [
        ({}, ((), 0)),
        ({"pixel_values": torch.zeros(2, 3)}, ((), 0)),
        ({"input_ids": torch.zeros(2, 7, dtype=torch.int64)}, ((7, 7), 14)),
        ({"inputs_embeds": torch.zeros(2, 7, 4)}, ((7, 7), 14)),
        ({"input_ids": torch.zeros(2, 7), "position_ids": torch.zeros(3, 2, 7)}, ((7, 7), 14)),
        ({"input_ids": torch.zeros(2, 7), "attention_mask": torch.zeros(2, 1, 7, 7)}, ((7, 7), 14)),
    ],
    ids=["nothing", "an image", "ids alone", "embedded", "positions in three dimensions", "a mask of pairs"],
)
def test_what_says_nothing_of_lengths_counts_whole_rows(batch, held):
    assert holding(batch)() == held


def test_where_tensors_usually_are_made_is_nothing_to_it():
    """As under `torch.set_default_device("cuda")`."""
    ids, labels = torch.zeros(2, 4, dtype=torch.int64), torch.tensor([[1, 2, 3, IGNORED], [1, 2, IGNORED, IGNORED]])
    positions = torch.tensor([[0, 1, 2, 3], [0, 1, 0, 1]])
    with torch.device("meta"):
        assert holding({"input_ids": ids, "labels": labels})() == ((3, 2), 8)
        assert holding({"input_ids": ids, "position_ids": positions})() == ((4, 2, 2), 8)

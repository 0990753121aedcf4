"""Answers laid side by side anew: nothing is lost, nothing is over the limit."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from odc_engine.trainers.answers import AnswerSize, padded, parts_within, sizes_of, unpadded
from odc_engine.trainers.exchange import swapped

SIZES = st.lists(st.builds(AnswerSize, st.integers(1, 20), st.integers(1, 60)), min_size=1, max_size=12)
FILL = 7


def batch(sizes):
    """As a trainer has it: prompts end where answers begin."""
    prompt, completion = (max(getattr(size, name) for size in sizes) for name in ("prompt", "completion"))
    masks = [
        torch.tensor([[0] * (prompt - size.prompt) + [1] * size.prompt for size in sizes]),
        torch.tensor([[1] * size.completion + [0] * (completion - size.completion) for size in sizes]),
    ]
    draw = torch.Generator().manual_seed(1)
    ids = [torch.randint(8, 99, mask.shape, generator=draw) * mask + FILL * (1 - mask) for mask in masks]
    logps = torch.rand(masks[1].shape, generator=draw) * masks[1]
    names = ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask", "old_per_token_logps", "advantages")
    values = (ids[0], masks[0], ids[1], masks[1], logps, torch.rand(len(sizes), generator=draw))
    return dict(zip(names, values, strict=True))


@given(SIZES)
def test_what_is_taken_apart_can_be_put_together_again(sizes):
    answers = batch(sizes)
    rows = unpadded(answers | {"num_items_in_batch": torch.tensor(5)})
    assert [sizes_of(row) for row in rows] == sizes
    again = padded(rows, FILL)
    assert again.keys() == answers.keys()
    for name, value in answers.items():
        assert torch.equal(again[name], value), name


@given(SIZES, st.integers(80, 300))
def test_every_answer_is_run_once_within_the_limit(sizes, limit):
    parts = parts_within(range(len(sizes)), sizes, limit)
    assert sorted(i for part in parts for i in part) == list(range(len(sizes)))
    for part in parts:
        assert len(part) * (max(sizes[i].prompt for i in part) + max(sizes[i].completion for i in part)) <= limit


def test_an_answer_that_counts_nothing_keeps_a_token():
    answers = batch([AnswerSize(2, 3), AnswerSize(1, 1)])
    answers["completion_mask"] = torch.zeros_like(answers["completion_mask"])
    assert [size.completion for size in map(sizes_of, unpadded(answers))] == [1, 1]


def swap(rank):
    return swapped([{"from": rank, "to": other, "more": [0] * 1000 * rank} for other in range(2)], torch.device("cpu"))


def test_parcels_come_to_whom_they_are_for(pools):
    for rank, parcels in enumerate(pools(2).run(swap)):
        assert [(parcel["from"], parcel["to"], len(parcel["more"])) for parcel in parcels] == [
            (0, rank, 0),
            (1, rank, 1000),
        ]

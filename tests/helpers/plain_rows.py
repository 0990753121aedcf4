"""Rules by which trainers pack rows, said in the plainest way: samples of each row, by their numbers."""

from collections.abc import Sequence

Rows = list[list[int]]


def best_fit(lengths: Sequence[int], limit: int) -> Rows:
    """TRL's bfd as its pages say it: longest first, into the fullest row with room, the oldest of those as full."""
    rows, left, since = list[list[int]](), list[int](), list[int]()
    for at, i in enumerate(sorted(range(len(lengths)), key=lambda i: -lengths[i])):
        room = [(left[r], since[r], r) for r in range(len(rows)) if left[r] >= lengths[i]]
        row = min(room)[2] if room else len(rows)
        if not room:
            rows, left, since = [*rows, []], [*left, limit], [*since, 0]
        rows[row].append(i)
        left[row], since[row] = left[row] - lengths[i], at
    return rows


def first_fit(lengths: Sequence[int], limit: int, most: int = 200) -> Rows:
    """Axolotl's: into the first row with room, and of no more samples than so many."""
    rows, left = list[list[int]](), list[int]()
    for i, length in enumerate(lengths):
        row = next((r for r in range(len(rows)) if left[r] >= length and len(rows[r]) < most), len(rows))
        if row == len(rows):
            rows, left = [*rows, []], [*left, limit]
        rows[row].append(i)
        left[row] -= length
    return rows


def knapsacks(lengths: Sequence[int], limit: int) -> Rows:
    """LLaMA-Factory's: each takes the longest that still fits."""
    rows, waiting = list[list[int]](), list(range(len(lengths)))
    while waiting:
        row, left = list[int](), limit
        while fitting := [i for i in waiting if lengths[i] <= left]:
            row.append(max(fitting, key=lambda i: (lengths[i], i)))
            left -= lengths[row[-1]]
            waiting.remove(row[-1])
        rows.append(row)
    return rows


def in_turn(lengths: Sequence[int], limit: int) -> Rows:
    """torchtitan's: a row is closed when the next does not fit."""
    rows, filled = [[0]], lengths[0]
    for i, length in enumerate(lengths[1:], 1):
        if filled + length > limit:
            rows, filled = [*rows, []], 0
        rows[-1].append(i)
        filled += length
    return rows

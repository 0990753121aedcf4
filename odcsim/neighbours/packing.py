"""Rows that trainers pack, before training or in a step: which samples stand together in each, of lengths in their
order."""

from bisect import bisect_left, bisect_right, insort
from collections import defaultdict, deque
from collections.abc import Sequence

Row = list[int]
Rows = list[Row]


def best_fit(lengths: Sequence[int], limit: int) -> Rows:
    """TRL's `bfd`: the longest first, each into the fullest row with room; of like rows into the first."""
    rows: Rows = []
    spaces: list[int] = []  # that some row has left, in order
    of: dict[int, deque[int]] = defaultdict(deque)
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        at = bisect_left(spaces, lengths[i])
        if at < len(spaces):
            space = spaces[at]
            row = of[space].popleft()
            if not of[space]:
                del spaces[at]
        else:
            space, row = limit, len(rows)
            rows.append([])
        rows[row].append(i)
        if left := space - lengths[i]:
            if not of[left]:
                insort(spaces, left)
            of[left].append(row)
    return rows


def first_fit(lengths: Sequence[int], limit: int, most: int) -> Rows:
    """axolotl's multipack: each as it comes into the first row with room, of at most so many samples."""
    size = 1 << max(1, len(lengths) - 1).bit_length()
    left = [limit] * (2 * size)  # a tree: of rows at its leaves, above them the most of both
    rows: Rows = [[] for _ in lengths]
    for i, length in enumerate(lengths):
        at = 1
        while at < size:
            at = 2 * at if left[2 * at] >= length else 2 * at + 1
        rows[at - size].append(i)
        left[at] = left[at] - length if len(rows[at - size]) < most else -1
        while at := at // 2:
            left[at] = max(left[2 * at], left[2 * at + 1])
    return [row for row in rows if row]


def first_fit_decreasing(lengths: Sequence[int], limit: int) -> Rows:
    """Each sample, the longest first, into the first row with room."""
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    return [[order[i] for i in row] for row in first_fit([lengths[i] for i in order], limit, len(order))]


def knapsacks(lengths: Sequence[int], limit: int) -> Rows:
    """LLaMA-Factory's: row after row, each filled by the longest that still fits."""
    order = sorted(range(len(lengths)), key=lambda i: lengths[i])
    sizes = [lengths[i] for i in order]
    rows: Rows = []
    while order:
        row: list[int] = []
        left = limit
        while at := bisect_right(sizes, left):
            left -= sizes.pop(at - 1)
            row.append(order.pop(at - 1))
        rows.append(row)
    return rows


def in_order(lengths: Sequence[int], limit: int) -> Rows:
    """torchtitan's: a row is closed when the next sample does not fit."""
    rows: Rows = []
    left = 0
    for i, length in enumerate(lengths):
        if not rows or length > left:
            rows.append([])
            left = limit
        rows[-1].append(i)
        left -= length
    return rows

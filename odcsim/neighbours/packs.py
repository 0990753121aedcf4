"""What several trainers' rules of packing are made of."""

from collections.abc import Callable, Sequence

from odcsim.balance.balancer import Deal

Row = list[int]


def squares(tokens: Sequence[int], row: Row) -> int:
    return sum(tokens[i] * tokens[i] for i in row)


def longest_first(tokens: Sequence[int]) -> list[int]:
    return sorted(range(len(tokens)), key=lambda i: (-tokens[i], i))


def first_fit(tokens: Sequence[int], limit: int) -> list[Row]:
    """Each sample, the longest first, into the first row with room."""
    rows: list[Row] = []
    left: list[int] = []
    for i in longest_first(tokens):
        place = next((n for n, room in enumerate(left) if room >= tokens[i]), None)
        if place is None:
            rows.append([i])
            left.append(limit - tokens[i])
        else:
            rows[place].append(i)
            left[place] -= tokens[i]
    return rows


def halves(tokens: Sequence[int], row: Row) -> list[Row]:
    """In two, by longest processing time first over squares."""
    halves: list[Row] = [[], []]
    for i in sorted(row, key=lambda i: (-tokens[i], i)):
        min(halves, key=lambda half: squares(tokens, half)).append(i)
    return halves


def in_steps(rows: list[Row], devices: int, work: Callable[[Row], int]) -> Deal:
    """Rows of like work meet: sorted, and each step takes as many as there are devices."""
    ordered = sorted(rows, key=lambda row: (-work(row), row))
    return Deal([ordered[device::devices] for device in range(devices)])

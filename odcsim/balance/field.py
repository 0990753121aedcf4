"""Balancers of other trainers, as rivals: whoever asks which heuristic to take finds his own in the table.

After what each says that it does, on tokens alone, and every one held to the limit and to equal counts, which not all
keep to by themselves. Costs are theirs, not this model's.

- verl: seqlen_balancing.py at 1dda039. Karmarkar-Karp over devices, as many samples on each, by 24,576 L + L^2
  ("calibrated for a 7B model"); then over the microbatches of each device, as many as the fullest one's tokens need.
- TRL: pull request 6092, TokenBudgetBatcher. Samples as they arrive, each into the open row of least squared lengths
  with room in the token budget, a row for each device; where no row has room, all are run and new ones opened.
- NeMo-RL: packing at 7ea279a and pull request 3476. First fit decreasing by tokens, bins a multiple of the devices and
  dealt in turn; each device runs its largest first.
- torchtitan: pull request 3938, proposed. First fit decreasing by tokens; rows of the most work, by squares, are split
  in two until they are a multiple of the devices; rows of like work meet.
"""

from collections.abc import Callable, Sequence

from odcsim.heuristics.balancer import Balancer, Deal, Work
from odcsim.heuristics.karmarkar_karp import differencing_equal
from odcsim.heuristics.packing import fewest, pack

VERL = 24_576  # tokens
Row = list[int]


def verl(work: Work) -> Deal:
    """The right one to know what verl's own balancing comes to at other lengths and models than its constants'."""
    tokens = work.tokens.tolist()
    order = sorted(range(len(tokens)), key=lambda i: (-tokens[i], i))
    lengths = [tokens[i] for i in order]
    weights = [float(VERL * length + length * length) for length in lengths]
    groups = differencing_equal(weights, work.devices)
    count = max(fewest(group, lengths, work.max_tokens) for group in groups)
    while None in (packed := [pack(group, weights, lengths, work.max_tokens, count) for group in groups]):
        count += 1
    return Deal([[[order[i] for i in row] for row in rows or []] for rows in packed])


def trl(work: Work) -> Deal:
    """The right one to know what balancing by squares comes to, of samples as they arrive."""
    tokens, devices = work.tokens.tolist(), work.devices
    slots: list[list[Row]] = [[[]] for _ in range(devices)]
    squares, left = [0] * devices, [work.max_tokens] * devices
    for i, length in enumerate(tokens):
        if max(left) < length:  # no open row has room: all are run, and new ones opened
            for mine in slots:
                mine.append([])
            squares, left = [0] * devices, [work.max_tokens] * devices
        device = min((d for d in range(devices) if left[d] >= length), key=lambda d: (squares[d], d))
        slots[device][-1].append(i)
        squares[device] += length * length
        left[device] -= length
    return Deal(slots)


def nemo_rl(work: Work) -> Deal:
    """The right one to know what packing by tokens comes to where nobody balances compute."""
    tokens, devices = work.tokens.tolist(), work.devices
    rows = _first_fit(tokens, work.max_tokens)
    while len(rows) % devices and (many := max(rows, key=len)) and len(many) > 1:
        rows.append([many.pop()])
    rows += [[] for _ in range(-len(rows) % devices)]
    dealt = [rows[device::devices] for device in range(devices)]
    return Deal([sorted(mine, key=lambda row: -sum(tokens[i] for i in row)) for mine in dealt])


def torchtitan(work: Work) -> Deal:
    """The right one to know what rows of like work bring that are packed by tokens first."""
    tokens, devices = work.tokens.tolist(), work.devices
    rows = _first_fit(tokens, work.max_tokens)
    while len(rows) % devices and (several := [row for row in rows if len(row) > 1]):
        heaviest = max(several, key=lambda row: _squares(tokens, row))
        rows.remove(heaviest)
        rows += _halves(tokens, heaviest)
    rows += [[] for _ in range(-len(rows) % devices)]
    return _in_steps(rows, devices, lambda row: _squares(tokens, row))


def _squares(tokens: Sequence[int], row: Row) -> int:
    return sum(tokens[i] * tokens[i] for i in row)


def _longest_first(tokens: Sequence[int]) -> list[int]:
    return sorted(range(len(tokens)), key=lambda i: (-tokens[i], i))


def _first_fit(tokens: Sequence[int], limit: int) -> list[Row]:
    """Each sample, the longest first, into the first row with room."""
    rows: list[Row] = []
    left: list[int] = []
    for i in _longest_first(tokens):
        place = next((n for n, room in enumerate(left) if room >= tokens[i]), None)
        if place is None:
            rows.append([i])
            left.append(limit - tokens[i])
        else:
            rows[place].append(i)
            left[place] -= tokens[i]
    return rows


def _halves(tokens: Sequence[int], row: Row) -> list[Row]:
    """In two, by longest processing time first over squares."""
    halves: list[Row] = [[], []]
    for i in sorted(row, key=lambda i: (-tokens[i], i)):
        min(halves, key=lambda half: _squares(tokens, half)).append(i)
    return halves


def _in_steps(rows: list[Row], devices: int, work: Callable[[Row], int]) -> Deal:
    """Rows of like work meet: sorted, and each step takes as many as there are devices."""
    ordered = sorted(rows, key=lambda row: (-work(row), row))
    return Deal([ordered[device::devices] for device in range(devices)])


def _rival(name: str, function: Callable[[Work], Deal], help: str) -> Balancer:
    return Balancer(name, function, help, by_cost=False)


FIELD = (
    _rival("verl", verl, "Karmarkar-Karp by verl's constants"),
    _rival("trl", trl, "TRL's rows, even in squares of lengths"),
    _rival("nemo-rl", nemo_rl, "NeMo-RL's packing by tokens, largest first"),
    _rival("torchtitan", torchtitan, "torchtitan's proposed packing, rows of like squares together"),
)

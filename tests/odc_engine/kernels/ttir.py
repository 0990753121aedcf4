"""What the whole numbers of a compiled kernel can be, for the arguments of one launch: read from Triton's own IR.

Every value is a range that holds all that it can be, in all programs of the grid and in all turns of loops. So what a
type cannot hold is found, and not only where a test happens to meet it.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

Range = tuple[int, int]
NAME = r"%[\w.$\-]+(?:#\d+)?"
_VALUE = re.compile(rf"^({NAME}) = ([\w.]+) ?(.*)$")
_LOOP = re.compile(rf"scf\.for ({NAME}) = ({NAME}) to ({NAME}) step ({NAME}).* : (i\d+)")
_WHOLE = re.compile(r"^(?:tensor<[\dx]+)?i(\d+)>?$")
LOADED = {32: (-1, 1 << 20), 64: (0, 1 << 56)}  # numbers of gradients, or of who is missing; addresses


@dataclass(frozen=True, slots=True)
class Overflow:
    """A value that its type cannot hold."""

    line: str
    found: Range


def lines(text: str) -> list[str]:
    """Without where they come from."""
    return [re.sub(r"\s*loc\(.*$", "", line).strip() for line in text.splitlines() if not line.startswith("#loc")]


def products(text: str) -> list[str]:
    """All multiplications in 32 bits."""
    return [line for line in lines(text) if "arith.muli" in line and _bits(line) == 32]


def overflows(text: str, arguments: Mapping[str, object], programs: int) -> list[Overflow]:
    """What does not fit its type somewhere in a launch. Arguments that are no numbers are addresses."""
    known: dict[str, Range] = {f"%{name}": (v, v) for name, v in arguments.items() if isinstance(v, int)}
    known |= {"program": (0, programs - 1), "programs": (programs, programs)}
    wrong = []
    for line, loop, found, bits in _read(text):
        if loop:
            variable, first, end, step, _ = loop
            known[variable] = (known[first][0], max(known[first][0], known[end][1] - 1))
            # The variable itself goes a step beyond before the loop ends.
            wrong += _too_large(line, bits, (known[first][0], known[variable][1] + known[step][1]))
        else:
            name, operation, rest = found
            known[name] = _value(operation, rest, bits, known)
            wrong += _too_large(line, bits, known[name])
    return wrong


@cache
def _read(text: str) -> list[tuple[str, tuple[str, ...], tuple[str, ...], int]]:
    """Lines with loops, or with values that are whole numbers, in parts. One kernel has many launches."""
    read = []
    for line in lines(text):
        if loop := _LOOP.search(line):
            read.append((line, loop.groups(), (), int(loop[5][1:])))
        elif (found := _VALUE.match(line)) and (bits := _bits(line)):
            read.append((line, (), found.groups(), bits))
    return read


def _bits(line: str) -> int:
    """Of the whole number that comes out, or none."""
    told = re.split(r" to | -> ", line.rpartition(" : ")[2])[-1].strip("() ")
    if " = tt.load " in line:
        told = re.sub(r"!tt\.ptr<(\w+)>", r"\1", told)
    return int(found[1]) if (found := _WHOLE.match(told)) else 0


def _too_large(line: str, bits: int, value: Range) -> list[Overflow]:
    least, most = (-(1 << bits - 1), (1 << bits - 1) - 1) if bits > 1 else (-1, 1)
    return [] if least <= value[0] <= value[1] <= most else [Overflow(line, value)]


def _value(operation: str, rest: str, bits: int, known: Mapping[str, Range]) -> Range:
    if operation == "arith.constant":
        number = re.match(r"(?:dense<)?(-?\d+)", rest)
        return (int(number[1]),) * 2 if number else (0, 1)
    if operation == "tt.make_range":
        start, end = (int(re.search(rf"\b{what} = (\d+)", rest)[1]) for what in ("start", "end"))
        return start, end - 1
    if operation == "tt.load":
        return LOADED[bits]
    if operation in FROM_GRID:
        return known[FROM_GRID[operation]]
    if operation == "arith.cmpi":
        return 0, 1
    return RANGES[operation]([known[name] for name in re.findall(NAME, rest.rpartition(" : ")[0])])


def _of_corners(operate: Callable[[int, int], int]) -> Callable[[Sequence[Range]], Range]:
    def ranged(operands: Sequence[Range]) -> Range:
        every = [operate(a, b) for a in operands[0] for b in operands[1]]
        return min(every), max(every)

    return ranged


def _remainder(operands: Sequence[Range]) -> Range:
    (low, high), (_, divisor) = operands
    assert low >= 0, "a remainder of what may be less than nothing"
    return (low, high) if high < divisor else (0, divisor - 1)


FROM_GRID = {"tt.get_program_id": "program", "tt.get_num_programs": "programs"}
RANGES: Mapping[str, Callable[[Sequence[Range]], Range]] = {
    "arith.addi": _of_corners(lambda a, b: a + b),
    "arith.subi": _of_corners(lambda a, b: a - b),
    "arith.muli": _of_corners(lambda a, b: a * b),
    "arith.divsi": _of_corners(lambda a, b: a // b if a >= 0 else -(-a // b)),
    "arith.minsi": _of_corners(min),
    "arith.maxsi": _of_corners(max),
    "arith.remsi": _remainder,
    "arith.andi": _of_corners(max),  # of what is true or false
    **{
        same: lambda operands: operands[0]
        for same in ("arith.extsi", "arith.extui", "arith.trunci", "tt.splat", "tt.broadcast", "tt.expand_dims")
    },
    "arith.select": lambda operands: (min(a for a, _ in operands[1:]), max(b for _, b in operands[1:])),
}

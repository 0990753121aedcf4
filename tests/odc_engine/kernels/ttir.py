"""What the whole numbers of a compiled kernel can be, for the arguments of one launch: read from Triton's own IR.

Every value is a range that holds all that it can be, in all programs of the grid and in all turns of loops. So what a
type cannot hold is found, and not only where a test happens to meet it.
"""

import re
from functools import cache
from operator import add, mul, sub

NAME = r"%[\w.$\-]+(?:#\d+)?"
_VALUE = re.compile(rf"^({NAME}) = ([\w.]+) ?(.*)$")
_LOOP = re.compile(rf"scf\.for ({NAME}) = ({NAME}) to ({NAME}) step ({NAME}).* : i(\d+)")
_WHOLE = re.compile(r"^(?:tensor<[\dx]+)?i(\d+)>?$")
LOADED = {32: (-1, 1 << 20), 64: (0, 1 << 56)}  # numbers of gradients, or of who is missing; addresses
GRID = {"tt.get_program_id": "program", "tt.get_num_programs": "programs"}
SAME = "arith.extsi", "arith.extui", "arith.trunci", "tt.splat", "tt.broadcast", "tt.expand_dims"
# Of two ranges' ends. What is true or false is at most the larger of two by `andi`.
CORNERS = {"arith.addi": add, "arith.subi": sub, "arith.muli": mul, "arith.minsi": min, "arith.maxsi": max,
           "arith.andi": max, "arith.divsi": lambda a, b: a // b if a >= 0 else -(-a // b)}  # fmt: skip


def lines(text):
    """Without where they come from."""
    return [re.sub(r"\s*loc\(.*$", "", line).strip() for line in text.splitlines() if not line.startswith("#loc")]


def products(text):
    """All multiplications in 32 bits."""
    return [line for line in lines(text) if "arith.muli" in line and _bits(line) == 32]


def overflows(text, arguments, programs):
    """Values that their types cannot hold somewhere in a launch. Arguments that are no numbers are addresses."""
    known = {f"%{name}": (v, v) for name, v in arguments.items() if isinstance(v, int)}
    known |= {"program": (0, programs - 1), "programs": (programs, programs)}
    wrong = []
    for line, loop, value, bits in _read(text):
        if loop:
            variable, first, end, step, _ = loop
            known[variable] = (known[first][0], max(known[first][0], known[end][1] - 1))
            # The variable itself goes a step beyond before the loop ends.
            found = known[first][0], known[variable][1] + known[step][1]
        else:
            name, operation, rest = value
            found = known[name] = _value(operation, rest, bits, known)
        least, most = (-(1 << bits - 1), (1 << bits - 1) - 1) if bits > 1 else (-1, 1)
        if not least <= found[0] <= found[1] <= most:
            wrong.append(line)
    return wrong


@cache
def _read(text):
    """Lines with loops, or with values that are whole numbers, in parts. One kernel has many launches."""
    read = []
    for line in lines(text):
        if loop := _LOOP.search(line):
            read.append((line, loop.groups(), (), int(loop[5])))
        elif (found := _VALUE.match(line)) and (bits := _bits(line)):
            read.append((line, (), found.groups(), bits))
    return read


def _bits(line):
    """Of the whole number that comes out, or none."""
    told = re.split(r" to | -> ", line.rpartition(" : ")[2])[-1].strip("() ")
    if " = tt.load " in line:
        told = re.sub(r"!tt\.ptr<(\w+)>", r"\1", told)
    return int(found[1]) if (found := _WHOLE.match(told)) else 0


def _value(operation, rest, bits, known):
    if operation == "arith.constant":
        number = re.match(r"(?:dense<)?(-?\d+)", rest)
        return (int(number[1]),) * 2 if number else (0, 1)
    if operation == "tt.make_range":
        start, end = (int(re.search(rf"\b{what} = (\d+)", rest)[1]) for what in ("start", "end"))
        return start, end - 1
    if operation == "tt.load":
        return LOADED[bits]
    if operation in GRID:
        return known[GRID[operation]]
    if operation == "arith.cmpi":
        return 0, 1
    operands = [known[name] for name in re.findall(NAME, rest.rpartition(" : ")[0])]
    if operation in SAME:
        return operands[0]
    if operation == "arith.select":
        return min(low for low, _ in operands[1:]), max(high for _, high in operands[1:])
    if operation == "arith.remsi":
        (low, high), (_, divisor) = operands
        assert low >= 0, "a remainder of what may be less than nothing"
        return (low, high) if high < divisor else (0, divisor - 1)
    every = [CORNERS[operation](a, b) for a in operands[0] for b in operands[1]]
    return min(every), max(every)

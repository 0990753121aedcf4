"""Changes to inputs: of bytes, of the numbers and words in texts, of the values in JSON, of the columns in an NPZ."""

import io
import json
import re
from random import Random
from typing import Any

_NUMBERS = """
0 -1 1 2 1e-320 1e-300 5e-324 1e-12 0.1 1e9 1e15 1e18 1e22 1e100 1e306 1e308 1.8e308 -1e308 nan inf -inf 1e999
2147483647 2147483648 9007199254740993 9223372036854775807 18446744073709551616 NaN Infinity -0.0 1_000 0x10
٣ ² 1e 1.2.3
"""
NUMBERS = [*_NUMBERS.split(), "9" * 400, "9" * 5000]
WORDS = [*'null true [] {} , ; " \x1b[31m \x00 \u202e \ud7ff'.split(), "", "é" * 50, "x" * 3000, "\n", "\t"]
VALUES: list[Any] = [
    None, True, False, 0, -1, 1, 2**31, 2**53 + 1, 2**63, 2**70, 10**400, 1e-320, 1e306, -1e308, 0.5,
    "", "x", "\x1b[2J", "12", [], [1], [[1], [2]], [[1], 2], [None], {}, {"a": 1}, [1] * 300,
    float("nan"), float("inf"),
]  # fmt: skip
ODD = (b"\x00", b"\xff", b"\x1b[31m", b"\xef\xbb\xbf")
WHOLE, FRACTIONS = (0, -1, 1, 2**31, 2**62, -(2**62)), (0, -1, 1e-320, 1e15, 1e306, float("nan"), float("inf"))
_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?(?:e[-+]?\d+)?")
_WORD = re.compile(rb"[A-Za-z_]+")


def changed(data: bytes, name: str, rng: Random) -> bytes:
    """The input with one to four changes, each of a kind that suits it or of its bytes."""
    for _ in range(rng.choice((1, 1, 1, 2, 3, 4))):
        data = rng.choice(_kinds(name))(data, rng)
    return data


def _kinds(name: str) -> list:
    if name.endswith(".npz"):
        return [_member, _member, _member, _claim, _bytes]
    if name.endswith((".npy", ".idx", ".parquet", ".arrow", ".gz")):
        return [_bytes, _bytes, _claim]
    if name.endswith((".json", ".jsonl")):
        return [_value, _value, _number, _word, _bytes]
    return [_number, _number, _word, _line, _bytes]


def _bytes(data: bytes, rng: Random) -> bytes:
    """Flipped, cut, doubled, left out or overwritten."""
    at = rng.randrange(len(data) + 1)
    upto = min(len(data), at + rng.choice((1, 1, 2, 4, 8, 64)))
    piece = data[at:upto]
    others = [b"", 2 * piece, rng.randbytes(len(piece)), bytes(b ^ (1 << rng.randrange(8)) for b in piece)]
    others.append(rng.choice(ODD) * rng.choice((1, 4)) + piece)
    return rng.choice([data[:at], data[at:], *(data[:at] + other + data[upto:] for other in others)])


def _place(pattern: re.Pattern[bytes], data: bytes, rng: Random) -> tuple[int, int]:
    found = [match.span() for match in pattern.finditer(data)] if len(data) < 100_000 else []
    return rng.choice(found) if found else (len(data), len(data))


def _number(data: bytes, rng: Random) -> bytes:
    low, high = _place(_NUMBER, data, rng)
    return data[:low] + rng.choice(NUMBERS).encode() + data[high:]


def _word(data: bytes, rng: Random) -> bytes:
    low, high = _place(_WORD, data, rng)
    return data[:low] + rng.choice(WORDS).encode() + data[high:]


def _line(data: bytes, rng: Random) -> bytes:
    """One line in the place of, or behind, another; a hundred times as many now and then."""
    lines = data.splitlines(keepends=True) or [b""]
    i, j = rng.randrange(len(lines)), rng.randrange(len(lines))
    lines[i : i + rng.randrange(2)] = [lines[j]] * rng.choice((0, 1, 1, 100))
    return b"".join(lines)


def _value(data: bytes, rng: Random) -> bytes:
    """One value of the JSON, or of a line of it, is another; or is gone, doubled or elsewhere."""
    lines = data.split(b"\n") if data[:1] == b"{" and b"\n{" in data else [data]
    i = rng.randrange(len(lines))
    try:
        content = json.loads(lines[i])
        lines[i] = json.dumps(_other(content, rng)).encode()
    except (ValueError, RecursionError):
        return _bytes(data, rng)
    return b"\n".join(lines)


def _other(value: Any, rng: Random) -> Any:
    """`value` with a change somewhere inside it."""
    if not isinstance(value, list | dict) or not value or rng.random() < 0.15:
        return rng.choice(VALUES)
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    key = rng.choice(keys)
    copy = value.copy()
    if rng.random() < 0.1:
        del copy[key]
    else:
        copy[key] = value[rng.choice(keys)] if rng.random() < 0.1 else _other(value[key], rng)
    return copy


def _member(data: bytes, rng: Random) -> bytes:
    """One column of an archive is another: its head, its numbers, its type or its place."""
    import numpy as np

    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as archive:
            columns = {name: archive[name] for name in archive.files}
    except Exception:  # broken already
        return _bytes(data, rng)
    if not columns:
        return data
    name = rng.choice(sorted(columns))
    column = columns[name]
    if column.dtype.kind == "U":
        text = _value(str(column).encode(), rng) if name == "header" else _number(str(column).encode(), rng)
        columns[name] = np.array(text.decode(errors="replace"))
    elif column.size and rng.random() < 0.7:
        flat = column.copy().reshape(-1)
        extremes = WHOLE if flat.dtype.kind in "iu" else FRACTIONS
        every = rng.random() < 0.2
        flat[slice(None) if every else rng.randrange(len(flat))] = rng.choice(extremes)
        columns[name] = flat.reshape(column.shape)
    else:
        shorter, kinds = column[:-1] if column.ndim else column, (column.astype(float), column.astype(str))
        columns[name] = rng.choice((shorter, *kinds, np.array([]), column[..., None]))
    out = io.BytesIO()
    np.savez(out, **columns)
    return out.getvalue()


def _claim(data: bytes, rng: Random) -> bytes:
    """A head that claims another shape or type than follows."""
    shapes = (b"(10,)", b"(99,)", b"(100000000000,)", b"(0,)", b"(-1,)", b"(10, 10)", b"()", b"(99999999999999999999,)")
    kinds = (b"'<i8'", b"'<f8'", b"'|O'", b"'<U9'", b"'<c16'", b"'|V8'", b"'<M8[s]'", b"'<i1'")
    pattern, others = rng.choice(((rb"\(\d*(?:, ?\d*)*\)", shapes), (rb"'[<|>][a-zA-Z]\d*'", kinds)))
    low, high = _place(re.compile(pattern), data, rng)
    new = rng.choice(others)
    return data[:low] + new + data[max(high, low + len(new)) if rng.random() < 0.8 else high :]

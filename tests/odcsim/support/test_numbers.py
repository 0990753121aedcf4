"""Numbers as people write them: exact, or refused; and columns of them stand one under the other."""

import argparse
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odcsim.decide.sweep import limits
from odcsim.reading import load
from odcsim.support import tables
from odcsim.support.numbers import TIMES, TOKENS, amount, human, money, whole

WORDS = st.text("abc1 ", min_size=1, max_size=9).map(str.strip).filter(bool)
GRIDS = st.integers(1, 4).flatmap(
    lambda n: st.lists(st.lists(WORDS, min_size=n, max_size=n), min_size=1, max_size=4)
)  # fmt: skip


@pytest.mark.parametrize(
    ("read", "text", "value"),
    [
        (whole, "4096", 4096), (whole, "65,536", 65536), (whole, "16k", 16000), (whole, "16 K", 16000),
        (whole, "16Ki", 16384), (whole, "1.5M", 1_500_000), (whole, "0.001k", 1), (whole, "1.001k", 1001),
        (whole, "2b", 2 * 10**9), (whole, "2Mi", 2**21),
        (lambda text: whole(text, TOKENS), "32k", 32768), (lambda text: whole(text, TOKENS), "32K", 32768),
        (lambda text: whole(text, TOKENS), "32Ki", 32768), (lambda text: whole(text, TOKENS), "1.5k", 1536),
        (lambda text: whole(text, TOKENS), "1M", 2**20), (lambda text: whole(text, TOKENS), "2Mi", 2**21),
        (amount, "2.5", 2.5), (amount, "$2.5", 2.5), (amount, "3%", 0.03), (amount, "1e-3", 1e-3),
        (amount, "$1.2k", 1200), (amount, "0", 0), (human, "0.1", Fraction(1, 10)),
        (human, str(0.1 + 0.2), Fraction(str(0.1 + 0.2))), (lambda text: human(text, TIMES), "90s", 90),
        (lambda text: human(text, TIMES), "90", 90), (lambda text: human(text, TIMES), "1.5min", 90),
        (lambda text: human(text, TIMES), "12h", 43200), (lambda text: human(text, TIMES), "2d", 172800),
        (lambda text: human(text, TIMES), "3k", None), (lambda text: limits(100, text), "1k,2Ki", (1024, 2048)),
        (lambda text: load(text).lengths.tolist(), "fixed:length=4k,samples=0.5k", [4096] * 500),
        (lambda text: load(text).lengths.tolist(), "uniform:min=1k,max=1k,samples=2k", [1024] * 2000),
        (money, 1234.5, "$1,234"), (money, 999.999, "$1,000"), (money, 19.999, "$20.00"), (money, 0.702, "$0.70"),
        (money, 0.0996, "$0.10"), (money, 0.0123, "$0.012"), (money, 0.0000123, "$0.000012"), (money, 0.0, "$0.00"),
    ],
)  # fmt: skip
def test_numbers_are_what_people_mean(read, text, value):
    assert read(text) == (pytest.approx(value, rel=1e-15) if isinstance(value, float) else value)


@pytest.mark.parametrize(
    ("read", "texts"),
    [
        (whole, ["", "0", "-1", "1.5", "1.0005k", "16q", "1e6", "0x10", "6,55", "nan", "inf", "1" * 13, "999b999"]),
        (whole, ["\u0663"]),
        (lambda text: whole(text, TOKENS), ["1b", "1.001k", "8kb"]),
        (amount, ["", "$", "%", "-1", "nan", "inf", "$-2", "two"]),
    ],
)
def test_what_is_no_number(read, texts):
    for text in texts:
        with pytest.raises(argparse.ArgumentTypeError):
            read(text)


@given(GRIDS, st.data())
def test_cells_stand_at_their_ends_of_the_columns(rows, data):
    widths = data.draw(st.lists(st.sampled_from([-12, 12]), min_size=len(rows[0]), max_size=len(rows[0])))
    for line, row in zip(tables.lines(rows, widths), rows, strict=True):
        cells = [cell.rjust(12) if width > 0 else cell.ljust(12) for cell, width in zip(row, widths, strict=True)]
        assert line == "".join(cells).rstrip()
    assert tables.lines([("name", "123456", "end")], (-3, 4, 5)) == ["name123456  end"]  # is not cut


@given(GRIDS)
def test_fitted_columns_have_two_blanks_between_them(rows):
    wide = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for line, row in zip(tables.lines(rows, tables.fitted(rows)), rows, strict=True):
        assert line == "  ".join(cell.ljust(width) for cell, width in zip(row, wide, strict=True)).rstrip()

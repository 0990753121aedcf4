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


def tokens(text):
    return whole(text, TOKENS)


def time(text):
    return human(text, TIMES)


def drawn(text):
    return load(text).lengths.tolist()


MEANT = {
    whole: {"4096": 4096, "65,536": 65536, "16k": 16000, "16 K": 16000, "16Ki": 16384, "1.5M": 1_500_000, "0.001k": 1,
            "1.001k": 1001, "2b": 2 * 10**9, "2Mi": 2**21},
    tokens: {"32k": 32768, "32K": 32768, "32Ki": 32768, "1.5k": 1536, "1M": 2**20, "2Mi": 2**21},
    amount: {"2.5": 2.5, "$2.5": 2.5, "3%": 0.03, "1e-3": 1e-3, "$1.2k": 1200, "0": 0},
    human: {"0.1": Fraction(1, 10), str(0.1 + 0.2): Fraction(str(0.1 + 0.2))},
    time: {"90s": 90, "90": 90, "1.5min": 90, "12h": 43200, "2d": 172800, "3k": None},
    drawn: {"fixed:length=4k,samples=0.5k": [4096] * 500, "uniform:min=1k,max=1k,samples=2k": [1024] * 2000},
    money: {1234.5: "$1,234", 999.999: "$1,000", 19.999: "$20.00", 0.702: "$0.70", 0.0996: "$0.10", 0.0123: "$0.012",
            0.0000123: "$0.000012", 0.0: "$0.00"},
}  # fmt: skip
NONE = {
    whole: ["", "0", "-1", "1.5", "1.0005k", "16q", "1e6", "0x10", "6,55", "nan", "inf", "1" * 13, "999b999", "\u0663"],
    tokens: ["1b", "1.001k", "8kb"], amount: ["", "$", "%", "-1", "nan", "inf", "$-2", "two"],
}  # fmt: skip


@pytest.mark.parametrize("read", MEANT, ids=lambda read: read.__name__)
def test_numbers_are_what_people_mean(read):
    assert {text: read(text) for text in MEANT[read]} == MEANT[read]
    for text in NONE.get(read, ()):
        with pytest.raises(argparse.ArgumentTypeError):
            print(text, read(text))
    assert limits(100, "1k,2Ki") == (1024, 2048)


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

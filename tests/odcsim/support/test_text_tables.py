"""Columns of a plain table stand one under the other, and every cell is in it whole."""

from hypothesis import given
from hypothesis import strategies as st

from odcsim.support import tables

WORDS = st.text("abc1 ", min_size=1, max_size=9).map(str.strip).filter(bool)


@st.composite
def grids(draw):
    columns = draw(st.integers(1, 4))
    return draw(st.lists(st.lists(WORDS, min_size=columns, max_size=columns), min_size=1, max_size=4))


@given(grids(), st.data())
def test_cells_stand_at_their_ends_of_the_columns(rows, data):
    widths = data.draw(st.lists(st.sampled_from([-12, 12]), min_size=len(rows[0]), max_size=len(rows[0])))
    for line, row in zip(tables.lines(rows, widths), rows, strict=True):
        assert line == line.rstrip()
        for i, (cell, width) in enumerate(zip(row, widths, strict=True)):
            column = line.ljust(12 * len(row))[12 * i : 12 * i + 12]
            assert column == (cell.rjust(12) if width > 0 else cell.ljust(12))


def test_a_cell_too_wide_for_its_column_is_not_cut():
    assert tables.lines([("name", "123456", "end")], (-3, 4, 5)) == ["name123456  end"]


@given(grids())
def test_fitted_columns_have_two_blanks_between_them(rows):
    lines = tables.lines(rows, tables.fitted(rows))
    place = 0
    for column in zip(*rows, strict=True):
        for line, cell in zip(lines, column, strict=True):
            assert line[place : place + len(cell)] == cell
        place += max(map(len, column)) + 2
    assert max(map(len, lines)) <= place - 2

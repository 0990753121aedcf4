"""What somebody sees of a result at a glance, and of progress; what is said where nobody watches is approved text."""

import io
import re
import sys
from contextlib import contextmanager
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odcsim.answer import MOST, Answer, AnswerTable, Printable
from odcsim.errors import in_python
from odcsim.support import progress

TEXT = st.text(max_size=20)
CELLS = st.lists(TEXT, min_size=3, max_size=3)
ROWS = st.lists(CELLS, max_size=4) | st.integers(MOST, MOST + 2).map(lambda n: [["a", "b", "c"]] * n)
TABLES = st.tuples(CELLS, ROWS, TEXT, st.booleans()).map(
    lambda drawn: AnswerTable(drawn[0], drawn[1], says=drawn[2], details=[["more"]] * len(drawn[1]) * drawn[3])
)
ANSWERS = st.builds(
    Answer,
    kind=st.just("Comparison"),
    about=TEXT,
    headline=TEXT,
    question=TEXT,
    tables=st.lists(TABLES, max_size=2),
    sentences=st.lists(TEXT, max_size=3),
)


class Seen(HTMLParser):
    """What a browser makes of it."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.texts = [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


@given(ANSWERS)
def test_html_is_whole_and_every_word_is_text(answer):
    """And a line is one line."""
    assert answer.line.isprintable()
    assert answer.line.startswith("<Comparison: ")
    assert answer.line.endswith(">")
    seen = Seen(answer.html)
    assert seen.open == []
    assert {tag for tag, _ in seen.tags} <= {"div", "p", "b", "table", "thead", "tbody", "tr", "th", "td"}
    assert {name for _, held in seen.tags for name in held} <= {"scope", "colspan"}
    words = "".join(seen.texts).replace("\r\n", "\n").replace("\r", "\n")
    shown = [table for table in answer.tables if table.rows]
    cells = [cell for table in shown for row in table.rows for cell in row]
    for text in (answer.headline, *answer.sentences, answer.question, *(table.says for table in shown), *cells):
        assert in_python(text).replace("\r\n", "\n").replace("\r", "\n") in words
    rows = sum(1 + min(len(table.rows), MOST) * (2 if table.details else 1) for table in shown)
    assert [tag for tag, _ in seen.tags].count("tr") == rows
    assert all(len(table.rows) <= MOST or f"{len(table.rows) - MOST} more" in words for table in shown)


def test_what_has_an_answer_is_printed_and_shown_by_it():
    class Toy(Printable):
        def _answer(self):
            return Answer("Toy", "a < b", "give --max-tokens 4,096. It is enough.", sentences=["Next: ..."])

    answer = Toy()._answer()
    assert (repr(Toy()), Toy()._repr_html_()) == (answer.line, answer.html)
    assert "max_tokens=4096" in answer.html
    assert answer.line.endswith("give max_tokens=4096>")  # with the first sentence


def watched(monkeypatch):
    shown = io.StringIO()
    shown.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setenv("TERM", "xterm")
    return shown


@pytest.mark.parametrize("names", [["", ""], ["a", "b"]])
def test_a_terminal_has_one_bar_and_stdout_nothing(names, monkeypatch, capsys):
    terminal = watched(monkeypatch)
    with progress.progress("working", len(names)) as done:
        for name in names:
            done(name)
    shown = terminal.getvalue()
    assert "working" in shown
    assert "2/2" in shown
    assert ("b done" in shown) == (names[1] == "b")
    assert "0:00:00" in re.sub(r"\x1b\[[0-9;]*m", "", shown)  # how long it has taken
    assert shown.rpartition("2/2")[2].count("\x1b[2K") == 1  # and in the end the bar is gone
    assert capsys.readouterr().out == ""


def test_work_within_work_is_a_line_of_the_same_bar_which_goes_with_it(monkeypatch):
    terminal = watched(monkeypatch)
    with progress.progress("outer", 2) as done:
        for name in ("first", "second"):
            with progress.progress(name, 1) as inner:
                (bar,) = {id(shown): shown for shown in progress._SHOWN}.values()
                assert [task.description for task in bar.tasks] == ["outer", name]
                inner()
            assert [task.description for task in bar.tasks] == ["outer"]
            done()
    assert progress._SHOWN == []
    assert "2/2" in terminal.getvalue()


def test_shares_of_work_are_pieces_of_a_hundred(monkeypatch):
    pieces = []

    @contextmanager
    def counting(what, total):
        assert (what, total) == ("reading", 100)
        yield pieces.append

    monkeypatch.setattr(progress, "progress", counting)
    for told in ((0.125, 0.25, 1.0), (0.5, 0.25, 1.0), (1.0, 1.5)):
        pieces.clear()
        with progress.shares("reading") as done:
            for i, share in enumerate(told):
                done(share)
                assert len(pieces) == min(100, int(100 * max(told[: i + 1])))

"""What somebody sees of a result at a glance, and of progress; what is said where nobody watches is approved text."""

import io
import re
import sys
from contextlib import contextmanager
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odcsim.errors import in_python
from odcsim.support import progress
from odcsim.support.glance import MOST, Glance, Glanced

TEXT = st.text(max_size=20)
CELLS = st.lists(TEXT, min_size=3, max_size=3)
GLANCES = st.builds(
    Glance,
    kind=st.just("Comparison"),
    about=TEXT,
    answer=st.lists(TEXT, max_size=3),
    head=CELLS,
    rows=st.lists(CELLS, max_size=4) | st.integers(MOST, MOST + 2).map(lambda n: [["a", "b", "c"]] * n),
    detail=TEXT,
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


@given(GLANCES)
def test_html_is_whole_and_every_word_is_text(glance):
    """And a line is one line."""
    assert glance.line.isprintable()
    assert glance.line.startswith("<Comparison: ")
    assert glance.line.endswith(">")
    seen = Seen(glance.html)
    assert seen.open == []
    assert {tag for tag, _ in seen.tags} <= {"div", "p", "b", "table", "thead", "tbody", "tr", "th", "td"}
    assert {name for _, held in seen.tags for name in held} <= {"scope"}
    words = "".join(seen.texts).replace("\r\n", "\n").replace("\r", "\n")
    for text in (*glance.answer, glance.detail, *(cell for row in glance.rows for cell in row)):
        assert in_python(text).replace("\r\n", "\n").replace("\r", "\n") in words
    rows = min(len(glance.rows), MOST)
    assert [tag for tag, _ in seen.tags].count("tr") == (1 + rows if rows else 0)
    assert len(glance.rows) <= MOST or f"{len(glance.rows) - MOST} more" in words


def test_whoever_tells_of_itself_is_printed_and_shown_by_it():
    class Toy(Glanced):
        def _glance(self):
            return Glance("Toy", "a < b", ["give --max-tokens 4,096. It is enough.", "Next: ..."])

    glance = Toy()._glance()
    assert (repr(Toy()), Toy()._repr_html_()) == (glance.line, glance.html)
    assert "max_tokens=4096" in glance.html
    assert glance.line.endswith("give max_tokens=4096>")  # with the first sentence


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

    monkeypatch.setattr(progress, "_lines", counting)
    for told in ((0.125, 0.25, 1.0), (0.5, 0.25, 1.0), (1.0, 1.5)):
        pieces.clear()
        with progress.shares("reading") as done:
            for i, share in enumerate(told):
                done(share)
                assert len(pieces) == min(100, int(100 * max(told[: i + 1])))

"""Progress is a bar where somebody watches; what is said where nobody does is in tests/approved/support.txt."""

import io
import re
import sys
from contextlib import contextmanager

import pytest

from odcsim.support import progress


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

"""Progress is a bar where somebody watches; where nobody does, named pieces have a line each and others none."""

import io
import re
import sys
from contextlib import contextmanager

import pytest

from odcsim.support import progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_time_left_is_that_of_what_is_left(capsys, monkeypatch):
    clock = iter([100.0, 110.0, 140.0, 160.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    with progress.progress("profile", 3) as done:
        for name in "abc":
            done(name)
    assert capsys.readouterr().err.splitlines() == [
        "profile: a done, 1 of 3, about 20 s left",
        "profile: b done, 2 of 3, about 20 s left",
        "profile: c done, 3 of 3, about 0 s left",
    ]


def test_pieces_without_names_are_not_told_where_nobody_watches(capsys):
    with progress.progress("comparing", 2) as done:
        done()
        done()
    assert capsys.readouterr() == ("", "")


def test_pieces_without_names_are_told_now_and_then_where_they_take_long(capsys, monkeypatch):
    clock = iter([0.0, 50.0, 61.0, 110.0, 124.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    with progress.progress("dealing", 5) as done:
        for _ in range(4):
            done()
    assert capsys.readouterr().err.splitlines() == [
        "dealing: 2 of 5, about 92 s left",
        "dealing: 4 of 5, about 31 s left",
    ]


@pytest.mark.parametrize("names", [["", ""], ["a", "b"]])
def test_a_terminal_has_one_bar_and_stdout_nothing(names, monkeypatch, capsys):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with progress.progress("working", len(names)) as done:
        for name in names:
            done(name)
    shown = terminal.getvalue()
    assert "working" in shown
    assert "2/2" in shown
    assert ("b done" in shown) == (names[1] == "b")
    assert shown.rpartition("2/2")[2].count("\x1b[2K") == 1  # and in the end the bar is gone
    assert capsys.readouterr().out == ""


def test_work_within_work_is_a_line_of_the_same_bar_which_goes_with_it(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
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


def test_a_bar_tells_how_long_it_has_taken_before_any_piece_is_done(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with progress.progress("one piece", 1):
        pass
    assert "after 0:00:00" in re.sub(r"\x1b\[[0-9;]*m", "", terminal.getvalue())


@pytest.mark.parametrize("told", [(0.125, 0.25, 1.0), (0.5, 0.25, 1.0), (1.0, 1.5)])
def test_shares_of_work_are_pieces_of_a_hundred(told, monkeypatch):
    pieces = []
    monkeypatch.setattr(progress, "_lines", lambda what, total: _counting(what, total, pieces))
    with progress.shares("reading") as done:
        for share in told:
            done(share)
            assert len(pieces) == min(100, int(100 * max(told[: told.index(share) + 1])))


@contextmanager
def _counting(what, total, pieces):
    assert (what, total) == ("reading", 100)
    yield pieces.append

"""The page keeps what memory has room for, and what a question takes beyond that is a line."""

from types import SimpleNamespace

import pytest

pytest.importorskip("dash", reason="pip install 'odcsim[explore]'")

from odcsim.cli import main
from odcsim.show.explore import asked, line, reply, serve
from odcsim.show.explore.asked import Asked
from odcsim.support import budget
from odcsim.support.remembered import remembered


def test_the_process_is_bounded_before_it_serves(monkeypatch, capsys):
    done = []
    monkeypatch.setattr(budget, "limit", lambda more: done.append(more))
    server = SimpleNamespace(serve_forever=lambda: done.append("serves"), server_close=lambda: None)
    monkeypatch.setattr(serve, "serve", lambda *_: SimpleNamespace(server=server, link=lambda _: "http://here"))
    assert main(["explore", "--no-open"]) == 0
    assert done == [budget.most(), "serves"]
    assert "http://here" in capsys.readouterr().out


def test_plans_of_few_samples_are_kept_and_those_of_many_take_their_place():
    few = [Asked(minibatch=2**n, devices=2) for n in range(4)]
    kept = [reply._plans(one) for one in few]
    assert all(reply._plans(one) is plans for one, plans in zip(few, kept, strict=True))
    for seed in range(2):
        reply._plans(Asked(devices=64, minibatch=16, minibatches=200, seed=seed))
    assert not any(reply._plans(one) is plans for one, plans in zip(few, kept, strict=True))


def test_lengths_are_kept_by_how_many_there_are():
    read = []
    known = remembered(asked.ROWS, lambda found, *_: found)(lambda rows, number: read.append(number) or rows)
    for number in (0, 1, 0, 2, 0, 1):
        known(asked.ROWS // 2, number)
    assert read == [0, 1, 2, 1]


@pytest.mark.parametrize("error", [MemoryError, ValueError])
def test_where_memory_has_run_out_all_is_forgotten_and_the_line_says_so(error, capsys):
    one = Asked(minibatch=8, devices=2)
    kept = reply._plans(one)

    def out():
        raise error

    told = line.or_line(out, str)
    assert ("too little memory" in told) == (error is MemoryError)
    assert (reply._plans(one) is kept) == (error is not MemoryError)
    capsys.readouterr()

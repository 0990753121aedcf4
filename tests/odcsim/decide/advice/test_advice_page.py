"""The page of an advice: the same sentence, every offer, and a front that nothing beats in time and money."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from odcsim import Trace
from odcsim.cli import main
from odcsim.decide.advice import reply
from odcsim.decide.advice.offers import advise
from odcsim.decide.advice.wish import Wish
from odcsim.plots.pareto import Priced, front, pareto
from odcsim.question import Question
from odcsim.show.pages.advice_page import write_advice

LENGTHS = np.minimum(np.random.default_rng(0).lognormal(7.3, 0.9, 500), 8192).astype(np.int64) + 1
ASKED = Question(trace=Trace("<chat>", LENGTHS), model="qwen2.5-1.5b", global_batch=32, epochs=3, minibatches=96)
WISH = Wish(ASKED, ("h100", "a100"), (4, 8), {"h100": 2.5, "a100": 1.3})
POINTS = st.lists(st.builds(Priced, st.just("p"), *[st.integers(1, 9)] * 2, st.just(0.9), st.just(1.1)), min_size=1)


@given(POINTS)
def test_nothing_beats_the_front_and_the_front_beats_the_rest(points):
    best = front(points)
    for point in best:
        assert not any(p.seconds <= point.seconds and p.spent < point.spent for p in points)
        assert not any(p.seconds < point.seconds and p.spent <= point.spent for p in points)
    for point in points:
        assert any(p.seconds <= point.seconds and p.spent <= point.spent for p in best)


def picture(deadline, budget, *spent):
    """Two offers of two hours and two and a half."""
    points = [Priced("8 x a", 7200, spent[0], 0.9, 1.2, taken=True), Priced("9 x b", 9000, spent[1], 0.9, 1.2)]
    return pareto(points, "dollars", deadline=deadline, budget=budget)


def test_the_picture_has_every_offer_and_both_ends():
    drawn = picture(10_800, 60, 40, 50)
    marks = [trace for trace in drawn.data if trace.mode == "markers+text"]
    assert [list(trace.x) for trace in marks] == [[2.0], [2.5]]
    assert marks[0].error_y.array[0] == pytest.approx(8)
    lines = {trace.name: trace for trace in drawn.data if trace.mode == "lines"}
    assert set(lines["deadline"].x) == {3.0}
    assert set(lines["budget"].y) == {60}
    assert "beyond" not in drawn.layout.title.subtitle.text


def test_who_asks_for_much_more_moves_no_offer_together():
    """Offers take most of the picture, whatever deadline and budget are; a limit that is far from them is told."""
    near, far = picture(None, None, 40, 50), picture(360_000, 9_000, 40, 50)
    assert far.layout.xaxis.range == near.layout.xaxis.range
    assert far.layout.yaxis.range == near.layout.yaxis.range
    assert {trace.name for trace in far.data} == {trace.name for trace in near.data}
    assert far.layout.title.subtitle.text.endswith(
        "; beyond the axes: the deadline, 100 h 00 min and the budget, 9,000 dollars"
    )
    assert picture(60, None, 40, 50).layout.title.subtitle.text.endswith("the deadline, 60 s")


def test_what_costs_nothing_can_be_drawn():
    drawn = picture(None, None, 0, 0)
    assert drawn.layout.yaxis.type == "linear"
    assert drawn.layout.xaxis.type == "log"


def test_the_page_says_what_the_command_says(tmp_path):
    advice = advise(replace(WISH, question=replace(ASKED, minibatches=6)))
    write_advice(advice, tmp_path / "a.html")
    text = (tmp_path / "a.html").read_text(encoding="utf-8")
    for name in ["4 x h100", "8 x h100", "4 x a100", "8 x a100"]:
        assert f'<th scope="row">{name}</th>' in text
    assert reply.sentences(advice)[0] in text
    assert "<chat>" not in text
    assert text.count('class="best"') == 1
    assert text.count('<table class="told">') == 1


def test_the_command_writes_it_and_csv_has_the_figures_of_json(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lengths.csv").write_text("length\n" + "\n".join(map(str, LENGTHS)))
    args = "advise lengths.csv --model qwen2.5-1.5b --gpus h100 --devices 4,8 --global-batch 32 --minibatches 4".split()
    assert main([*args, "--csv", "--html", "a.html"]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert (tmp_path / "a.html").stat().st_size > 10_000
    assert main([*args, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert head.split(",") == list(rows[0])
    assert [line.split(",")[2] for line in lines] == [repr(row["seconds"]) for row in rows]


COMPARE = "compare lengths.csv --model qwen2.5-1.5b --gpu h100 --devices 4 --minibatches 4 --price 2".split()


def test_compare_takes_epochs_and_a_global_batch(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lengths.csv").write_text("length\n" + "\n".join(map(str, LENGTHS)))
    assert main([*COMPARE, "--global-batch", "16", "--epochs", "2", "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["inputs"]["minibatch"] == 4
    run = content["run"]
    assert (run["steps"], run["global_batch"]) == (63, 16)
    for row, whole in zip(content["rows"], run["rows"], strict=True):
        assert whole["seconds"] == pytest.approx(row["makespan_seconds"] / 4 * 63)
        assert whole["dollars"] == pytest.approx(whole["seconds"] / 3600 * 4 * 2)
    assert main([*COMPARE, "--minibatch", "4", "--epochs", "1"]) == 0
    assert "\n1 epoch is 32 steps of 16 samples: " in capsys.readouterr().out
    assert main([*COMPARE, "--minibatch", "4", "--epochs", "2"]) == 0
    assert re.search(r"^2 epochs are 63 steps of 16 samples: .* and \$", capsys.readouterr().out, re.MULTILINE)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--global-batch", "18"], "--global-batch 18 does not divide by 4 devices; give a multiple of 4, such as 20"),
        (["--global-batch", "16", "--minibatch", "4"], "not allowed with"),
        ([], "one of the arguments --minibatch --global-batch is required"),
        (["--minibatch", "4", "--epochs", "0"], "argument --epochs: '0' is not a number above 0"),
    ],
)
def test_a_mistake_about_them_is_one_line(more, words, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lengths.csv").write_text("length\n" + "\n".join(map(str, LENGTHS)))
    try:
        code = main([*COMPARE, *more])
    except SystemExit as stopped:
        code = stopped.code
    printed = capsys.readouterr()
    assert code == 2
    assert words in printed.err

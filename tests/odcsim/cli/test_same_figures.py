"""Terminal, page, JSON and CSV of one question give the same figures, whatever else was asked for."""

import csv
import html
import io
import json
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from odcsim.cli import main
from odcsim.decide.answer_words import money
from odcsim.support import tables

ASKED = "compare lognormal:median=3000,sigma=1,max=16000 --model qwen3-0.6b --gpu a100 --devices 2 --minibatch 4"
FEW = "--max-tokens 16000 --minibatches 5"
MORE = st.fixed_dictionaries(
    {},
    optional={
        "--price": st.sampled_from(["2", "$0.5"]),
        "--epochs": st.sampled_from(["0.5", "3"]),
        "--sweep-max-tokens": st.just("16000,32000"),
        "--seed": st.sampled_from(["1", "2"]),
        **{flag: st.none() for flag in ("--field", "--whole", "--in-order", "--no-recompute", "--memory")},
    },
)


def text_of(page):
    plain = re.sub(r"<(style|script).*?</\1>", " ", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    return " ".join(html.unescape(re.sub("<[^>]+>", " ", plain)).split())


def printed(capsys, *argv):
    assert main(list(map(str, argv))) == 0
    return capsys.readouterr().out


ALL = {"--epochs": "3", "--price": "2", "--sweep-max-tokens": "16000"}


def test_a_comparison_says_the_same_wherever_it_is_read(tmp_path, capsys):
    says_the_same(tmp_path, capsys, ALL)


@pytest.mark.slow
@settings(max_examples=4, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(more=MORE)
def test_a_comparison_says_the_same_whatever_is_asked(tmp_path, capsys, more):
    says_the_same(tmp_path, capsys, more)


def says_the_same(tmp_path, capsys, more):
    def flat(part):
        runs = part.get("run")
        for i, row in enumerate(part["rows"]):
            spent = {"run": {"steps": runs["steps"], **runs["rows"][i]}} if runs else {}
            at = {"max_tokens": part["max_tokens"] if "max_tokens" in part else part["inputs"]["max_tokens"]}
            yield tables.flat({**at, **row, **spent})

    asked = [*ASKED.split(), *FEW.split(), *(word for pair in more.items() for word in pair if word is not None)]
    page = tmp_path / "a.html"
    terminal = printed(capsys, *asked, "--html", page)
    told = json.loads(printed(capsys, *asked, "--json"))
    lines = list(csv.DictReader(io.StringIO(printed(capsys, *asked, "--csv"))))
    shown = text_of(page)
    for line in terminal.splitlines():
        if re.match(r"(Yes|No|Devices|Seconds|Lengths|Splitting)\b|[\d.]+ epochs", line):
            assert line in shown
    names = [name for name in tables.names(flat(told)) if name != "run.row"]
    rows = [row for part in (told, *told.get("sweep", ())) for row in flat(part)]
    assert lines == [{name: "" if row.get(name) is None else str(row[name]) for name in names} for row in rows]
    run = re.search(r"epochs? are ([\d,]+) steps .*? under (\S+ \+ [\w-]+)", terminal)
    assert bool(run) == ("--epochs" in more) == ("run" in told)
    if run:
        whole = next(row for row in told["run"]["rows"] if row["row"] == run[2])
        assert int(run[1].replace(",", "")) == told["run"]["steps"]
        assert f"for {told['run']['steps']:,} optimizer steps" in shown
        if "--price" in more:
            paid = money(whole["dollars"])
            assert f"and {paid} under {run[2]}" in terminal
            assert f"{paid} for {run[1]} optimizer steps" in shown


@pytest.mark.parametrize("model", [pytest.param("qwen3-0.6b", marks=pytest.mark.slow), "qwen2.5-32b"])
def test_break_even_says_the_same_wherever_it_is_read(tmp_path, capsys, model):
    """Also that nothing fits, and what would."""
    asked = f"break-even lognormal:median=3000,sigma=1,max=16000 --model {model} --gpu a100 --devices 2 --minibatch 2"
    page = tmp_path / "a.html"
    terminal = printed(capsys, *asked.split(), "--max-tokens", "16000", "--html", page)
    told = json.loads(printed(capsys, *asked.split(), "--max-tokens", "16000", "--json"))
    shown = text_of(page)
    for line in terminal.splitlines():
        if re.match("It pays|Balanced by|Out of memory|On-demand", line):
            assert line in shown
    assert bool(told["ways_out"]) == ("Out of memory: what you ask about does not fit." in terminal)
    assert all(way in terminal for way in told["ways_out"])

"""Terminal, page, JSON and CSV of one question give the same figures, whatever else was asked for: dollars, hours and
seconds of a row are of one run, and its intervals are one interval."""

import csv
import html
import io
import json
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from odcsim.cli import main
from odcsim.show.explore.controls import read_link
from odcsim.show.explore.reply import reply
from odcsim.support.numbers import dollars, duration, from_to, hours, money, ratio

ASKED = "compare lognormal:median=3000,sigma=1,max=16000 --model qwen3-0.6b --gpu a100 --devices 2 --minibatch 4"
ASKED += " --max-tokens 16000 --minibatches 5"
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


def test_a_comparison_says_the_same_wherever_it_is_read(tmp_path, capsys):
    says_the_same(tmp_path, capsys, {"--epochs": "3", "--price": "2", "--sweep-max-tokens": "16000"})


@pytest.mark.slow
@settings(max_examples=4, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(more=MORE)
def test_a_comparison_says_the_same_whatever_is_asked(tmp_path, capsys, more):
    says_the_same(tmp_path, capsys, more)


def says_the_same(tmp_path, capsys, more):
    asked = [*ASKED.split(), *(word for pair in more.items() for word in pair if word is not None)]
    page = tmp_path / "a.html"
    terminal = printed(capsys, *asked, "--html", page)
    told = json.loads(printed(capsys, *asked, "--json"))
    lines = list(csv.DictReader(io.StringIO(printed(capsys, *asked, "--csv"))))
    shown = text_of(page)
    for line in terminal.splitlines():
        if re.match(r"(Yes|No|Devices|Seconds|Lengths|Splitting)\b|[\d.]+ epochs", line):
            assert line in shown
    parts = [(told["inputs"]["max_tokens"], told["rows"])]
    parts += [(part["max_tokens"], part["rows"]) for part in told.get("sweep", ())]
    expected = [(f"{limit}", f"{row['makespan_seconds']}") for limit, rows in parts for row in rows]
    assert [(line["max_tokens"], line["makespan_seconds"]) for line in lines] == expected
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


# One basis

TEXTS = (duration, hours, dollars, money, ratio)
UNITS = {"h": 3600, "min": 60, "s": 1, "": 1}
FIGURE = r"\$?\d[\d,]*(?:\.\d+)?(?: h \d\d min| min \d\d s| min| s| h)?"


def read(figure):
    """A printed figure in seconds, dollars or as it is, and half of its last digit."""
    parts = re.findall(r"([\d.,]+)(?: (h|min|s)\b)?", figure.replace(",", ""))
    last, unit = parts[-1]
    half = 0.5 * 10.0 ** -len(last.partition(".")[2])
    return sum(float(number) * UNITS[name] for number, name in parts), half * UNITS[unit]


def scales(low, high):
    """From 10^low to 10^high, every decade as likely."""
    return st.floats(low, high).map(lambda power: 10.0**power)


@given(scales(-3, 6), scales(-6, 0.5))
def test_the_ends_of_an_interval_never_read_alike(low, off):
    for text in TEXTS:
        ends = from_to(low, low * (1 + off), text).split(" to ")
        assert len(ends) == len(set(ends))
        assert len(ends) == 2 or off < 0.01 or (text is ratio and low * off < 1e-4)


@given(scales(-2, 7), scales(-9, 7))
def test_a_time_is_told_to_five_percent_and_dollars_are_never_rounded_to_nothing(seconds, paid):
    assert read(duration(seconds))[0] == pytest.approx(seconds, rel=0.05)
    assert read(money(paid))[0] == pytest.approx(paid, rel=0.056)


def rows_of(page):
    """Every row of every table, with its heads."""
    for table in re.findall(r"<table.*?</table>", page, re.DOTALL):
        head, *rows = [re.findall(r"<t[hd].*?>(.*?)</t[hd]>", row) for row in re.findall(r"<tr.*?</tr>", table)]
        yield from ((head, row) for row in rows)


def without_levers(text):
    """Which are other questions' figures."""
    return re.sub(r"Cheaper: .*?times the cost\)\.|change\s+dollars.*?Each changes", "", text, flags=re.DOTALL)


def no_ends_alike(text):
    found = re.findall(rf"(?<![\w.,$])({FIGURE})(?: to | - )({FIGURE})(?![\w])", text)
    assert found
    assert [ends for ends in found if ends[0] == ends[1]] == []


def all_dollars(text, known):
    """Every amount with a $ is one of these, as finely as it is printed."""
    paid = re.findall(r"\$\d[\d,]*(?:\.\d+)?", text)
    assert paid
    for figure in paid:
        value, half = read(figure)
        assert any(abs(value - one) <= 1.01 * half for one in known), figure


def one_interval(text, times):
    """Every interval in brackets behind its middle is `times` that."""
    seen = 0
    bracket = rf"\((?:90 % interval )?({FIGURE}) to ({FIGURE})(?:, ({FIGURE}) to ({FIGURE}))?\)"
    middle = rf"({FIGURE})(?: and ({FIGURE}))?(?: GPU-hours)?(?: under \S+ \+ \S+)? {bracket}"
    for first, second, *ends in re.findall(middle, text):
        for mid, pair in ((first, ends[:2]), (second, ends[2:])):
            if mid and all(pair):
                (value, half), seen = read(mid), seen + 1
                for end, factor in zip(pair, times, strict=True):
                    at, off = read(end)
                    assert abs(at - factor * value) <= 1.01 * (off + factor * half), (mid, pair, times)
    for ends in re.findall(r"interval is ([\d.]+) to ([\d.]+) times these seconds", text):
        assert [float(end) for end in ends] == pytest.approx(times, abs=0.006)
        seen += 1
    assert seen


LENGTHS = "lognormal:median=3000,sigma=1,max=16000,samples=3000"
COMPARE = f"compare {LENGTHS} --model qwen3-0.6b --gpu a100 --devices 2 --minibatch 4 --minibatches 5 --price 2"
QUESTIONS = {
    "minibatches": f"{COMPARE} --max-tokens 16000",
    "a run": f"{COMPARE} --max-tokens 16000 --epochs 3",
    "a run, wide": f"{COMPARE} --max-tokens 16000 --epochs 2 --wide",
    "a trainer's run": f"{COMPARE} --epochs 2 --trainer trl",
}


@pytest.mark.parametrize("asked", QUESTIONS.values(), ids=QUESTIONS)
def test_a_comparison_has_one_basis(asked, tmp_path, capsys):
    words = asked.split()
    told = json.loads(printed(capsys, *[w for w in words if w != "--wide"], "--json"))
    run = told.get("run")
    rows = {f"{row['sync']} + {row['balancer']}": row for row in told["rows"]}
    spent = {one["row"]: one for one in run["rows"]} if run else rows
    known = [one[name] for one in spent.values() for name in ("dollars", "dollars_low", "dollars_high")]
    page = tmp_path / "a.html"
    terminal = printed(capsys, *words, "--html", page)
    for text in map(without_levers, (terminal, text_of(page))):
        no_ends_alike(text)
        all_dollars(text, known)
        best = max(spent, key=lambda name: f"under {name} (" in text or f"under {name} all" in text)
        names = ("seconds", "seconds_low", "seconds_high") if run else ("makespan_seconds", "model_low", "model_high")
        seconds, low, high = (spent[best][name] for name in names)
        one_interval(text, (low / seconds, high / seconds))
        assert (run or told)["basis"] in text
    shown = [(head, cells) for head, cells in rows_of(page.read_text(encoding="utf-8")) if "dollars" in head]
    shown = [(head, cells) for head, cells in shown if head[0] != "change"]
    assert {cells[0] for _, cells in shown} == set(spent)
    for head, cells in shown:
        assert cells[head.index("dollars")] == dollars(spent[cells[0]]["dollars"])
    head, *lines = [
        line.split() for line in terminal.splitlines() if re.match(r" *[\w-]+ +(sync|collective|on-d)", line)
    ]
    for balancer, sync, *cells in lines if "--wide" not in words else ():
        assert cells[2] == dollars(spent[f"{sync} + {balancer}"]["dollars"])
    assert head[:4] == ["balancer", "sync", "idle", "dollars"] or "--wide" in words
    assert lines


def test_a_page_of_the_explorer_has_one_basis():
    """So has what a notebook shows of the same comparison."""
    found = reply(read_link(f"?trace={LENGTHS}&model=qwen3-0.6b&gpu=a100&devices=2&epochs=3&price=2&room=2"))
    spent = {row["row"]: row for row in found.comparison.as_json()["run"]["rows"]}
    text = "\n".join([*found.advice, found.verdict])
    all_dollars(text, [row[name] for row in spent.values() for name in ("dollars", "dollars_low", "dollars_high")])
    no_ends_alike(text)
    row = spent[found.chosen]
    one_interval(text, [row[f"seconds_{end}"] / row["seconds"] for end in ("low", "high")])
    head, cells = found.table
    assert [cell[head.index("dollars")] for cell in cells] == [dollars(spent[cell[0]]["dollars"]) for cell in cells]
    shown = [cells[head.index("dollars")] for head, cells in rows_of(found.comparison._repr_html_())]
    assert set(shown) == {dollars(row["dollars"]) for row in spent.values()}


@pytest.mark.parametrize("more", ["", "--price a100=2,h100=3"])
def test_an_advice_has_one_basis(more, tmp_path, capsys):
    words = f"advise {LENGTHS} --model qwen3-0.6b --gpus a100,h100 --devices 2 --global-batch 16 --minibatches 4 {more}"
    told, page = json.loads(printed(capsys, *words.split(), "--json")), tmp_path / "a.html"
    first = told["rows"][0]
    for text in (printed(capsys, *words.split(), "--html", page), text_of(page)):
        no_ends_alike(text)
        if more:
            names = ("dollars", "dollars_low", "dollars_high")
            rent, _, _ = text.partition("What would change the answer")  # names a price of an hour
            all_dollars(rent, [row[name] for row in told["rows"] for name in names])
        one_interval(text, (first["seconds_low"] / first["seconds"], first["seconds_high"] / first["seconds"]))
    assert told["basis"] == "the whole run, 1 epoch"


@pytest.mark.parametrize("generation", ["0", "100", "3h"])
def test_a_step_of_rl_has_one_basis(generation, capsys):
    words = f"rl {LENGTHS} --model qwen3-0.6b --gpu a100 --devices 2 --prompts 4 --rollouts 4 --steps 4 --price 2"
    words = [*words.split(), "--generation-seconds", generation]
    told, text = json.loads(printed(capsys, *words, "--json")), printed(capsys, *words)
    no_ends_alike(text)
    all_dollars(text, [row[name] for row in told["rows"] for name in ("dollars", "dollars_low", "dollars_high")])
    way = re.search(r"^A step takes .* under (\S+) \+ (\S+) \(", text, re.M)
    row = next(row for row in told["rows"] if (row["sync"], row["balancer"]) == way.groups())
    one_interval(text, [row[f"step_seconds_{end}"] / row["step_seconds"] for end in ("low", "high")])
    assert told["basis"] == "one step, on average"
    assert "figures are of one step" in text

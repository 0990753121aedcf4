"""What a trainer runs by itself has one answer at every door."""

import csv
import io
import json

import pytest
from ways_in import beside_files, said

import odcsim
from odcsim.decide import stock
from odcsim.show.explore.heard import linked
from odcsim.show.explore.reply import reply

TRACE = "lognormal:median=400,sigma=1,max=4096,samples=900"
ASKED = {"model": "qwen3-0.6b", "gpu": "h100", "devices": 4, "minibatch": 16, "minibatches": 8}
WORDS = [word for name, value in ASKED.items() for word in (f"--{name}", f"{value}")]


@pytest.fixture(scope="module", autouse=True)
def folder():
    with beside_files() as path:
        yield path


@pytest.fixture(scope="module", params=stock.NAMES)
def told(request):
    out, refused = said(["compare", TRACE, *WORDS, "--trainer", request.param, "--epochs", "2", "--json"])
    assert not refused
    return json.loads(out)


def own(rows):
    return {(row["balancer"], row["sync"]): row for row in rows if row.get("made")}


def test_python_says_what_the_command_says(told):
    trainer = told["inputs"]["trainer"]
    found = odcsim.compare(odcsim.ask(TRACE, **ASKED, trainer=trainer, epochs=2)).as_json()
    assert json.loads(json.dumps(found)) == told
    assert bool(own(told["rows"])) == (trainer != stock.ENGINE)


def test_csv_has_the_rows(told):
    out, _ = said(["compare", TRACE, *WORDS, "--trainer", told["inputs"]["trainer"], "--epochs", "2", "--csv"])
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [row["balancer"] for row in rows] == [row["balancer"] for row in told["rows"]]
    for row, spent in zip(rows, told["run"]["rows"], strict=True):
        assert float(row["run.gpu_hours"]) == spent["gpu_hours"]
        assert int(row["run.steps"]) == spent["steps"]
    for row, made in zip(rows, (row.get("made") for row in told["rows"]), strict=True):
        assert int(row["max_tokens"]) == (made or told["inputs"])["max_tokens"]


def test_steps_and_samples_of_a_run_are_each_rows_own(told):
    spent = {one["row"]: one for one in told["run"]["rows"]}
    for (balancer, sync), row in own(told["rows"]).items():
        run = spent[f"{sync} + {balancer}"]
        assert run["samples"] == row["made"]["samples"]
        assert run["steps"] * run["samples"] == pytest.approx(2 * 900, rel=0.1)


def test_a_sweep_has_the_rows(told):
    trainer = told["inputs"]["trainer"]
    rows = odcsim.sweep({"trace": TRACE, **ASKED, "trainer": trainer, "epochs": 2})
    found = {(row["balancer"], row["sync"]): row for row in rows}
    assert set(found) == {(row["balancer"], row["sync"]) for row in told["rows"]}
    for pair, row in own(told["rows"]).items():
        assert found[pair]["gpu_hours"] == row["gpu_hours"]
        assert found[pair]["made.samples"] == row["made"]["samples"]
        assert found[pair]["max_tokens"] == row["made"]["max_tokens"]


def test_the_explorer_has_the_rows(told):
    words = "&".join(f"{name}={value}" for name, value in ASKED.items())
    found = reply(linked(f"?trace={TRACE.replace('=', '%3D')}&{words}&trainer={told['inputs']['trainer']}"))
    rows = {row.pair: row for row in found.comparison.rows}
    for pair, row in own(told["rows"]).items():
        assert rows[pair].gpu_hours == row["gpu_hours"]


def test_an_advice_prices_its_way_as_a_comparison_does_in_so_many_tokens(told):
    """With the recompute and the limit that it chose, for as many epochs."""
    trainer = told["inputs"]["trainer"]
    words = [TRACE, "--model", "qwen3-0.6b", "--minibatches", "8", "--trainer", trainer, "--epochs", "2"]
    out, _ = said(["advise", *words, "--gpus", "h100", "--devices", "4", "--global-batch", "64", "--json"])
    [row] = json.loads(out)["rows"]
    if "made" not in row:
        assert trainer == stock.ENGINE
        return
    again = ["--no-recompute"] if not row["recompute"] else ["--selective", row["selective"]]
    limit = [] if row["made"]["each"] else ["--max-tokens", f"{row['made']['max_tokens']}"]
    out, refused = said(
        ["compare", *words, *again, *limit, "--gpu", "h100", "--devices", "4", "--global-batch", "64", "--json"]
    )
    assert not refused
    compared = json.loads(out)
    spent = {one["row"]: one for one in compared["run"]["rows"]}[f"{row['sync']} + {row['balancer']}"]
    assert own(compared["rows"])[row["balancer"], row["sync"]]["made"] == row["made"]
    assert spent["gpu_hours"] == pytest.approx(row["gpu_hours"], rel=1e-9)
    assert (spent["steps"], spent["samples"]) == (row["steps"], row["samples"])


def test_json_of_an_advice_has_what_is_said_of_the_engine():
    asked = {"gpus": "h100", "devices": 8, "global_batch": 64, "minibatches": 8}
    found = odcsim.advise("longalign", "qwen3-0.6b", **asked, trainer="trl")
    [row], words = found.as_json()["rows"], " ".join(found.sentences())
    assert f"{row['steps']:,} steps of {row['samples']:,.0f} samples" in words
    assert len(row["with_engine"]) == 2
    assert all(f"{name} {gain:.2f} times" in words for name, gain in row["with_engine"].items())
    assert "steps" not in found.as_json()["inputs"]
    alone = odcsim.advise("longalign", "qwen3-0.6b", **asked).as_json()
    assert alone["inputs"]["steps"] == alone["rows"][0]["steps"]
    assert "with_engine" not in alone["rows"][0]

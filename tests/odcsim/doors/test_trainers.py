"""What a trainer runs by itself has one answer at every door."""

import csv
import io
import json

import pytest
from ways_in import beside_files, said
from ways_in import told as of

import odcsim
from odcsim.decide import stock
from odcsim.show.explore.controls import read_link
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
    return of(["compare", TRACE, *WORDS, "--trainer", request.param, "--epochs", "2"])


def own(rows):
    return {(row["balancer"], row["sync"]): row for row in rows if row.get("made")}


@pytest.mark.drawn(3)
def test_every_door_has_the_rows(told):
    trainer, pairs = told["inputs"]["trainer"], {(row["balancer"], row["sync"]): row for row in told["rows"]}
    assert bool(own(told["rows"])) == (trainer != stock.ENGINE)
    more = {"trainer": trainer, "epochs": 2}
    assert json.loads(json.dumps(odcsim.compare(odcsim.ask(TRACE, **ASKED, **more)).as_json())) == told
    out, _ = said(["compare", TRACE, *WORDS, "--trainer", trainer, "--epochs", "2", "--csv"])
    by_csv = list(csv.DictReader(io.StringIO(out)))
    swept = {(r["balancer"], r["sync"]): r for r in odcsim.sweep({"trace": TRACE, **ASKED, **more})}
    words = "&".join(f"{name}={value}" for name, value in ASKED.items())
    page = reply(read_link(f"?trace={TRACE.replace('=', '%3D')}&{words}&trainer={trainer}"))
    explored = {row.pair: row for row in page.comparison.rows}
    assert [(row["balancer"], row["sync"]) for row in by_csv] == list(pairs)
    assert set(swept) == set(pairs)
    for (pair, row), line, spent in zip(pairs.items(), by_csv, told["run"]["rows"], strict=True):
        assert (float(line["run.gpu_hours"]), int(line["run.steps"])) == (spent["gpu_hours"], spent["steps"])
        assert int(line["max_tokens"]) == (row.get("made") or told["inputs"])["max_tokens"]
        if made := row.get("made"):
            assert swept[pair]["gpu_hours"] == explored[pair].gpu_hours == row["gpu_hours"]
            assert (swept[pair]["made.samples"], swept[pair]["max_tokens"]) == (made["samples"], made["max_tokens"])
            assert spent["samples"] == made["samples"]
            assert spent["steps"] * spent["samples"] == pytest.approx(2 * 900, rel=0.1)


@pytest.mark.drawn(3)
def test_an_advice_prices_its_way_as_a_comparison_does_in_so_many_tokens(told):
    """With the recompute and the limit that it chose, for as many epochs."""
    trainer = told["inputs"]["trainer"]
    words = f"{TRACE} --model qwen3-0.6b --minibatches 8 --trainer {trainer} --epochs 2 --devices 4 --global-batch 64"
    [row] = of(["advise", *words.split(), "--gpus", "h100"])["rows"]
    if "made" not in row:
        assert trainer == stock.ENGINE
        return
    again = ["--no-recompute"] if not row["recompute"] else ["--selective", row["selective"]]
    limit = [] if row["made"]["each"] else ["--max-tokens", f"{row['made']['max_tokens']}"]
    compared = of(["compare", *words.split(), *again, *limit, "--gpu", "h100"])
    spent = {one["row"]: one for one in compared["run"]["rows"]}[f"{row['sync']} + {row['balancer']}"]
    assert own(compared["rows"])[row["balancer"], row["sync"]]["made"] == row["made"]
    assert spent["gpu_hours"] == pytest.approx(row["gpu_hours"], rel=1e-9)
    assert (spent["steps"], spent["samples"]) == (row["steps"], row["samples"])


def test_json_of_an_advice_has_what_is_said_of_the_engine():
    asked = {"gpus": "h100", "devices": 8, "global_batch": 64, "minibatches": 8}
    found, alone = (odcsim.advise("longalign", "qwen3-0.6b", **asked, **more) for more in ({"trainer": "trl"}, {}))
    [row], words = found.as_json()["rows"], " ".join(found.sentences())
    assert len(row["with_engine"]) == 2
    assert all(f"{gain:.2f}" in words for gain in row["with_engine"].values())
    assert f"{row['steps']:,}" in words
    assert "steps" not in found.as_json()["inputs"]
    assert alone.as_json()["inputs"]["steps"] == alone.as_json()["rows"][0]["steps"]
    assert "with_engine" not in alone.as_json()["rows"][0]

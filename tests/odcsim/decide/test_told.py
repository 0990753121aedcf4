"""What results tell of themselves: records that a table is made of, one line, a small table with the verdict."""

import csv
import io
import json

import numpy as np
import pytest

import odcsim
from odcsim.cli import main
from odcsim.decide import answer, answer_words
from odcsim.support import tables

NAME = "<script>alert(1)</script>"
LENGTHS = np.minimum(np.random.default_rng(0).lognormal(7.3, 0.9, 300), 8192).astype(np.int64) + 1
TRACE = odcsim.Trace(NAME, LENGTHS, origin="made & counted")
ASKED = {"gpu": "a100", "devices": 2, "minibatch": 4, "minibatches": 4, "max_tokens": 9000}


def compared(**words):
    return odcsim.compare(odcsim.ask(TRACE, "qwen3-0.6b", **ASKED, **words))


@pytest.fixture(scope="module", params=[{}, {"price": 2.0, "epochs": 3}], ids=["plain", "priced"])
def comparison(request):
    return compared(**request.param)


@pytest.fixture(scope="module")
def advice():
    return odcsim.advise(
        TRACE, "qwen3-0.6b", gpus=["h100", "a100"], devices=[3, 4], global_batch=16, minibatches=3, price=2.0
    )


def test_records_are_flat_and_hold_every_figure_of_the_rows(comparison):
    records = comparison.records()
    assert len(records) == len(comparison.rows)
    for one, row in zip(records, comparison.rows, strict=True):
        assert tables.flat(row.as_json()).items() <= one.items()
        assert one["max_tokens"] == comparison.setting.limit
        assert not any(isinstance(value, dict | list | tuple) for value in one.values())
    told = comparison.as_json()
    assert ("run.steps" in records[0]) == ("run" in told) == (comparison.setting.epochs is not None)
    if "run" in told:
        assert [one["run.dollars"] for one in records] == [row["dollars"] for row in told["run"]["rows"]]


@pytest.mark.parametrize("words", [[], ["--price", "2", "--epochs", "3"]])
def test_the_command_prints_what_python_has(tmp_path, capsys, words):
    file = tmp_path / "lengths.csv"
    file.write_text("length\n" + "\n".join(map(str, LENGTHS)) + "\n")
    flags = [word for name, value in ASKED.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    line = ["compare", str(file), "--model", "qwen3-0.6b", *flags, *words]
    asked = {"price": 2.0, "epochs": 3.0} if words else {}
    found = odcsim.compare(odcsim.ask(file, "qwen3-0.6b", **ASKED, **asked))
    assert main([*line, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(found.as_json()))
    assert main([*line, "--csv"]) == 0
    printed = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    texts = [{k: "" if v is None else str(v) for k, v in one.items()} for one in found.records()]
    assert printed == texts
    assert main(line) == 0
    printed = capsys.readouterr().out
    assert all(sentence in printed for sentence in found.sentences())


def test_a_comparison_is_shown_with_its_verdict(comparison):
    assert repr(comparison).startswith(f"<Comparison: qwen3-0.6b on 2 x a100, {NAME}: ")
    said = answer_words.verdict(answer.answer(comparison))
    assert said.split(". ")[0].rstrip(".") in repr(comparison)
    shown = comparison._repr_html_()
    assert "<script>" not in shown
    assert f"<b>{said}</b>" in shown
    assert shown.count("<tr>") == 1 + len(comparison.rows)


def test_a_comparison_without_on_demand_has_rows_and_no_verdict(comparison):
    few = odcsim.compare(comparison.setting, among=[("lb-micro", "collective")])
    assert repr(few) == f"<Comparison: qwen3-0.6b on 2 x a100, {NAME}>"
    assert few._repr_html_().count("<tr>") == 2


def test_an_advice_is_shown_with_what_to_rent(advice):
    assert repr(advice).startswith(f"<Advice: qwen3-0.6b, {NAME}: Rent ")
    assert advice.records() == [tables.flat(row) for row in advice.as_json()["rows"]]
    shown = advice._repr_html_()
    assert shown.count("<tr>") == 1 + len(advice.offers) + len(advice.refused) == 5
    assert "do not divide by 3 devices; global_batch=15 does" in shown
    assert "<script>" not in shown


def test_an_advice_of_nothing_that_runs_is_shown():
    none = odcsim.advise(TRACE, "llama-3.1-70b", gpus="a100", devices=2, global_batch=16, minibatches=2)
    assert "None of these can run" in repr(none)
    assert none.records() == []
    assert none._repr_html_().count("<tr>") == 2


def test_settings_and_lengths_are_shown_in_short(comparison):
    setting = comparison.setting
    size = "4 samples per device and step, at most 9,000 tokens in a microbatch"
    assert repr(setting) == f"<Setting: qwen3-0.6b on 2 x a100, {NAME}, {size}>"
    assert repr(setting.trace).startswith(f"<Trace: {NAME}, 300 samples of ")
    assert "made &amp; counted" in setting.trace._repr_html_()
    assert "<script>" not in setting._repr_html_() + setting.trace._repr_html_()

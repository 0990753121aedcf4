"""Answers asked in Python: what the command says, their records, what they show in short, and what they refuse."""

import json
import re
from math import inf

import numpy as np
import pytest

import odcsim
from odcsim.cli import main
from odcsim.decide.decision import NOTABLE
from odcsim.support import tables

RNG = np.random.default_rng(5)
LENGTHS = np.minimum(RNG.lognormal(7.0, 0.8, 200), 6000).astype(np.int64) + 1
GROUPS = np.repeat(np.arange(50), 4)
NAME = "<script>alert(1)</script>"
TRACE = odcsim.Trace(NAME, LENGTHS, group=GROUPS, origin="made & counted")
MODEL = "qwen3-0.6b"
USUAL = {
    "compare": {"gpu": "a100", "devices": 2, "minibatch": 4, "minibatches": 2, "max_tokens": 9000},
    "advise": {"gpus": ["h100"], "devices": [3, 4], "global_batch": 16, "minibatches": 3},
    "break-even": {"gpu": "a100", "devices": 1, "minibatch": 2, "max_tokens": 6001},
    "rl": {"gpu": "h100", "devices": 2, "prompts": 8, "rollouts": 4, "steps": 2, "max_tokens": 8000},
}
DOORS = {"advise": odcsim.advise, "break-even": odcsim.break_even, "rl": odcsim.rl}
DOORS["compare"] = lambda trace, model, **words: odcsim.compare(odcsim.ask(trace, model, **words))
MORE = [
    ("compare", {"price": 2.0, "epochs": 3.0}),
    ("advise", {"price": {"h100": 2.5}, "gpus": ("h100",), "devices": "8,5", "deadline": "90s", "truncate": 4096}),
    ("advise", {"price": "h100=$2.5", "gpus": "h100", "deadline": 40, "epochs": 0.5, "trainer": "trl"}),
    ("advise", {"price": "2", "devices": 4, "in_order": True, "lora": 16}),
    ("break-even", {"recompute": "none", "seed": 1}),
    ("rl", {"updates": 2, "forward_passes": 0, "critic": True, "generation_seconds": "3min", "reshard": False}),
    ("rl", {"forward_passes": 3, "critic": False, "generation_seconds": 12.5, "recompute": "none"}),
]
WRONG = {  # beside what the approved texts show
    "advise": {
        "gpus": [[], "h10"], "devices": [0, [8, 8.5]], "global_batch": [None], "budget": [-1], "price": [-1, True],
        "offload": [3],
    },
    "break-even": {"devices": ["two", inf], "gpu": [None]},
    "rl": {"prompts": [0], "updates": [3], "generation_seconds": [-1], "gpu": [None], "devices": [0]},
}  # fmt: skip
WRONGS = [(door, name, value) for door, some in WRONG.items() for name, values in some.items() for value in values]
SPEC = "lognormal:median=900,sigma=0.5,max=4096"
ROWS = {"model": MODEL, "gpu": "h100"}
RUN = ROWS | {"trace": SPEC, "devices": 4, "minibatch": 8, "max_tokens": 8192, "minibatches": 20}
FITS = {
    "microbatches": ("microbatches.csv", ROWS | {"recompute": "none"}),
    "steps": ("steps.jsonl", RUN),
    "way": ("steps.jsonl", RUN | {"sync": "on-demand", "balancer": "lb-mini"}),
    "rate": (None, RUN | {"measured_tokens_per_second": 40_000.0}),
}


def flags(words):
    for name, value in words.items():
        flag = f"--{name.replace('_', '-')}"
        if name == "reshard":
            yield "--no-reshard"
        elif value is True:
            yield flag
        elif value is not False:
            if isinstance(value, dict):
                value = [f"{one}={of}" for one, of in value.items()]
            yield from (flag, ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value))


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("lengths") / "rollouts.csv"
    lines = (f"{length},{group}" for length, group in zip(LENGTHS, GROUPS, strict=True))
    path.write_text("length,group\n" + "\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def found():
    priced = {"compare": {"price": 2.0, "epochs": 3}, "advise": {"price": 2.0}, "rl": {"generation_seconds": 12.5}}
    return {door: DOORS[door](TRACE, MODEL, **USUAL[door], **priced.get(door, {})) for door in DOORS}


@pytest.mark.parametrize(("door", "words"), MORE)
def test_python_says_what_the_command_says(door, words, file, capsys):
    asked = USUAL[door] | words
    assert main([door, str(file), "--model", MODEL, *flags(asked), "--json"]) == 0
    answer = DOORS[door](file, MODEL, **asked)
    assert json.loads(json.dumps(answer.as_json())) == json.loads(capsys.readouterr().out)


def test_lengths_may_be_given_themselves(file):
    read, given_ = (odcsim.advise(trace, MODEL, **USUAL["advise"]) for trace in (file, LENGTHS.tolist()))
    assert [one.as_json() for one in given_.offers] == [one.as_json() for one in read.offers] != []


def test_records_hold_every_figure_of_the_rows(found):
    comparison, told = found["compare"], found["compare"].as_json()
    for one, row in zip(comparison.records(), comparison.rows, strict=True):
        assert tables.flat(row.as_json()).items() <= one.items()
        assert one["max_tokens"] == comparison.setting.limit
    assert [one["run.dollars"] for one in comparison.records()] == [row["dollars"] for row in told["run"]["rows"]]
    assert found["advise"].records() == [tables.flat(row) for row in found["advise"].as_json()["rows"]]
    rl = found["rl"]
    assert rl.records() == rl.as_json()["rows"] == [rl.row(r["balancer"], r["sync"]).as_json() for r in rl.records()]
    curves = found["break-even"]
    assert len(curves.records()) == sum(len(curve.spots) for curve in curves.curves)
    for one in curves.records():
        assert (one["value"], one["lead"]) in [(s.value, s.lead) for s in curves.curve(one["changed"]).spots]
        assert one["pays"] == (None if one["lead"] is None else one["lead"] >= NOTABLE)
    assert {one["label"] for one in curves.records() if one["here"]} <= {curve.here for curve in curves.curves}
    for answer in found.values():
        assert not any(isinstance(value, dict | list | tuple) for one in answer.records() for value in one.values())


def test_answers_are_shown_in_short_and_of_nothing_that_runs_nothing_is_recorded(found):
    none = odcsim.advise(TRACE, "llama-3.1-70b", gpus="a100", devices=2, global_batch=16, minibatches=2)
    setting = found["compare"].setting
    for answer in [*found.values(), none]:
        assert "<script>" not in answer._repr_html_() + setting._repr_html_() + setting.trace._repr_html_()
    assert "made &amp; counted" in setting.trace._repr_html_()
    assert none.records() == []


@pytest.mark.parametrize(("door", "name", "value"), WRONGS)
def test_a_wrong_word_is_refused_in_one_line(door, name, value):
    with pytest.raises(odcsim.InputError) as refused:
        DOORS[door](TRACE, MODEL, **USUAL[door] | {name: value})
    assert "\n" not in str(refused.value)
    assert "--" not in re.sub(r"'odcsim [^']*'", "", str(refused.value))  # but in a command that helps


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    home, rng = tmp_path_factory.mktemp("measured"), np.random.default_rng(0)
    lines = ["lengths,seconds"]
    for a, b in rng.integers(100, 4000, (60, 2)).tolist():
        lines.append(f"{a};{b},{0.01 + 2e-5 * (a + b) + 1e-9 * (a * a + b * b)}")
    (home / "microbatches.csv").write_text("\n".join(lines) + "\n")
    seconds = rng.normal(0.9, 0.01, 30).tolist()
    steps = [json.dumps({"step": n, "seconds": s, "tokens": 32_000}) for n, s in enumerate(seconds, 1)]
    (home / "steps.jsonl").write_text("\n".join(steps) + "\n")
    return home


@pytest.mark.parametrize("case", FITS)
def test_a_fit_says_and_writes_what_the_command_does(case, folder, tmp_path, capsys):
    name, words = FITS[case]
    sources = [] if name is None else [str(folder / name)]
    mine, its = tmp_path / "mine.json", tmp_path / "its.json"
    assert main(["fit", *sources, *flags(words), "-o", str(its)]) == 0
    told = capsys.readouterr().out
    found = odcsim.fit(*sources, **words, output=mine)
    assert mine.read_bytes() == its.read_bytes()
    assert "\n".join([*found.sentences(), f"{its}: {found.profile.origin}\n"]) == told
    assert found._repr_html_().count("<p>") == 1 + len(found.lines)
    if case == "microbatches":
        asked = {"gpu": None, "profile": str(mine), "devices": 1, "minibatch": 2, "recompute": "none"}
        assert odcsim.ask([500, 700], MODEL, **asked).cost.profile == found.profile


def test_a_fit_takes_lengths_themselves_and_writes_nothing(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lengths = np.random.default_rng(2).integers(100, 4000, 500)
    assert odcsim.fit(folder / "steps.jsonl", **RUN | {"trace": lengths}).good
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("sources", "words"), [
    ([], {}), (3, {}), ("nowhere.csv", ROWS), ("nowhere.csv", {"trace": SPEC}), (".", {"trace": SPEC}),
    ([], {"measured_tokens_per_second": -1}), ("microbatches.csv", {}), ("microbatches.csv", ROWS | {"seed": 3}),
    ("microbatches.csv", ROWS | {"output": "microbatches.csv"}), ("steps.jsonl", {"model": MODEL}),
    ("steps.jsonl", {"measured_tokens_per_second": 5}), ("steps.jsonl", RUN | {"sync": "none"}),
    ("steps.jsonl", RUN | {"balancer": "lb-mni"}), ("steps.jsonl", RUN | {"devices": 0}),
    ("steps.jsonl", RUN | {"balancer": "lb-mini"}),  # whose counts are free
])  # fmt: skip
def test_what_cannot_be_fitted_is_refused_and_writes_nothing(folder, monkeypatch, sources, words):
    monkeypatch.chdir(folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(odcsim.InputError) as refused:
        odcsim.fit(sources, **{"output": "p.json", **words})
    assert "--" not in str(refused.value)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before

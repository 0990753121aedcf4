"""A profile fitted in Python: the words of the command, its file, and what it says."""

import inspect
import json

import numpy as np
import pytest

import odcsim
from odcsim.cli import main

RUN = {"gpu": "h100", "devices": 4, "minibatch": 8, "max_tokens": 8192, "minibatches": 40}
MODEL = "qwen3-1.7b"
TRACE = "lognormal:median=900,sigma=0.5,max=4096"


def flags(words):
    return [word for name, value in words.items() for word in (f"--{name.replace('_', '-')}", str(value))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    home = tmp_path_factory.mktemp("measured")
    rng = np.random.default_rng(0)
    lines = ["lengths,seconds"]
    for _ in range(60):
        lengths = rng.integers(100, 4000, 3)
        lines.append(f"{';'.join(map(str, lengths))},{0.01 + 2e-5 * lengths.sum() + 1e-9 * (lengths**2).sum()}")
    (home / "microbatches.csv").write_text("\n".join(lines) + "\n")
    seconds = np.random.default_rng(1).normal(0.9, 0.01, 30)
    steps = [{"step": n, "seconds": float(s), "tokens": 32_000} for n, s in enumerate(seconds, 1)]
    (home / "steps.jsonl").write_text("\n".join(map(json.dumps, steps)) + "\n")
    return home


CASES = {
    "microbatches": ("microbatches.csv", {"model": MODEL, "gpu": "h100", "recompute": "none"}),
    "steps": ("steps.jsonl", {"trace": TRACE, "model": MODEL, **RUN}),
    "way": ("steps.jsonl", {"trace": TRACE, "model": MODEL, **RUN, "sync": "on-demand", "balancer": "lb-mini"}),
    "rate": (None, {"trace": TRACE, "model": MODEL, **RUN, "measured_tokens_per_second": 40_000.0}),
}


@pytest.mark.parametrize("case", CASES)
def test_python_says_and_writes_what_the_command_does(case, folder, tmp_path, capsys):
    name, words = CASES[case]
    sources = [] if name is None else [str(folder / name)]
    mine, its = tmp_path / "mine.json", tmp_path / "its.json"
    assert main(["fit", *sources, *flags(words), "-o", str(its)]) == 0
    told = capsys.readouterr().out
    found = odcsim.fit(*sources, **words, output=mine)
    assert mine.read_bytes() == its.read_bytes()
    assert "\n".join([*found.sentences(), f"{its}: {found.profile.origin}\n"]) == told
    asked = {"gpu": None, "profile": str(mine), "devices": 1, "minibatch": 2}
    if case == "microbatches":
        assert odcsim.ask([500, 700], MODEL, **asked, recompute="none").cost.profile == found.profile


def test_lengths_may_be_given_themselves_and_nothing_is_written(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lengths = np.random.default_rng(2).integers(100, 4000, 500)
    found = odcsim.fit(folder / "steps.jsonl", trace=lengths, model=MODEL, **RUN)
    assert found.good
    assert list(tmp_path.iterdir()) == []


def test_it_is_shown_in_short(folder):
    found = odcsim.fit([folder / "microbatches.csv"], model=MODEL, gpu="h100")
    assert repr(found).startswith(f"<Fitted: {MODEL} on h100, calibrated: 60 ")
    assert found._repr_html_().count("<tr>") == 1 + len(found.lines)


@pytest.mark.parametrize(
    ("sources", "words", "line"),
    [
        ([], {}, "nothing to fit; give a log, traces or measurements, or measured_tokens_per_second"),
        (3, {}, "sources holds 3; give the path of a file, or several"),
        ("nowhere.csv", {"model": MODEL, "gpu": "h100"}, "nowhere.csv: no such file"),
        ("nowhere.csv", {"trace": TRACE}, "nowhere.csv: no such file; give a log, measurements or traces"),
        (".", {"trace": TRACE}, ".: is a folder; name a file inside it"),
        ("microbatches.csv", {}, "microbatches.csv: model is needed for a log and for traces"),
        ("microbatches.csv", {"model": MODEL, "gpu": "h100", "seed": 3}, "microbatches.csv: seed given for micro"),
        ("steps.jsonl", {"model": MODEL}, "trace is needed for a log of steps and for tokens per second"),
        ("steps.jsonl", {"measured_tokens_per_second": 5}, "steps.jsonl: measured_tokens_per_second beside a log"),
        ([], {"measured_tokens_per_second": -1}, "measured_tokens_per_second is -1; give a number above 0"),
        ("steps.jsonl", {"trace": TRACE, "model": MODEL, **RUN, "sync": "none"}, "sync is 'none'; give one of "),
        ("steps.jsonl", {"trace": TRACE, "model": MODEL, **RUN, "balancer": "lb-mni"}, "unknown balancer|lb-mni"),
        ("steps.jsonl", {"trace": TRACE, "model": MODEL, **RUN, "devices": 0}, "devices is"),
    ],
)
def test_what_is_wrong_is_refused_in_one_line_and_writes_nothing(folder, monkeypatch, sources, words, line):
    monkeypatch.chdir(folder)
    with pytest.raises(odcsim.InputError) as refused:
        odcsim.fit(sources, **words, output="p.json")
    assert any(one in str(refused.value) for one in line.split("|"))
    assert "--" not in str(refused.value)
    assert not (folder / "p.json").exists()


def test_a_log_is_not_written_over(folder):
    with pytest.raises(odcsim.InputError, match="is what this command reads"):
        odcsim.fit(folder / "microbatches.csv", model=MODEL, gpu="h100", output=folder / "microbatches.csv")
    with pytest.raises(TypeError, match=r"fit\(\) got an unexpected keyword argument 'ouput': did you mean 'output'"):
        odcsim.fit(folder / "microbatches.csv", ouput="p.json")


def test_help_shows_every_word():
    shown = inspect.signature(odcsim.fit).parameters
    own = {"sources", "lengths", "trace", "sync", "balancer", "measured_tokens_per_second", "output"}
    assert set(shown) >= own | {"model", "gpu", "devices", "minibatch", "global_batch", "recompute", "max_tokens"}
    assert not {"profile", "price", "words"} & set(shown)


def test_the_command_asks_for_the_trainer_that_ran(capsys):
    with pytest.raises(SystemExit):
        main(["fit", "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "--trainer T the trainer that ran, such as trl" in shown
    assert "rank what it runs" not in shown

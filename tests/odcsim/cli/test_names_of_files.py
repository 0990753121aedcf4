"""A file's name may hold bytes that are no text: every command reads it, says it, and writes it where it quotes it."""

import json
import os

import pytest

from odcsim import schedule
from odcsim import timeline as timelines
from odcsim.cli import main

SETTING = "--model tiny --gpu a100 --devices 2".split()
BATCH = [*SETTING, *"--minibatch 2 --minibatches 2 --max-tokens 16".split()]
RL = [*SETTING, *"--prompts 2 --rollouts 2 --steps 2".split()]
ADVISE = "--model tiny --gpus a100 --devices 2 --global-batch 4 --minibatches 2".split()
ODD = os.fsdecode(b"odd\xff")
READS = {
    "info": ["trace", "info", "ODD.csv", "--against", "ODD.csv"],
    "texts": ["trace", "info", "ODD.jsonl", "--tokenizer", "ODD"],
    "make": ["trace", "make", "ODD.csv", "-o", "OUT.csv"],
    "compare": ["compare", "ODD.csv", *BATCH, "--html", "OUT.html"],
    "compare csv": ["compare", "ODD.csv", *BATCH, "--csv"],
    "advise": ["advise", "ODD.csv", *ADVISE, "--html", "OUT.html"],
    "break-even": ["break-even", "ODD.csv", *BATCH[:-4], "--html", "OUT.html"],
    "rl": ["rl", "ODD.csv", *RL],
    "balance": ["balance", "ODD.csv", *BATCH, "--balancer", "native", "-o", "OUT.jsonl"],
    "check": ["check", "ODD.plan"],
    "simulate": ["simulate", "ODD.plan", "--sync", "on-demand", "--gpu", "a100", "-o", "OUT.npz"],
    "report": ["report", "ODD.npz", "ODD.npz", "--html", "OUT.html", "--svg", "OUT.svg", "--steps", "OUT.csv"],
    "trace-json": ["trace-json", "ODD.npz", "-o", "OUT.json"],
    "per device": ["trace-json", "ODD.npz", "--per-device", "OUT"],
    "validate": ["validate", "ODD.npz", "ODD.npz", "--html", "OUT.html"],
    "sweep": ["sweep", "ODD.toml", "-o", "OUT.csv"],
}
JSON = {name for name in READS if name in ("info", "compare", "advise", "rl", "check", "validate")}
GRID = 'trace = "longalign"\nmodel = "tiny"\ngpu = "a100"\ndevices = 2\nminibatch = 2\nminibatches = 1\n'
WORDS = {"type": "WordLevel", "vocab": {"a": 0, "u": 1}, "unk_token": "u"}


@pytest.fixture
def folder(tmp_path, monkeypatch, schedules, timeline):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / f"{ODD}.csv").write_text("length\n5\n6\n7\n8\n")
    (tmp_path / f"{ODD}.jsonl").write_text('{"text": "a a"}\n')
    (tmp_path / f"{ODD}.toml").write_text(GRID)
    (tmp_path / ODD).mkdir()
    (tmp_path / ODD / "tokenizer.json").write_text(json.dumps({"version": "1.0", "added_tokens": [], "model": WORDS}))
    schedule.write(schedules, tmp_path / f"{ODD}.plan")
    timelines.write(timeline, tmp_path / f"{ODD}.npz")
    return tmp_path


@pytest.mark.parametrize("name", READS)
def test_a_name_that_is_no_text_is_as_good_as_any(name, folder, capfd):
    out = os.fsdecode(b"out\xff")
    argv = [word.replace("ODD", ODD).replace("OUT", out) for word in READS[name]]
    assert main(argv) == 0
    for path in folder.glob("out*"):
        if path.suffix in (".html", ".csv", ".svg", ".json", ".jsonl"):
            path.read_text(encoding="utf-8")
    printed = capfd.readouterr()
    assert "Traceback" not in printed.err
    if name in JSON:
        assert main([*(word for word in argv if not word.startswith(out) and word != "--html"), "--json"]) == 0
        assert json.loads(capfd.readouterr().out)


@pytest.mark.usefixtures("folder")
def test_a_page_with_links_refuses_it_in_a_line(capfd):
    pytest.importorskip("dash", reason="pip install 'odcsim[explore]'")
    assert main(["explore", f"{ODD}.csv", "--no-open"]) == 2
    assert len(capfd.readouterr().err.splitlines()) == 1

"""Data as it lies, with rows that are no sample, as others write it: from a folder to a rent."""

import csv
import json
import re

import numpy as np
import pytest
from texts import UNMARKED, tokenizer_in

from odcsim.cli import main

ROWS, BAD = 120, 3
WORDS = "who waits for whom and for how long ".split() * 40
LONG = np.random.default_rng(0).integers(2, len(WORDS), ROWS).tolist()


def talk(row, **more):
    said = " ".join(WORDS[: LONG[row]])
    return [{"role": "user", "content": "Who waits?"}, {"role": "assistant", "content": said, **more}]


def some(row, value, bad):
    """Three rows of every file are bad."""
    return bad[row // 40] if row % 40 == 7 else value


def spreadsheet(folder):
    """Thousands have commas, one cell is empty, one says so, and one line is blank."""
    with (folder / "export.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "num_tokens"])
        for row in range(ROWS):
            cells = some(row, [row, f"{10 * LONG[row]:,}"], [[row, ""], [row, "n/a"], []])
            writer.writerow(cells)


def chats(folder):
    """The form of OpenAI's and Azure's fine-tuning files; the first conversation is empty."""
    bad = [[], None, ""]
    rows = [{"messages": some((row + 7) % ROWS, talk(row, weight=1), bad)} for row in range(ROWS)]
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + "\n")


def saved(folder):
    """`save_to_disk` of conversations, some of which are none."""
    datasets = pytest.importorskip("datasets")
    rows = [{"messages": some(row, talk(row), [None, [], None]), "source": "a"} for row in range(ROWS)]
    datasets.Dataset.from_list(rows).save_to_disk(folder)


def pairs(folder):
    """Preferences as datasets writes them, of which sides are null or empty."""
    datasets = pytest.importorskip("datasets")
    row = {"chosen": None, "rejected": None}
    bad = [row | {"prompt": "a"}, row | {"chosen": talk(1)}, {"chosen": [], "rejected": talk(2)}]
    rows = [some(n, {"chosen": talk(n), "rejected": talk(ROWS - 1 - n)}, bad) for n in range(ROWS)]
    datasets.Dataset.from_list([{"prompt": None} | row for row in rows]).to_json(folder / "dpo.jsonl")


KINDS = {"spreadsheet": (spreadsheet, False), "chats": (chats, True), "saved": (saved, True), "pairs": (pairs, True)}
THEIRS = ("saved", "pairs")  # need packages that trainers bring


@pytest.mark.filterwarnings("default")  # theirs
@pytest.mark.parametrize("kind", [pytest.param(k, marks=pytest.mark.slow) if k in THEIRS else k for k in KINDS])
def test_from_a_folder_to_a_purchase(tmp_path, monkeypatch, capsys, kind):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write, texts = KINDS[kind]
    (tmp_path / "data").mkdir()
    write(tmp_path / "data")
    tokenizer_in(tmp_path / "model", UNMARKED)
    counted = ["--tokenizer", "model"] if texts else []
    capsys.readouterr()

    assert main(["trace", "info", "data", *counted]) == 2
    assert f"{BAD} of {ROWS} rows" in capsys.readouterr().err
    assert main(["trace", "info", "data", *counted, "--skip-bad"]) == 0
    shown, told = capsys.readouterr()
    assert re.search(rf"^samples +{2 * (ROWS - BAD) if kind == 'pairs' else ROWS - BAD}\b", shown, re.MULTILINE)
    assert all(f"{BAD} of {ROWS} rows" in text for text in (shown, told))
    wish = ["--model", "qwen2.5-0.5b", "--epochs", "1", "--global-batch", "16", "--gpus", "h100", "--devices", "2"]
    assert main(["advise", "data", *counted, "--skip-bad", *wish, "--minibatches", "2", "--json"]) == 0
    shown, told = capsys.readouterr()
    [row] = json.loads(shown)["rows"]
    assert (row["steps"], row["samples"]) == (8, 16)
    assert f"{BAD} of {ROWS} rows" in told

"""From a folder that `datasets` wrote to what to rent and the trainer's own settings, in three commands."""

import json
import re
from itertools import product

import numpy as np
import pytest
from datasets import Dataset, DatasetDict
from texts import CHATML, WORDS, tokenizer_in
from transformers import AutoTokenizer

from odcsim.cli import main

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]


@pytest.fixture
def told(capsys):
    def told(*argv):
        assert main(list(argv)) == 0
        return capsys.readouterr().out

    return told


def conversations(folder):
    """Saved by the library itself, in splits, with a tokenizer that transformers saved."""
    talks = [
        [{"role": "user", "content": WORDS[i % 3] * (1 + i % 7)}, {"role": "assistant", "content": WORDS[1] * (i % 41)}]
        for i in range(400)
    ]
    DatasetDict(train=Dataset.from_dict({"messages": talks})).save_to_disk(str(folder / "data"))
    AutoTokenizer.from_pretrained(tokenizer_in(folder / "raw", CHATML)).save_pretrained(folder / "tokenizer")
    return talks


def test_from_a_saved_dataset_to_a_purchase_and_the_settings(tmp_path, monkeypatch, told):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    talks = conversations(tmp_path)
    data, by = str(tmp_path / "data" / "train"), str(tmp_path / "tokenizer")
    theirs = AutoTokenizer.from_pretrained(by)
    lengths = [len(theirs.apply_chat_template(talk, return_dict=True)["input_ids"]) for talk in talks]

    info = told("trace", "info", data, "--tokenizer", by)
    assert f"tokens      {sum(lengths):,}\n" in info
    assert "loss share" in info

    asked = ["advise", data, "--tokenizer", by, "--model", "qwen3-0.6b", "--gpus", "h100,a100", "--devices", "2,4",
             "--epochs", "3", "--global-batch", "32", "--price", "h100=2.5,a100=1.3"]  # fmt: skip
    advice = told(*asked)
    assert re.search(r"^Rent \d x \w+: 3 epochs, 38 steps of 32 samples", advice, re.MULTILINE)

    (tmp_path / "rows.json").write_text(told(*asked, "--trainer", "trl", "--json"))
    made = json.loads((tmp_path / "rows.json").read_text())["rows"][0]["made"]
    rows = f"--max_length {made['max_tokens']}" in told("flags", "trl", str(tmp_path / "rows.json"))
    assert rows or made["each"]


def rollouts(folder):
    """Groups of eight to a prompt, in ids, as a trainer keeps them."""
    rng = np.random.default_rng(0)
    rows = [
        {"step": step, "prompt_id": prompt, "prompt_ids": [1] * 60, "completion_ids": [2] * int(length)}
        for step, prompt in product(range(2), range(32))
        for length in np.minimum(rng.lognormal(6.5 + rng.normal(0, 0.6), 0.3, 8), 6000).astype(int) + 1
    ]
    Dataset.from_list(rows).save_to_disk(str(folder / "rollouts"))
    return rows


def test_from_saved_rollouts_to_a_purchase_and_the_settings(tmp_path, told):
    rows = rollouts(tmp_path)
    data, model = str(tmp_path / "rollouts"), ["--model", "qwen3-1.7b"]
    step = told("rl", data, *model, "--gpu", "h100", "--devices", "4", "--prompts", "32", "--rollouts", "8",
                "--updates", "2", "--steps", "4", "--generation-seconds", "40")  # fmt: skip
    assert "4 x h100, 32 prompts x 8 rollouts in 2 updates" in step
    assert "drawn independently" not in step  # groups are kept
    share = re.search(r"^Training is (\d+)% of the step", step, re.MULTILINE)
    assert 0 < int(share[1]) < 100

    asked = ["advise", data, *model, "--gpus", "h100,a100", "--devices", "2,4", "--epochs", "20",
             "--global-batch", "128", "--price", "h100=2.5,a100=1.3", "--minibatches", "4"]  # fmt: skip
    advice = told(*asked)
    steps = 20 * len(rows) // 128
    assert re.search(rf"^Rent \d x \w+: 20 epochs, {steps} steps of 128 samples take .* and \$", advice, re.MULTILINE)

    (tmp_path / "rows.json").write_text(told(*asked, "--trainer", "verl", "--json"))
    first = json.loads((tmp_path / "rows.json").read_text())["rows"][0]
    flags = told("flags", "verl", str(tmp_path / "rows.json"), "--rollouts", "8").splitlines()
    assert f"actor_rollout_ref.actor.ppo_max_token_len_per_gpu={first['max_tokens']}" in flags
    assert "actor_rollout_ref.actor.ppo_mini_batch_size=16" in flags

"""What is beyond a profile is said to be extrapolated wherever its seconds are asked for."""

from dataclasses import replace

import numpy as np
import pytest
from ways_in import told

import odcsim
from odcsim.profile import write

LENGTHS = np.minimum(np.random.default_rng(5).lognormal(6.5, 0.8, 400), 4000).astype(np.int64) + 1
RL = "--prompts 4 --rollouts 2 --steps 2"
ASKED = {"compare": "--minibatch 2 --minibatches 4", "rl": RL, "break-even": "--minibatch 2"}


@pytest.mark.parametrize("longest", [500, 4001], ids=["beyond", "within"])
@pytest.mark.parametrize("command", ASKED)
def test_longer_samples_than_a_profile_knows_are_told(command, longest, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cost = odcsim.ask(LENGTHS, "qwen3-0.6b", gpu="h100", devices=2, max_tokens=4001).cost
    write(replace(cost.profile, longest=longest), tmp_path / "mine.json")
    (tmp_path / "lengths.csv").write_text("length\n" + "\n".join(map(str, LENGTHS)) + "\n")
    words = f"lengths.csv --model qwen3-0.6b --profile mine.json --devices 2 --max-tokens 4001 {ASKED[command]}"
    assert told([command, *words.split()])["fidelity"] == ("extrapolated" if longest == 500 else "catalogue")

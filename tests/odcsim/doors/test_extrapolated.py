"""What is beyond a profile is said to be extrapolated wherever its seconds are asked for."""

import json
from dataclasses import replace

import numpy as np
import pytest

import odcsim
from odcsim.cli import main
from odcsim.profile import write

LENGTHS = np.minimum(np.random.default_rng(5).lognormal(6.5, 0.8, 400), 4000).astype(np.int64) + 1
RUN = {"devices": 2, "max_tokens": 4001}
ASKED = {
    "compare": {"minibatch": 2, "minibatches": 4},
    "rl": {"prompts": 4, "rollouts": 2, "steps": 2},
    "break-even": {"minibatch": 2},
}


@pytest.fixture(scope="module")
def profile():
    return odcsim.ask(LENGTHS, "qwen3-0.6b", gpu="h100", **RUN).cost.profile


@pytest.mark.parametrize("longest", [500, 4001], ids=["beyond", "within"])
@pytest.mark.parametrize("command", ASKED)
def test_longer_samples_than_a_profile_knows_are_told(profile, command, longest, tmp_path, capsys):
    mine, lengths = tmp_path / "mine.json", tmp_path / "lengths.csv"
    write(replace(profile, longest=longest), mine)
    lengths.write_text("length\n" + "\n".join(map(str, LENGTHS)) + "\n")
    words = [
        word for name, value in (RUN | ASKED[command]).items() for word in (f"--{name.replace('_', '-')}", f"{value}")
    ]
    asked = [command, str(lengths), "--model", "qwen3-0.6b", "--profile", str(mine), *words]
    assert main([*asked, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["fidelity"] == ("extrapolated" if longest == 500 else "catalogue")

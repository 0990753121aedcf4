"""A run that was simulated is diagnosed as what it is: the same seconds, the same idle."""

from dataclasses import replace

import numpy as np
import pytest
from ways_in import said, told

import odcsim
from odcsim.profile import write

SETTING = (
    "--model r1-distill-qwen-1.5b --gpu a100 --devices 4 --minibatch 4 --max-tokens 65536 --minibatches 10".split()
)
WAYS = [
    ("lb-micro", "collective"), ("sorted-slice", "deferred"), ("native", "collective"), ("lb-mini", "on-demand"),
    ("pool", "on-demand"),
]  # fmt: skip


@pytest.mark.drawn(3)
@pytest.mark.parametrize(("balancer", "sync"), WAYS)
def test_a_step_and_its_idle_are_those_of_the_simulation(tmp_path, balancer, sync):
    files = [str(tmp_path / name) for name in ("a.jsonl", "a.npz")]
    assert said(["balance", "longalign", *SETTING, "--balancer", balancer, "-o", files[0]])[1] == ""
    row = told(["simulate", files[0], "--gpu", "a100", "--sync", sync, "-o", files[1]])
    found = odcsim.diagnose(files).found
    assert found.seconds == pytest.approx(row["makespan_seconds"] / row["minibatches"])
    idle = sum(part.share for part in found.parts if part.name != "compute")
    optimizer = row["idle_parts"]["other"]
    assert row["idle"] - optimizer - 1e-9 <= idle <= row["idle"] + 1e-9
    lost = row["idle_parts"]["wait_inside"] + row["idle_parts"]["wait_end"]
    assert sum(part.share for part in found.parts[3:]) == pytest.approx(lost, abs=optimizer + 1e-9)


# What is beyond a profile is said to be extrapolated wherever its seconds are asked for

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

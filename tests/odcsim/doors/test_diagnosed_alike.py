"""A run that was simulated is diagnosed as what it is: the same seconds, the same idle."""

import pytest
from ways_in import said, told

import odcsim

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

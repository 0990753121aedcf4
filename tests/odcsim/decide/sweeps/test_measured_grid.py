"""A grid takes a profile that says how it was measured, as every command does: what nobody chose is that."""

import json

import odcsim
from odcsim import profile as profiles
from odcsim.decide import calibrate
from odcsim.decide.calibrate import Simulated

RUN = {
    "trace": "uniform:min=20,max=900,samples=300",
    "model": "qwen3-0.6b",
    "gpu": "h100",
    "devices": 2,
    "minibatch": 4,
}


def test_a_profile_measured_by_a_trainer_holds_at_every_point(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    measured = odcsim.ask(**RUN, minibatches=4, trainer="trl")
    profiles.write(calibrate.by_rate(Simulated(measured, ("native", "collective")), 20_000.0).profile(), "mine.json")
    asked = {**RUN, "minibatches": 4, "profile": "mine.json"}
    [row] = [row for row in odcsim.sweep(asked) if (row["balancer"], row["sync"]) == ("lb-mini", "on-demand")]
    one = odcsim.compare(odcsim.ask(**asked)).row("lb-mini", "on-demand")
    assert row["stack"] == "plain"
    assert row["gpu_hours"] == one.gpu_hours
    assert json.loads(json.dumps(row["stack"])) == odcsim.ask(**asked).cost.recipe.kernels.stack

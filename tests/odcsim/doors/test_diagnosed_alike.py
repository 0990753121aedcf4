"""A run that was simulated is diagnosed as what it is: the same seconds, the same idle, and gains that come true."""

import json
from pathlib import Path

import pytest
from ways_in import said

import odcsim

SETTING = (
    "--model r1-distill-qwen-1.5b --gpu a100 --devices 4 --minibatch 4 --max-tokens 65536 --minibatches 10".split()
)
WAYS = [
    ("lb-micro", "collective"),
    ("sorted-slice", "deferred"),
    ("native", "collective"),
    ("lb-mini", "on-demand"),
    ("pool", "on-demand"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


def ran(folder, balancer, sync):
    """The row of a run, and its files."""
    files = [str(folder / f"{balancer}-{sync}{end}") for end in (".jsonl", ".npz")]
    if not Path(files[1]).exists():
        assert said(["balance", "longalign", *SETTING, "--balancer", balancer, "-o", files[0]])[1] == ""
        asked = ["simulate", files[0], "--gpu", "a100", "--sync", sync, "-o", files[1], "--json"]
        Path(f"{files[0]}.row").write_text(said(asked)[0])
    return json.loads(Path(f"{files[0]}.row").read_text()), files


@pytest.mark.drawn(3)
@pytest.mark.parametrize(("balancer", "sync"), WAYS)
def test_a_step_and_its_idle_are_those_of_the_simulation(folder, balancer, sync):
    row, files = ran(folder, balancer, sync)
    told = odcsim.diagnose(files)
    assert told.found.seconds == pytest.approx(row["makespan_seconds"] / row["minibatches"])
    idle = sum(part.share for part in told.found.parts if part.name != "compute")
    optimizer = row["idle_parts"]["other"]
    assert row["idle"] - optimizer - 1e-9 <= idle <= row["idle"] + 1e-9
    lost = row["idle_parts"]["wait_inside"] + row["idle_parts"]["wait_end"]
    assert sum(part.share for part in told.found.parts[3:]) == pytest.approx(lost, abs=optimizer + 1e-9)


def test_what_is_promised_comes_true(folder):
    _, files = ran(folder, "lb-micro", "collective")
    before = odcsim.diagnose(files)
    kept = [way for way in before.changes.ways if way.sync == "on-demand"]
    assert kept
    for way in kept:
        row, _ = ran(folder, way.balancer, way.sync)
        came = before.found.seconds / (row["makespan_seconds"] / row["minibatches"])
        assert way.gain == pytest.approx(came, rel=0.03)

"""Simulated runs: the cause that a cluster or its samples have is named, as large as the simulation says without it."""

import numpy as np
import pytest

from odcsim import Simulation, catalog, simulate
from odcsim.balance import balance
from odcsim.cluster import Cluster, cluster_of, read_cluster
from odcsim.cost import Cost
from odcsim.decide.diagnosis.parts import broken_down
from odcsim.observed.timelines import run_of
from odcsim.profile import Polynomial, Profile
from odcsim.results.metrics import usage
from odcsim.schedule import Header, Schedule, ScheduleFile

MODEL = catalog.model("qwen2.5-0.5b")
PROFILE = Profile(
    model=MODEL.name, gpu="a100", fidelity="calibrated", origin="a test",
    forward=Polynomial(1e-5, 1e-7, 2e-12), backward=Polynomial(2e-5, 2e-7, 4e-12), head=Polynomial(0.0, 4e-7),
    embed=Polynomial(0.0, 5e-8), overhead=1e-4, optimizer=2e-3, publish=1e-4,
)  # fmt: skip
PLAIN = cluster_of(catalog.gpu("a100"), 4)
SYNCS = ("collective", "deferred", "on-demand")
SLOW, LINKS, JITTER = "[slow]\n2 = 1.25\n", "link_share = 0.1\n", "jitter = 0.05\n"
CAUSES = {"lengths": "", "device": SLOW, "transfer": LINKS, "untold": JITTER, "": ""}
WAITING = ("lengths", "device", "loader", "collector", "launch", "stages", "bubble", "untold", "edges")
POINTS = 0.02


def samples(kind: str, seed: int = 0) -> ScheduleFile:
    """Twelve minibatches of four devices and three samples each: alike, or not."""
    rng, schedules = np.random.default_rng(seed), []
    for _ in range(12):
        drawn = np.clip(rng.lognormal(9.6, 0.8, 12), 1000, 60000).astype(int)
        lengths = np.full(12, 24000) if kind == "even" else drawn
        devices = balance("native", lengths, lengths.astype(float), 4, 60000)
        schedules.append(Schedule(tuple(lengths.tolist()), devices))
    return ScheduleFile(Header("native", MODEL.name, "a test", 60000, 4), tuple(schedules)).sealed()


def ran(sync: str, file: ScheduleFile, cluster: Cluster):
    """What usage says of it, and what is found."""
    line = simulate(file, Simulation(Cost(MODEL, PROFILE, cluster), sync, "des"))
    return usage(line), broken_down(run_of(line, file))


@pytest.fixture
def clusters(tmp_path):
    def read(*causes: str) -> Cluster:
        keys = sorted((CAUSES[cause] for cause in causes), key=lambda text: text.startswith("["))
        path = tmp_path / "cluster.toml"
        path.write_text("".join(keys), encoding="utf-8")
        return read_cluster(path, PLAIN)

    return read


@pytest.mark.parametrize("sync", SYNCS)
def test_parts_are_what_usage_says_of_the_timeline(sync, clusters):
    """But for bytes that move while nobody but the last to come is at work: usage calls them a gather or a push, and
    they wait for who came last."""
    used, told = ran(sync, samples("uneven"), clusters("device", "untold"))
    parts = used.idle_parts()
    assert told.seconds == pytest.approx(used.makespan.mean())
    waited = sum(told.share(name) for name in ("lengths", "device", "untold"))
    assert waited == pytest.approx(parts["wait_inside"] + parts["wait_end"], abs=POINTS)
    assert told.share("transfer") == pytest.approx(parts["gather"] + parts["push"], abs=POINTS)
    assert told.share("compute") == pytest.approx(1 - used.idle(), abs=0.005)


@pytest.mark.parametrize("sync", SYNCS)
@pytest.mark.parametrize("cause", CAUSES)
def test_one_cause_is_named_and_no_other(sync, cause, clusters):
    used, told = ran(sync, samples("uneven" if cause == "lengths" else "even"), clusters(cause))
    parts = used.idle_parts()
    if cause == "transfer":
        assert told.share("transfer") == pytest.approx(parts["gather"] + parts["push"], abs=POINTS)
        assert told.share("transfer") > 0.02
    elif cause:
        assert told.share(cause) == pytest.approx(parts["wait_inside"] + parts["wait_end"], abs=POINTS)
        assert told.share(cause) > 0.003
    assert all(told.share(name) < 0.01 for name in WAITING if name != cause)
    assert [rank.rank for rank in told.ranks if rank.pace != 1.0] == ([2] if cause == "device" else [])

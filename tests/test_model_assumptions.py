"""The assumptions of docs/model.md that no other test states by itself, each in the smallest case that shows it."""

from dataclasses import replace

import numpy as np
import pytest

from odcsim import catalog, des, summary
from odcsim.catalog import fits
from odcsim.cluster import Cluster, cluster_of
from odcsim.cost import Cost, estimate
from odcsim.metrics import usage
from odcsim.profile import Polynomial, Profile
from odcsim.program import COMM, COMPUTE, EVERY, GATHER, PUSH, ROOT, program
from odcsim.schedule import Header, Schedule, ScheduleFile
from odcsim.setting import cost_of
from odcsim.simulation import Simulation, simulate

MODEL = catalog.model("qwen2.5-0.5b")
A100 = catalog.gpu("a100")
EVEN = Schedule((3000, 1000, 2000, 500), (((0, 1),), ((2, 3),)))
PROFILE = Profile(
    model=MODEL.name, gpu="a100", fidelity="calibrated", origin="a test",
    forward=Polynomial(0.0, 1e-6, 1e-10), backward=Polynomial(0.0, 2e-6, 3e-10), head=Polynomial(0.0, 4e-6),
    embed=Polynomial(0.0, 5e-7), microbatch=0.25, overhead=0.5, optimizer=2.0, publish=1.0,
)  # fmt: skip


def cost(devices: int = 2, profile: Profile = PROFILE, **changes) -> Cost:
    return Cost(MODEL, profile, replace(cluster_of(A100, devices), **changes))


def timeline(how: Cost, sync: str, schedule: Schedule = EVEN, executor: str = "analytic"):
    header = Header("native", MODEL.name, "a test", 10**6, len(schedule.devices), 0)
    return simulate(ScheduleFile(header, (schedule,)), Simulation(how, sync, executor))


def rows(how: Cost, sync: str = "collective", schedule: Schedule = EVEN) -> dict[str, np.ndarray]:
    """Seconds by what is timed, of the first microbatch [device]."""
    steps = program(MODEL.layers, max(schedule.microbatches), sync)
    table = how.durations(steps, how.load([schedule]))
    return {what: table[i, 0] for i, (what, m) in enumerate(steps.durations) if m in (0, EVERY)}


def kinds(sync: str, microbatches: int = 3) -> list[tuple[str, str]]:
    return [(s.kind, s.lane) for s in program(4, microbatches, sync).steps]


def test_compute_is_forward_backward_and_the_microbatch_constant_and_nothing_else():
    used = usage(timeline(cost(), "on-demand"))
    work = 0.0
    for lengths in ((3000, 1000), (2000, 500)):
        tokens, squares = sum(lengths), sum(n * n for n in lengths)
        per_layer = (1e-6 + 2e-6) * tokens + (1e-10 + 3e-10) * squares
        work += MODEL.layers * per_layer + (4e-6 + 2 * 5e-7) * tokens + 0.25
    assert used.compute.sum() == pytest.approx(work)


def test_a_packed_microbatch_costs_the_sum_of_its_samples_squares():
    forward = rows(cost())["forward"]
    assert forward == pytest.approx([1e-6 * 4000 + 1e-10 * (3000**2 + 1000**2), 1e-6 * 2500 + 1e-10 * (4 + 0.25) * 1e6])


def test_the_constant_of_a_microbatch_does_not_grow_with_its_tokens():
    longer = replace(EVEN, lengths=(9000, 9000, 9000, 9000))
    assert rows(cost())["overhead"].tolist() == rows(cost(), schedule=longer)["overhead"].tolist() == [0.5, 0.5]


@pytest.mark.parametrize(("model", "quadratic", "linear", "constant"), [
    ("r1-distill-qwen-1.5b", 1.982, 2.612, 0.667),
    ("r1-distill-qwen-7b", 4.348, 8.768, 0.951),
])  # fmt: skip
def test_the_shipped_fits_are_the_published_polynomials(model, quadratic, linear, constant):
    how = cost_of(model, "a100", None, 8)
    tokens = np.array([4000, 16000, 64000])
    x = tokens / 32000
    assert how.sample_seconds(tokens) == pytest.approx(quadratic * x * x + linear * x, rel=1e-6)
    assert (how.profile.overhead, how.profile.microbatch) == (constant, 0.0)
    assert (how.profile.optimizer, how.profile.publish) == (0.0, 0.0)


def test_published_fits_have_no_transfers_inside_a_node_and_some_between_nodes():
    for devices, moves in ((8, False), (16, True)):
        how = cost_of("r1-distill-qwen-1.5b", "a100", None, devices)
        even = Schedule((1000,) * devices, tuple(((i,),) for i in range(devices)))
        seconds = rows(how, schedule=even)
        for what in ("gather layer", "gather root", "push layer", "push root"):
            assert ((seconds[what] > 0) == moves).all()


@pytest.mark.parametrize("name", ["r1-distill-qwen-1.5b", "r1-distill-qwen-7b"])
def test_the_range_of_the_catalogue_covers_the_published_fits(name):
    """At lengths from 4K to 64K tokens, without the constant; see docs/model.md for what that leaves open."""
    model = catalog.model(name)
    fitted, guessed = (cost(8, profile) for profile in (fits.published(name, "a100"), estimate(model, A100, 8)))
    fitted, guessed = replace(fitted, model=model), replace(guessed, model=model)
    lengths = np.array([4096, 16384, 65536])
    ratios = fitted.sample_seconds(lengths) / guessed.sample_seconds(lengths)
    assert guessed.profile.low <= ratios.min() <= ratios.max() <= guessed.profile.high


def test_inside_a_node_one_sided_transfers_take_what_collectives_take():
    collective, one_sided = (rows(cost(), sync) for sync in ("collective", "on-demand"))
    for what in ("gather layer", "gather root", "push layer", "push root"):
        assert collective[what].tolist() == one_sided[what].tolist() > [0.0, 0.0]


def test_between_nodes_a_one_sided_transfer_takes_a_ring_times_a_factor():
    ring, one_sided = (rows(cost(devices_per_node=1, nics_per_node=1), sync) for sync in ("collective", "on-demand"))
    latency, size = 20e-6, 2 * MODEL.layer_parameters
    assert ring["gather layer"] == pytest.approx(latency + size / 2 / A100.nic_bandwidth)
    assert one_sided["gather layer"] - latency == pytest.approx(3.5 * (ring["gather layer"] - latency))


def test_parameters_travel_in_two_bytes_and_gradients_in_four():
    seconds = rows(cost(latency=0.0))
    for unit in ("layer", "root"):
        assert seconds[f"push {unit}"] == pytest.approx(2 * seconds[f"gather {unit}"])


def test_the_root_holds_what_is_in_no_layer():
    seconds = rows(cost(latency=0.0))
    ratio = MODEL.root_parameters / MODEL.layer_parameters
    assert seconds["gather root"] == pytest.approx(ratio * seconds["gather layer"])


def test_the_root_is_gathered_in_the_open_and_its_push_holds_up_the_next_microbatch():
    steps = program(4, 2, "on-demand").steps
    for m in range(2):
        gather = next(s for s in steps if (s.kind, s.unit, s.microbatch) == ("gather", ROOT, m))
        assert [steps[i].kind for i in gather.after] == ["overhead"]
    second = next(s for s in steps if (s.kind, s.microbatch) == ("overhead", 1))
    assert [(steps[i].kind, steps[i].unit) for i in second.after] == [("push", ROOT)]


def test_collectives_share_one_lane_and_one_sided_transfers_have_one_each():
    assert {lane for _, lane in kinds("collective")} == {lane for _, lane in kinds("deferred")} == {COMPUTE, COMM}
    assert {lane for _, lane in kinds("on-demand")} == {COMPUTE, GATHER, PUSH}


def test_deferred_sends_gradients_in_the_last_microbatch_only():
    steps = program(4, 3, "deferred").steps
    assert [s.microbatch for s in steps if s.kind == "push"] == [2] * 5
    assert sum(s.kind == "gather" for s in steps) == sum(k == "gather" for k, _ in kinds("collective"))


def test_on_demand_meets_twice_and_publishes_once_in_a_minibatch():
    ends = [s.kind for s in program(4, 3, "on-demand").steps if s.microbatch == EVERY]
    assert ends == ["meeting", "optimizer", "publish", "meeting"]
    assert [s.kind for s in program(4, 3, "on-demand").steps if s.meets] == ["meeting", "meeting"]
    assert [s.kind for s in program(4, 3, "collective").steps if s.microbatch == EVERY] == ["meeting", "optimizer"]


def test_a_slow_device_computes_slower_and_transfers_as_fast():
    seconds, usual = rows(cost(slow=((1, 2.0),))), rows(cost())
    for what in ("embed", "forward", "head", "backward", "embed backward"):
        assert seconds[what].tolist() == [usual[what][0], 2 * usual[what][1]]
    for what in ("overhead", "gather layer", "push layer", "optimizer"):
        assert seconds[what].tolist() == usual[what].tolist()


def test_jitter_touches_compute_alone_and_is_one_on_average():
    steps = program(8, 8, "on-demand")
    table = np.ones((len(steps.durations), 1, 8))
    asked, had = des.run(steps, table, replace(cluster_of(A100, 8), jitter=0.2), [np.random.default_rng(0)])
    computes = np.array([s.kind == "compute" for s in steps.steps])
    alone = np.array([not s.meets for s in steps.steps])
    drawn = (had - asked)[computes]
    assert (had - asked)[~computes & alone] == pytest.approx(1)
    assert drawn.mean() == pytest.approx(1, abs=4 * 0.2 / drawn.size**0.5)
    assert drawn.std() == pytest.approx(0.2, rel=0.1)


@pytest.mark.parametrize(("nics", "longest"), [(4, 1.0), (2, 2.0), (1, 4.0)])
def test_four_transfers_at_once_share_the_nics_of_their_node_equally(nics, longest):
    steps = program(1, 1, "on-demand", "none")
    table = np.zeros((len(steps.durations), 1, 8))
    table[steps.durations.index(("gather root", 0)), 0, :4] = 1.0
    shared = Cluster(8, 4, 1e11, 1e10, nics)
    _, had = des.run(steps, table, shared)
    gather = next(i for i, s in enumerate(steps.steps) if (s.kind, s.unit) == ("gather", ROOT))
    assert had[gather, 0, :4] == pytest.approx([longest] * 4)
    assert had[gather, 0, 4:].tolist() == [0.0] * 4


def test_the_catalogue_moves_an_optimizer_step_through_memory():
    profile = estimate(MODEL, A100, 8)
    shard = MODEL.parameters / 8 / A100.memory_bandwidth
    assert (profile.optimizer, profile.publish) == (pytest.approx(28 * shard), pytest.approx(6 * shard))


def test_the_interval_is_about_which_minibatches_were_drawn():
    """Minibatches that all gain alike leave no doubt; those that differ do, the more the fewer there are."""
    rng = np.random.default_rng(0)
    reference = rng.uniform(1, 2, 100)
    measured = usage(timeline(cost(), "collective"))
    one = [[3], [10]]
    base = summary.row(summary.Measured("lb-micro", "collective", measured, *map(np.array, one), 2), 1, 1, None)
    other = replace(base, balancer="lb-mini")

    def width(mine: np.ndarray, count: int) -> float:
        found = summary.compared([base, other], [reference[:count], mine[:count]], seed=0)[1]
        assert found.speedup_low <= found.speedup <= found.speedup_high
        return found.speedup_high - found.speedup_low

    assert width(reference / 2, 100) == pytest.approx(0)
    noisy = rng.uniform(1, 2, 100)
    assert width(noisy, 10) > width(noisy, 100) > 0.01

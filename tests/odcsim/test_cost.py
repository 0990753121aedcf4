"""Laws of cost: what balancers weigh is what executors run, and what each number rests on."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import COMPUTES, TRANSFERS, schedules

from odcsim import catalog
from odcsim.catalog import fits
from odcsim.catalog.estimates.rates import rates
from odcsim.catalog.estimates.work import own_seconds
from odcsim.catalog.fits import estimate
from odcsim.cluster import Cluster, cluster_of
from odcsim.cost import Cost, Load
from odcsim.executors.simulation import fidelity, usage
from odcsim.profile import SHARDED, TIMINGS, Polynomial, Profile, Timing
from odcsim.profile import TRANSFERS as OF_OTHERS
from odcsim.program import SYNCS, program
from odcsim.schedule import Schedule

SMALL, LARGE = "r1-distill-qwen-1.5b", "r1-distill-qwen-7b"
A100, FIT = catalog.gpu("a100"), fits.published(SMALL, "a100")
numbers = st.floats(0, 1e-3)
polynomials = st.builds(Polynomial, st.floats(0, 2), numbers, numbers, st.floats(0, 1))
profiles = st.builds(
    Profile,
    *[st.just(text) for text in (SMALL, "a100", "calibrated", "a test")],
    *[polynomials] * 4,
    microbatch=st.floats(0, 2),
    overhead=st.floats(0, 2),
)


def cost(devices: int, profile: Profile | None = None, model: str = SMALL, **changes) -> Cost:
    fit = profile or fits.published(model, "a100")
    return Cost(catalog.model(model), fit, replace(cluster_of(A100, devices), **changes))


def table(how: Cost, found: list[Schedule], sync: str = "on-demand") -> tuple:
    """The program that fits these schedules, and its durations."""
    steps = program(how.model.layers, max(max(s.microbatches) for s in found), sync)
    return steps, how.durations(steps, Load.of(how.model, found))


def rows(how: Cost, found: Schedule, sync: str = "on-demand") -> dict[str, float]:
    """Seconds of the slowest device by what is timed, in the first minibatch."""
    steps, seconds = table(how, [found], sync)
    return {what: float(seconds[i].max()) for i, (what, _) in enumerate(steps.durations)}


def fixed(devices: int, profile: Profile, sync: str = "on-demand", **cluster) -> dict[str, float]:
    """Seconds of everything that a microbatch of a single small sample and its minibatch take, by what is timed."""
    return rows(cost(devices, profile, **cluster), even(9, devices), sync)


def spent(how: Cost, found: list[Schedule], kinds: tuple[str, ...] = ("compute",)) -> np.ndarray:
    """Seconds of these kinds of steps [minibatch, device]."""
    steps, seconds = table(how, found)
    return sum(seconds[s.duration] for s in steps.steps if s.kind in kinds)


def even(length: int, devices: int) -> Schedule:
    return Schedule.of((length,) * devices, tuple(((i,),) for i in range(devices)))


@given(st.lists(schedules(3), min_size=1, max_size=3), profiles)
def test_the_weights_that_balancers_see_add_up_to_the_compute_that_executors_run(found, profile):
    """Apart from the constants, which belong to microbatches and not to samples."""
    how = cost(3, profile)
    layers = how.model.layers
    layer = layers * (profile.forward.constant + profile.backward.constant)
    per_microbatch = layer + profile.head.constant + 2 * profile.embed.constant + profile.microbatch
    seconds = spent(how, found)
    for b, schedule in enumerate(found):
        weights = how.sample_seconds(np.array(schedule.lengths))
        for d, device in enumerate(schedule.devices):
            expected = sum(weights[i] for microbatch in device for i in microbatch) + per_microbatch * len(device)
            assert seconds[b, d] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("queues", [False, True])
@given(st.lists(schedules(3, queued=True), min_size=1, max_size=4), st.booleans())
def test_a_load_is_what_each_microbatch_holds(queues, found, lucky):
    """Of several minibatches at once as of each sample by hand, and with luck."""
    how = cost(3)
    luck = [np.linspace(0.5, 1.5, len(s.lengths)) for s in found] if lucky else []
    load = Load.of(how.model, found, luck, queues=queues)
    for b, schedule in enumerate(found):
        factor = luck[b] if lucky else np.ones(len(schedule.lengths))
        squares = how.model.squares(schedule.lengths)
        for d, device in enumerate((schedule.queue,) if queues else schedule.devices):
            assert load.counts[b, d] == len(device)
            for m in range(len(load.tokens)):
                held = list(device[m]) if m < len(device) else []
                expected = [sum(factor[i] * of[i] for i in held) for of in (schedule.lengths, squares, np.ones(99))]
                assert [load.tokens[m, b, d], load.squares[m, b, d], load.samples[m, b, d]] == expected


@given(st.lists(schedules(3), min_size=1, max_size=3), profiles, st.sampled_from(SYNCS))
def test_a_device_takes_no_time_for_microbatches_it_has_not(found, profile, sync):
    how = cost(3, profile, devices_per_node=2)
    steps, seconds = table(how, found, sync)
    counts = np.array([s.microbatches for s in found])
    assert np.array_equal(Load.of(how.model, found).counts, counts)
    for row, (what, m) in enumerate(steps.durations):
        assert (seconds[row][m >= counts] == 0).all()
        if what in TRANSFERS or (what == "overhead" and profile.overhead):
            assert (seconds[row][m < counts] > 0).all()


@pytest.mark.parametrize(
    ("model", "quadratic", "linear", "constant"), [(SMALL, 1.982, 2.612, 0.667), (LARGE, 4.348, 8.768, 0.951)]
)
@pytest.mark.parametrize("tokens", [100, 16_500, 65_536])
def test_one_microbatch_takes_the_published_seconds(model, quadratic, linear, constant, tokens):
    """The released fits of arXiv 2601.19362, x = tokens / 32000: all of it computes, the constant, too."""
    how, x = cost(8, model=model), tokens / 32_000
    np.testing.assert_allclose(spent(how, [even(tokens, 8)]), quadratic * x * x + linear * x + constant, rtol=1e-6)
    assert not spent(how, [even(tokens, 8)], ("overhead",)).any()


@pytest.mark.parametrize("model", [SMALL, LARGE])
def test_the_interval_of_a_catalogue_estimate_holds_the_published_fits(model):
    """From 8K to 64K tokens, though they were not fitted. Of compute alone: no rate knows of their constant."""
    lengths = np.arange(8_192, 65_537, 512)
    guess = estimate(catalog.model(model), A100, 8)
    ratio = cost(8, model=model).sample_seconds(lengths) / cost(8, guess, model).sample_seconds(lengths)
    assert guess.low < ratio.min() <= ratio.max() < guess.high
    # Not by being so wide that anything would fit.
    assert guess.high / guess.low <= 2
    assert ratio.max() / ratio.min() < 1.2


@pytest.mark.parametrize("devices", [8, 16])
def test_the_catalogue_moves_an_optimizer_step_through_memory(devices):
    """And the host's seconds to publish are the same on any number of devices."""
    model, guess = catalog.model(SMALL), estimate(catalog.model(SMALL), A100, devices)
    shard = model.parameters / devices / (A100.memory_bandwidth * rates("ampere").moved)
    assert guess.optimizer == pytest.approx(28 * shard)
    assert guess.publish == pytest.approx(6 * shard + own_seconds(model))
    assert (guess.fidelity, guess.longest, guess.forward) == ("catalogue", 0, estimate(model, A100, 4).forward)
    assert guess.forward.quadratic < guess.backward.quadratic


@given(st.integers(1, 2**31 - 1), st.integers(0, 10**6))
def test_a_sample_longer_than_any_measured_is_extrapolated(length, longest):
    """So are fuller or emptier microbatches, and other devices."""
    assert FIT.longest == fits.published(LARGE, "a100").longest == 65_536
    fit = replace(FIT, fewest=0)
    for profile in (fit, replace(fit, fidelity="calibrated")):
        found = fidelity(cost(2, replace(profile, longest=longest)), [even(1, 2), even(length, 2)])
        assert found == ("extrapolated" if longest and length > longest else profile.fidelity)
    for known, devices, expected in (
        ({"most_tokens": 16}, 2, True), ({"most_tokens": 15}, 2, False), ({"fewest": 16}, 2, True),
        ({"fewest": 17}, 2, False), ({"timings": MEASURED}, 4, True), ({"timings": MEASURED}, 2, False),
    ):  # fmt: skip
        two = Schedule.of((8,) * 2 * devices, tuple(((2 * d, 2 * d + 1),) for d in range(devices)))
        assert (fidelity(cost(devices, replace(fit, **known)), [two]) == fit.fidelity) == expected


@given(st.lists(schedules(4), min_size=1, max_size=2), profiles, st.floats(0.5, 4))
def test_a_slow_device_is_slow_in_compute_alone(found, profile, factor):
    usual, slow = (table(cost(4, profile, slow=pairs), found) for pairs in ((), ((2, factor),)))
    for row, (what, _) in enumerate(usual[0].durations):
        expected = usual[1][row].copy()
        if what in COMPUTES:
            expected[:, 2] *= factor
        assert np.array_equal(slow[1][row], expected), what


@pytest.mark.parametrize("included", [False, True])
@pytest.mark.parametrize("model", [SMALL, LARGE])
def test_transfers_inside_a_node_are_alike_and_between_nodes_one_sided_ones_take_a_factor(model, included):
    """The paper measured no difference inside a node, and 3 to 4 times NCCL's collectives between nodes. In nodes of
    eight a card's line rate bounds it; in smaller ones a ring gains less, and the measured factor is kept."""
    fit = replace(fits.published(model, "a100"), node_transfers_included=included)
    for per_node, factor in ((16, 1.0), (8, 4.4), (4, 3.5)):
        how = cost(16, fit, model, devices_per_node=per_node, nics_per_node=per_node, hop=0.0)
        how = how.by(reshard=False)  # nothing is gathered beside a push
        by_sync = [rows(how, even(1000, 16), sync) for sync in ("collective", "on-demand")]
        latency = how.cluster.latency
        for what in TRANSFERS:
            ring, one_sided = (seconds[what] for seconds in by_sync)
            if per_node == 16 and included:
                assert ring == one_sided == 0  # a fit made inside a node holds them already
            else:
                assert ring > latency
                assert one_sided - latency == pytest.approx(factor * (ring - latency))


def test_gradients_weigh_twice_what_parameters_do_and_the_root_what_it_holds():
    """Parameters travel in the profile's dtype, gradients in fp32."""
    how = cost(8, replace(FIT, node_transfers_included=False), latency=0.0)
    found, model = rows(how, even(1000, 8), "collective"), how.model
    assert found["push layer"] == pytest.approx(2 * found["gather layer"])
    assert found["gather root"] / found["gather layer"] == pytest.approx(model.root_parameters / model.layer_parameters)
    # A ring of N moves (N - 1) / N of the bytes over each device's own link.
    reached = A100.link_bandwidth * how.cluster.link_share
    assert found["gather layer"] == pytest.approx(2 * model.layer_parameters * 7 / 8 / reached)
    # With few NICs a node, the factor alone would let one device pull faster than all its node's NICs together.
    few = {"devices_per_node": 4, "nics_per_node": 1, "latency": 0.0, "hop": 0.0}
    ring, alone = (fixed(8, FIT, sync, **few) for sync in ("collective", "on-demand"))
    assert alone["gather layer"] >= ring["gather layer"] > 0
    timings = (Timing("gather", 4, 0, 1e-9), Timing("push", 4, 0, 1e-9))
    for dtype, of_push in (("", 1), ("bfloat16", 1), ("float16", 1), ("float32", 2)):
        row = fixed(4, replace(FIT, timings=timings, dtype=dtype))
        assert row["gather layer"] == pytest.approx(of_push * row["push layer"] / 2)


@given(st.integers(1, 64), st.integers(1, 8), st.integers(1, 8), st.sampled_from(SYNCS))
def test_seconds_are_finite_and_a_device_alone_moves_nothing(devices, per_node, nics, sync):
    how = Cost(catalog.model(SMALL), FIT, Cluster(devices, per_node, 3e11, 2.5e10, nics))
    steps, seconds = table(how, [even(1000, devices)], sync)
    assert (np.isfinite(seconds) & (seconds >= 0)).all()
    transfers = [what in (*TRANSFERS, "meeting", "meeting to settle") for what, _ in steps.durations]
    assert devices > 1 or not seconds[transfers].any()


MEASURED = (
    *(Timing(kind, 4, 1e-3 * i, 1e-9 * i) for i, kind in enumerate(("gather", "push", "all-gather"), 1)),
    Timing("reduce-scatter", 4, 7e-3, 7e-9),
    *(Timing(kind, 4, i) for i, kind in enumerate(("meeting", "optimizer", "publish", "settle"), 11)),
)


@given(st.floats(0.1, 10))
def test_measured_transfers_take_the_place_of_the_clusters_rates(slowdown):
    """A slowdown makes them that much longer, and nothing else."""
    fit, model = replace(FIT, timings=tuple(replace(t, slowdown=slowdown) for t in MEASURED)), catalog.model(SMALL)
    for sync, (get, put) in {"on-demand": (1, 2), "collective": (3, 7), "deferred": (3, 7)}.items():
        row = fixed(4, fit, sync)
        for unit, parameters in {"root": model.root_parameters, "layer": model.layer_parameters}.items():
            assert row[f"gather {unit}"] == pytest.approx(slowdown * get * (1e-3 + 1e-9 * 2 * parameters))
            assert row[f"push {unit}"] == pytest.approx(slowdown * put * (1e-3 + 1e-9 * 4 * parameters))
        assert (row.get("meeting", 11), row["optimizer"], row.get("publish", 13)) == (11, 12, 13)
        assert row["meeting to settle"] == 14


def test_across_nodes_measured_transfers_hold_for_as_many_devices_alone():
    """What a device does by itself needs no network, so that holds for any number."""
    fit = replace(FIT, overhead=9.0, timings=(*MEASURED, Timing("overhead", 4, 5.0)))
    nodes = {"devices_per_node": 2, "nics_per_node": 2}
    assert fixed(4, fit, **nodes)["gather layer"] > 1e-3
    more, rates = fixed(8, fit, **nodes), fixed(8, replace(fit, timings=()), **nodes)
    alone = {what for what in more if more[what] != rates[what]}
    assert alone == {"meeting to settle", "optimizer", "publish", "overhead"}
    assert (more["optimizer"], more["overhead"], rates["overhead"]) == (6, 5, 9)
    fit = replace(fit, timings=(Timing("overhead", 2, 1.0), Timing("overhead", 4, 3.0)))
    assert [fixed(n, fit)["overhead"] for n in (2, 3, 4)] == [1, 2, 3]


@pytest.mark.parametrize("sync", SYNCS)
def test_kernels_that_copy_take_a_part_of_the_compute_beside_them(sync):
    """As long as they run: a gather in forward, and in backward a push as well. Copy engines gather for nothing."""
    guess = estimate(catalog.model(SMALL), A100, 8)
    alone, beside = (cost(8, replace(guess, copying=share)) for share in (0.0, 0.25))
    engines = beside.by(copies="engines")
    free, taken, relieved = (rows(how, even(9000, 8), sync) for how in (alone, beside, engines))
    gather, push = free["gather layer"], free["push layer"]
    assert 0 < gather < free["forward"]
    assert taken["forward"] - free["forward"] == pytest.approx(0.25 * gather)
    assert taken["backward"] - free["backward"] == pytest.approx(0.25 * (gather + push))
    assert relieved["forward"] == free["forward"]
    assert relieved["backward"] - free["backward"] == pytest.approx(0.25 * push)
    assert taken["head"] == free["head"]


@given(st.floats(0, 100))
def test_what_on_demand_is_said_to_cost_is_added_to_each_of_its_minibatches_alone(seconds):
    for sync in SYNCS:
        before, after = (table(replace(cost(4), on_demand_cost=s), [even(9, 4)], sync)[1] for s in (0.0, seconds))
        assert (after - before).sum(axis=0) == pytest.approx(seconds if sync == "on-demand" else 0.0)
    assert replace(cost(1), on_demand_cost=seconds).transfers(True) == cost(1).transfers(True)


def test_compute_is_forward_backward_and_the_microbatch_constant_and_nothing_else():
    """Of a profile whose every coefficient can be told apart, on two devices with two or three samples each."""
    profile = Profile(
        *(SMALL, "a100", "calibrated", "a test"),
        forward=Polynomial(0.0, 1e-6, 1e-10, 0.03), backward=Polynomial(0.0, 2e-6, 3e-10), head=Polynomial(0.0, 4e-6),
        embed=Polynomial(0.0, 5e-7), microbatch=0.25, overhead=0.5, optimizer=2.0, publish=1.0,
    )  # fmt: skip
    found, work, how = Schedule.of((3000, 1000, 2000, 500, 7), (((0, 1),), ((2, 3, 4),))), 0.0, cost(2, profile)
    steps, seconds = table(how, [found])
    for device, lengths in enumerate(((3000, 1000), (2000, 500, 7))):
        tokens, squares = sum(lengths), sum(n * n for n in lengths)
        forward = 1e-6 * tokens + 1e-10 * squares + 0.03 * len(lengths)
        assert seconds[steps.durations.index(("forward", 0)), 0, device] == pytest.approx(forward)
        assert seconds[steps.durations.index(("overhead", 0)), 0, device] == 0.5
        work += how.model.layers * (forward + 2e-6 * tokens + 3e-10 * squares) + (4e-6 + 2 * 5e-7) * tokens + 0.25
    assert usage([found], how.by(sync="on-demand")).compute.sum() == pytest.approx(work)


# What a profile knows of numbers of devices that it was not measured with

seconds = st.floats(0, 1e6)


@given(st.sampled_from(TIMINGS), st.integers(2, 8), st.integers(9, 20), st.tuples(*6 * [seconds]))
def test_between_measured_numbers_of_devices_lies_a_straight_line(kind, low, high, values):
    a, b, c, d, e, f = values
    profile = replace(FIT, timings=(Timing(kind, low, a, b, e), Timing(kind, high, c, d, f)))
    assert [profile.timing(kind, n) for n in (low, high)] == list(profile.timings)
    for devices in range(low, high + 1):
        share = (devices - low) / (high - low)
        found = profile.timing(kind, devices)
        assert found.constant == pytest.approx(a + share * (c - a), abs=1e-6)
        assert found.per_byte == pytest.approx(b + share * (d - b), abs=1e-6)
        assert found.slowdown == pytest.approx(e + share * (f - e), abs=1e-6)


@given(st.integers(2, 64), st.integers(2, 64), seconds)
def test_beyond_them_shards_shrink_and_what_comes_from_others_grows(measured, asked, value):
    def timed(*found: Timing) -> Profile:
        return replace(FIT, timings=found)

    for kind in OF_OTHERS:
        found = timed(Timing(kind, measured, 1.0, value, 1.5)).timing(kind, asked)
        assert (found.constant, found.slowdown) == (1.0, 1.5)
        assert found.per_byte * asked / (asked - 1) == pytest.approx(value * measured / (measured - 1))
    for kind in SHARDED:
        there = timed(Timing(kind, measured, value)).timing(kind, asked)
        assert there.constant * asked == pytest.approx(value * measured)
    for kind in ("meeting", "overhead"):
        assert timed(Timing(kind, measured, value)).timing(kind, asked).constant == value
    assert timed(Timing("gather", measured)).timing("meeting", measured) is FIT.timing("gather", 2) is None

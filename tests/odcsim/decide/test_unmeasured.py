"""A fit is as certain as its run was of what was in it, and no more than the catalogue of what was not."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

import odcsim
from odcsim import catalog, profile
from odcsim.catalog.estimates.rates import INTERVAL, kinds, spreads, together
from odcsim.decide.calibrate import REPEAT
from odcsim.decide.unmeasured import SHARES
from odcsim.fitting.fit import fit
from odcsim.measurements import Compute, Measurements

MODEL, GPU = "qwen3-0.6b", "a100"
EVEN = odcsim.Trace("even", np.full(640, 2048))
RUN = {"gpu": GPU, "devices": 4, "minibatch": 4, "minibatches": 4, "max_tokens": 8192}
WHY = "a wider interval, for what was not measured: "
SPREAD = together(spreads(), kinds("ampere", catalog.model(MODEL), odcsim.ask(EVEN, MODEL, **RUN).cost.recipe))
MORE = {"devices": {"devices_per_node": 16}, "minibatch": {}}


def ran(path, **words):
    """A profile from a number, of the run that these words differ from."""
    said = {"trace": EVEN, "model": MODEL, **RUN, **words}
    odcsim.fit(measured_tokens_per_second=20_000.0 * said["devices"], output=path, **said)
    return str(path)


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    return ran(tmp_path_factory.mktemp("fit") / "mine.json", sync="collective", balancer="lb-micro")


def of(path, trace=EVEN, **words):
    return odcsim.ask(trace, MODEL, **{**RUN, "profile": path, **words}).cost.profile


def reach(found) -> float:
    assert found.low == pytest.approx(1 / found.high)
    return math.log(found.high)


def long(tokens: int):
    return odcsim.Trace("long", np.full(640, tokens))


# By what is asked otherwise than the run was: which parts of the catalogue's spread that adds.
@pytest.mark.parametrize(("words", "names"), [
    ({}, []),
    ({"devices": 8}, ["devices"]),
    ({"devices": 2}, ["devices"]),
    ({"devices": 16, "sharding": "full"}, ["devices", "nodes"]),
    ({"devices_per_node": 2, "sharding": "full"}, ["nodes"]),
    ({"minibatch": 8}, ["batch"]),
    ({"trace": long(8192), "minibatch": 1}, ["lengths"]),
    ({"trace": long(4096)}, ["lengths", "batch"]),
    ({"trace": long(1024), "devices": 64, "minibatch": 64, "sharding": "full"},
     ["devices", "nodes", "lengths", "batch"]),
])  # fmt: skip
def test_what_differs_adds_its_part_of_the_catalogues_spread_in_squares(fitted, words, names):
    usual, found = of(fitted), of(fitted, **words)
    added = INTERVAL * SPREAD * math.hypot(*(SHARES[name] for name in names))
    assert reach(found) == pytest.approx(math.hypot(reach(usual), added))
    assert (WHY in found.origin) == bool(names)
    assert WHY not in of(None, **words).origin  # the catalogue's interval is of any run
    assert found.origin.partition(WHY)[2].count(", not ") == len(names)


def test_other_sharding_between_nodes_adds_all_of_it(tmp_path):
    path = ran(tmp_path / "two.json", devices=16)
    same, other = (of(path, devices=16, sharding=how) for how in ("full", "hybrid"))
    assert reach(same) == pytest.approx(INTERVAL * REPEAT)
    assert reach(other) == pytest.approx(math.hypot(reach(same), INTERVAL * SPREAD))
    assert other.origin.count(", not ") == 1


@pytest.mark.parametrize("name", MORE)
def test_the_further_the_wider_up_to_a_doubling(fitted, name):
    found = [reach(of(fitted, **{name: count})) for count in range(4, 9)]
    assert found == sorted(set(found))
    assert reach(of(fitted, **{name: 16}, **MORE[name])) == pytest.approx(found[-1])


def timed(noise=lambda: 1.0, repeats: int = 1):
    """Calls of a layer and a head, up to 4,096 tokens."""
    for kind, attends in (("forward", 1e-9), ("backward", 2e-9), ("head", 0.0)):
        for tokens, samples in itertools.product((512, 1024, 2048, 4096), (1, 2, 4)):
            squares = tokens**2 / samples
            seconds = 1e-4 + 1e-6 * tokens + attends * squares
            for _ in range(repeats):
                yield Compute(kind, tokens, squares, seconds * noise(), tokens // samples, 1, samples)


def test_timed_calls_are_no_surer_than_one_repeats():
    """However many repeats bring the fit's own error down."""
    rng = np.random.default_rng(0)
    found = fit(Measurements(MODEL, GPU, tuple(timed(lambda: float(rng.lognormal(0, 0.04)), 30))))
    assert found.jitter == pytest.approx(0.04, rel=0.2)
    assert min(math.log(found.high), -math.log(found.low)) >= INTERVAL * found.jitter * 0.9


def test_timed_microbatches_know_no_other_devices_and_no_longer_samples(tmp_path):
    made = replace(fit(Measurements(MODEL, GPU, tuple(timed()))), run=profile.ProfileRun(devices=1))
    profile.write(made, tmp_path / "timed.json")
    asked = ((4096, 1), (4096, 4), (8192, 1))
    one, four, longer = (of(str(tmp_path / "timed.json"), long(tokens), devices=count) for tokens, count in asked)
    assert WHY not in one.origin
    assert one.high < four.high < longer.high


def test_a_log_that_repeats_itself_is_no_surer_than_runs_are_alike(tmp_path):
    log = tmp_path / "log.csv"
    for rows in (1, 12):
        log.write_text("step,seconds,tokens\n" + "".join(f"{n + 1},1.0,32768\n" for n in range(rows)))
        found = odcsim.fit(log, trace=EVEN, model=MODEL, sync="collective", balancer="lb-micro", **RUN).profile
        assert reach(found) == pytest.approx(INTERVAL * REPEAT)
        assert reach(found) > 0.03

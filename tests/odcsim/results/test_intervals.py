"""The interval of a speedup covers the truth of what a trace is a sample of, about as often as it says."""

from collections.abc import Mapping

import numpy as np
import pytest

from odcsim.results.intervals import apart, draws, interval, of_run
from odcsim.trace import Trace

CONTEXT = 65_536
BAND = (0.90, 0.995)  # of intervals that say 95 %
LEAST = 0.85  # of them, whatever the lengths
POPULATIONS = {
    "log-normal": lambda rng, size: rng.lognormal(7.5, 1.3, size),
    "a few long ones": lambda rng, size: np.where(
        rng.random(size) < 0.08, rng.uniform(8000, CONTEXT, size), rng.lognormal(6, 0.7, size)
    ),
    "even": lambda rng, size: rng.uniform(100, 8000, size),
}


def work(lengths: np.ndarray) -> np.ndarray:
    return 20_000 * lengths + lengths * lengths


def lengths(population: str, rng: np.random.Generator, size: int) -> np.ndarray:
    return np.clip(POPULATIONS[population](rng, size), 16, CONTEXT).astype(np.int64)


def makespans(work: np.ndarray, devices: int, rng: np.random.Generator) -> Mapping[str, np.ndarray]:
    """Minibatches [minibatch, sample] on devices that wait for each other in each microbatch, or at the end."""
    count, turns = len(work), work.shape[1] // devices
    dealt = -np.sort(-work, axis=1).reshape(count, turns, devices)
    dealt[:, 1::2] = dealt[:, 1::2, ::-1].copy()
    order = rng.permuted(np.broadcast_to(np.arange(turns)[None, :, None], dealt.shape).copy(), axis=1)
    return {
        "reference": np.take_along_axis(dealt, order, axis=1).max(axis=2).sum(axis=1),
        "at the end": dealt.sum(axis=1).max(axis=1),
        "sorted": dealt.max(axis=2).sum(axis=1),
        "unplanned": work.reshape(count, devices, turns).max(axis=1).sum(axis=1),
    }


def coverage(population: str, size: int, minibatches: int, devices: int, turns: int, times: int) -> dict[str, float]:
    """How often each speedup's interval holds the population's, over so many traces."""
    rng = np.random.default_rng(size + minibatches)
    samples = devices * turns
    drawn = work(lengths(population, rng, 1_000_000 // samples * samples).reshape(-1, samples))
    truth = {name: spans.sum() for name, spans in makespans(drawn, devices, rng).items()}
    held = dict.fromkeys(truth, 0)
    for seed in range(times):
        trace = Trace("t", lengths(population, rng, size))
        ids = trace.minibatches(samples, minibatches, seed=seed)
        seconds = [work(trace.lengths[i]) for i in ids]
        found, about = makespans(np.array(seconds), devices, rng), draws(ids, seconds, size)
        for name, spans in found.items():
            low, high = interval(found["reference"], spans, about)
            held[name] += low <= truth["reference"] / truth[name] <= high
    return {name: count / times for name, count in held.items() if name != "reference"}


def misses(population: str, size: int, minibatches: int, turns: int = 4, times: int = 300) -> list[str]:
    """What is not inside the band, by more than the number of traces leaves to chance (2 standard errors)."""
    low, high = (
        share + 2 * sign * (share * (1 - share) / times) ** 0.5 for share, sign in zip(BAND, (-1, 1), strict=True)
    )
    found = coverage(population, size, minibatches, 8, turns, times)
    return [f"{name}: {share:.1%}" for name, share in found.items() if not low <= share <= high]


@pytest.mark.parametrize(("size", "minibatches"), [(640, 60), (3000, 20)])
def test_it_covers_the_population_with_heavy_tails(size, minibatches):
    assert misses("log-normal", size, minibatches, times=150) == []


@pytest.mark.slow
@pytest.mark.parametrize("population", POPULATIONS)
@pytest.mark.parametrize("minibatches", [5, 20, 200])
@pytest.mark.parametrize("size", [300, 640, 3000, 100_000])
def test_it_covers_the_population_whatever_the_trace(size, minibatches, population):
    """Five minibatches of even lengths are at the band's end, so more traces have to tell on which side of it."""
    assert misses(population, size, minibatches, times=1000 if minibatches == 5 else 300) == []


def told_apart_by_few(minibatches: int, times: int) -> float:
    """How often the interval holds the ratio of two rows that one minibatch in fifty tells apart, by a twentieth."""
    rng, held = np.random.default_rng(minibatches), 0
    for _ in range(times):
        spans = rng.lognormal(0, 0.3, minibatches)
        low, high = interval(spans, spans / (1 + 0.05 * (rng.random(minibatches) < 0.02)), apart(minibatches))
        held += low <= 1.001 <= high
    return held / times


@pytest.mark.parametrize("minibatches", [5, 20, 60])
def test_rows_alike_in_all_that_was_drawn_may_differ_in_what_was_not(minibatches):
    assert told_apart_by_few(minibatches, 200) >= LEAST


def held_of_rollouts(spread: float, times: int, *, in_order: bool) -> dict[str, float]:
    """How often speedups hold, and what a run on very many takes, of 80 prompts with eight rollouts each: log-lengths
    vary by 0.8, so much of it between prompts."""
    held: dict[str, int] = {}
    within = (0.8**2 - spread**2) ** 0.5

    def drawn(rng: np.random.Generator, prompts: int) -> np.ndarray:
        logs = 8 + spread * rng.standard_normal((prompts, 1)) + within * rng.standard_normal((prompts, 8))
        return np.clip(np.exp(logs).ravel(), 16, 16_384).astype(np.int64)

    rng = np.random.default_rng(round(100 * spread))
    many = drawn(rng, 40_000)
    many = many if in_order else rng.permutation(many)
    truth = {name: spans.sum() for name, spans in makespans(work(many.reshape(-1, 32)), 8, rng).items()}
    for seed in range(times):
        trace = Trace("t", drawn(rng, 80), group=np.repeat(np.arange(80), 8))
        ids = trace.minibatches(32, 20, seed=seed, in_order=in_order)
        seconds = [work(trace.lengths[i]) for i in ids]
        found = makespans(np.array(seconds), 8, rng)
        about = draws(ids, seconds, trace.size, kin=[trace.prompts[i] for i in ids])
        for name, spans in found.items():
            low, high = interval(found["reference"], spans, about)
            held[name] = held.get(name, 0) + (low <= truth["reference"] / truth[name] <= high)
        low, high = of_run(found["at the end"], about.of_all(10**9), 1.0, 1.0)
        mean = truth["at the end"] / (len(many) // 32)
        held["a run"] = held.get("a run", 0) + (low <= mean / found["at the end"].mean() <= high)
    return {name: count / times for name, count in held.items() if name != "reference"}


@pytest.mark.parametrize("in_order", [False, True])
@pytest.mark.parametrize("spread", [0.2, 0.75])
def test_rollouts_of_a_prompt_are_alike_and_tell_less(spread, in_order):
    assert min(held_of_rollouts(spread, 150, in_order=in_order).values()) >= LEAST


def test_likeness_counts_for_what_is_outside_the_trace_alone():
    """An epoch of the trace has these very samples, so what was drawn of them is known; of a dataset it is a part."""
    rng = np.random.default_rng(2)
    trace = Trace("t", np.repeat(rng.lognormal(7, 1, 80), 8).astype(np.int64), group=np.repeat(np.arange(80), 8))
    ids = trace.minibatches(32, 20)
    seconds = [work(trace.lengths[i]) for i in ids]
    found = draws(ids, seconds, 640, kin=[trace.prompts[i] for i in ids])
    assert found.lasting > 2 * draws(ids, seconds, 640).lasting
    assert found.of_all(640).lasting == pytest.approx(0)
    assert found.of_all(10**9).lasting == pytest.approx(found.lasting)
    assert found.of_all(1280).lasting == pytest.approx(
        draws(ids, seconds, 640).of_all(1280).lasting + 0.5 * (found.lasting - 1 / 20)
    )


def held_of_epochs(size: int, minibatches: int, times: int) -> float:
    """How often the interval of a run holds what an epoch of the trace comes to, in minibatches drawn anew."""
    rng, held = np.random.default_rng(size + minibatches), 0
    for seed in range(times):
        trace = Trace("t", lengths("log-normal", rng, size))
        spans, about = [], None
        for count, shuffle in ((minibatches, seed), (size // 32, seed + times)):
            ids = trace.minibatches(32, count, seed=shuffle)
            seconds = [work(trace.lengths[i]) for i in ids]
            about = about or draws(ids, seconds, size).of_all(size)
            spans.append(makespans(np.array(seconds), 8, rng)["at the end"])
        low, high = of_run(spans[0], about, 1.0, 1.0)
        held += low <= spans[1].mean() / spans[0].mean() <= high
    return held / times


@pytest.mark.parametrize(("size", "minibatches"), [(1600, 12), (1600, 40), (6400, 40)])
def test_a_run_comes_to_what_its_interval_says_nine_times_in_ten(size, minibatches):
    """An epoch has other minibatches of the same samples, so the epoch itself varies, too: a little less than 90 %."""
    assert 0.8 <= held_of_epochs(size, minibatches, 150) <= 0.99


def test_doubts_of_seconds_and_of_minibatches_add_up_by_their_squares():
    spans = np.random.default_rng(5).lognormal(0, 0.3, 30)
    drawn = of_run(spans, apart(30), 1.0, 1.0)
    both = of_run(spans, apart(30), 0.8, 1.3)
    assert 1 - both[0] == pytest.approx(np.hypot(0.2, 1 - drawn[0]))
    assert both[1] - 1 == pytest.approx(np.hypot(0.3, drawn[1] - 1))
    assert of_run(spans[:1], apart(1), 0.8, 1.3) == pytest.approx((0.8, 1.3))


def run(size: int, minibatches: int, seed: int = 0, *, whole: bool = False) -> tuple[float, float]:
    rng = np.random.default_rng(seed)
    trace = Trace("t", lengths("log-normal", rng, size))
    ids = trace.minibatches(32, minibatches, seed=seed)
    seconds = [work(trace.lengths[i]) for i in ids]
    found = makespans(np.array(seconds), 8, rng)
    return interval(found["reference"], found["at the end"], draws(ids, seconds, size, whole=whole))


def width(bounds: tuple[float, float]) -> float:
    return bounds[1] / bounds[0] - 1


def narrowed(size: int) -> float:
    """How much narrower twenty times the minibatches make it, in the middle of some traces."""
    return float(np.median([width(run(size, 400, seed)) / width(run(size, 20, seed)) for seed in range(7)]))


def test_passes_over_a_small_trace_are_not_independent():
    """Of samples that are all others the interval is narrower by the root of twenty."""
    assert narrowed(640) > 0.42
    assert narrowed(64_000) < 0.3


@pytest.mark.parametrize("seed", range(5))
def test_what_is_all_there_is_leaves_less_open(seed):
    assert width(run(640, 200, seed, whole=True)) < 0.7 * width(run(640, 200, seed))


def test_a_ratio_that_every_minibatch_has_is_known_as_far_as_there_are_others():
    """The next one may be another, of which more minibatches leave less."""
    rng, widths = np.random.default_rng(3), []
    for minibatches in (5, 50, 500):
        spans = rng.uniform(1, 3, minibatches)
        low, high = interval(spans, spans / 2, apart(minibatches))
        assert low < 2 < high
        widths.append(high - low)
    assert widths[0] > 5 * widths[1] > 25 * widths[2]
    assert widths[1] < 0.01
    assert interval(spans[:1], spans[:1] / 3, apart(1)) == pytest.approx((3, 3))


def test_an_order_that_starts_over_says_nothing_new():
    """Recorded minibatches are run again once all have been run."""
    rng = np.random.default_rng(0)
    trace = Trace("t", lengths("log-normal", rng, 320))
    above, below = rng.uniform(1, 2, 10), rng.uniform(1, 2, 10)
    bounds = []
    for times in (1, 5):
        ids = trace.minibatches(32, 10 * times, in_order=True)
        about = draws(ids, [work(trace.lengths[i]) for i in ids], trace.size)
        bounds.append(interval(np.tile(above, times), np.tile(below, times), about))
    assert bounds[0] == pytest.approx(bounds[1])

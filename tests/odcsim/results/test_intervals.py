"""The interval of a speedup covers the truth of what a trace is a sample of, about as often as it says.

Of independent samples, of answers to prompts, and of files whose neighbours are alike, by a column or their order."""

import numpy as np
import pytest

from odcsim.results.intervals import Draws, apart, draws, interval, of_run
from odcsim.trace import Trace

DEVICES, SAMPLES, SIZE = 8, 32, 640
MOST = 32_768  # tokens, in files whose neighbours may be alike
BAND = (0.90, 0.995)  # of intervals that say 95 %
LEAST = 0.85  # of them, whatever the lengths
POPULATIONS = {
    "log-normal": lambda rng, size: rng.lognormal(7.5, 1.3, size),
    "a few long ones": lambda rng, size: np.where(
        rng.random(size) < 0.08, rng.uniform(8000, 65_536, size), rng.lognormal(6, 0.7, size)
    ),
    "even": lambda rng, size: rng.uniform(100, 8000, size),
}


def lengths(drawn: np.ndarray, most: int = 65_536) -> np.ndarray:
    return np.clip(np.rint(drawn), 16, most).astype(np.int64)


def work(lengths: np.ndarray) -> np.ndarray:
    return 20_000.0 * lengths + lengths.astype(float) ** 2


def spans(loads: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Of minibatches [minibatch, sample] on devices that take samples by their work, to and fro, and wait for each
    other in each microbatch, of which none knows the others' order; or at the end."""
    dealt = -np.sort(-loads, axis=1).reshape(len(loads), -1, DEVICES)
    dealt[:, 1::2] = dealt[:, 1::2, ::-1].copy()
    order = rng.permuted(np.indices(dealt.shape)[1], axis=1)
    return np.take_along_axis(dealt, order, axis=1).max(axis=2).sum(axis=1), dealt.sum(axis=1).max(axis=1)


class Drawn:
    """Minibatches of a trace: their spans, and what is known of them."""

    def __init__(self, trace: Trace, minibatches: int, seed: int = 0, *, file=False, in_order=False, **known):
        ids = trace.minibatches(SAMPLES, minibatches, seed=seed, in_order=in_order)
        loads = [work(trace.lengths[i]) for i in ids]
        known |= {} if trace.group is None else {"kin": [trace.prompts[i] for i in ids]}
        self.about = draws(ids, loads, trace.size, file=work(trace.lengths) if file else None, **known)
        self.above, self.below = spans(np.stack(loads), np.random.default_rng(seed))

        self.low, self.high = interval(self.above, self.below, self.about)
        self.width = self.high / self.low - 1

    def holds(self, truth: float) -> bool:
        return self.low <= truth <= self.high


def truth_of(drawn: np.ndarray) -> tuple[float, float]:
    """The speedup, and seconds of a minibatch, of very many samples."""
    many = lengths(drawn)
    many = many[: len(many) // SAMPLES * SAMPLES].reshape(-1, SAMPLES)
    above, below = spans(work(many), np.random.default_rng(0))
    return above.sum() / below.sum(), below.mean()


def coverage(population: str, size: int, minibatches: int, times: int) -> bool:
    """Whether intervals are in the band, give or take what the number of traces leaves to chance."""
    rng, draw = np.random.default_rng(size + minibatches), POPULATIONS[population]
    truth, _ = truth_of(draw(rng, 500_000))
    held = np.mean([Drawn(Trace("t", lengths(draw(rng, size))), minibatches, s).holds(truth) for s in range(times)])
    low, high = (b + 2 * sign * (b * (1 - b) / times) ** 0.5 for b, sign in zip(BAND, (-1, 1), strict=True))
    return low <= held <= high


@pytest.mark.parametrize(("size", "minibatches"), [(640, 60), (3000, 20)])
def test_it_covers_the_population_with_heavy_tails(size, minibatches):
    assert coverage("log-normal", size, minibatches, 150)


@pytest.mark.slow
@pytest.mark.drawn(12)
@pytest.mark.parametrize("population", POPULATIONS)
@pytest.mark.parametrize("minibatches", [5, 20, 200])
@pytest.mark.parametrize("size", [300, 640, 3000, 100_000])
def test_it_covers_the_population_whatever_the_trace(size, minibatches, population):
    """Five minibatches of even lengths are at the band's end, so more traces have to tell on which side of it."""
    assert coverage(population, size, minibatches, 1000 if minibatches == 5 else 300)


@pytest.mark.parametrize("minibatches", [5, 20, 60])
def test_rows_alike_in_all_that_was_drawn_may_differ_in_what_was_not(minibatches):
    """Of two rows that one minibatch in fifty tells apart, by a twentieth."""
    rng, held = np.random.default_rng(minibatches), 0
    for _ in range(200):
        drawn = rng.lognormal(0, 0.3, minibatches)
        low, high = interval(drawn, drawn / (1 + 0.05 * (rng.random(minibatches) < 0.02)), apart(minibatches))
        held += low <= 1.001 <= high
    assert held / 200 >= LEAST


@pytest.mark.parametrize("in_order", [False, True])
@pytest.mark.parametrize("spread", [0.2, 0.75])
def test_rollouts_of_a_prompt_are_alike_and_tell_less(spread, in_order):
    """Of 80 prompts with eight rollouts each: log-lengths vary by 0.8, so much of it between prompts. Speedups hold,
    and what a run on very many takes."""
    rng = np.random.default_rng(round(100 * spread))

    def prompts(count: int) -> np.ndarray:
        within = (0.8**2 - spread**2) ** 0.5 * rng.standard_normal((count, 8))
        return np.exp(8 + spread * rng.standard_normal((count, 1)) + within).ravel()

    many = np.minimum(prompts(20_000), 16_384)
    speedup, seconds = truth_of(many if in_order else rng.permutation(many))
    held = []
    for seed in range(80):
        trace = Trace("t", lengths(prompts(80), 16_384), group=np.repeat(np.arange(80), 8))
        drawn = Drawn(trace, 20, seed, in_order=in_order)
        low, high = of_run(drawn.below, drawn.about.of_all(10**9), 1.0, 1.0)
        held.append((drawn.holds(speedup), low <= seconds / drawn.below.mean() <= high))
    assert min(np.mean(held, axis=0)) >= LEAST


@pytest.mark.parametrize(("size", "minibatches"), [(1600, 12), (1600, 40), (6400, 40)])
def test_a_run_comes_to_what_its_interval_says_nine_times_in_ten(size, minibatches):
    """An epoch has other minibatches of the same samples, so the epoch itself varies, too: a little less than 90 %."""
    rng, held = np.random.default_rng(size + minibatches), []
    for seed in range(100):
        trace = Trace("t", lengths(POPULATIONS["log-normal"](rng, size)))
        drawn, epoch = Drawn(trace, minibatches, seed), Drawn(trace, size // SAMPLES, seed + 1000)
        low, high = of_run(drawn.below, drawn.about.of_all(size), 1.0, 1.0)
        held.append(low <= epoch.below.mean() / drawn.below.mean() <= high)
    assert 0.8 <= np.mean(held) <= 0.99


def of_size(size: int, minibatches: int, seed: int, **known) -> Drawn:
    rng = np.random.default_rng(seed)
    return Drawn(Trace("t", lengths(POPULATIONS["log-normal"](rng, size))), minibatches, seed, **known)


def test_passes_over_a_small_trace_are_not_independent_and_what_is_all_there_is_leaves_less_open():
    """Of samples that are all others twenty times the minibatches make it narrower by the root of twenty."""
    for size, low, high in ((640, 0.42, 1), (64_000, 0, 0.3)):
        narrowed = [of_size(size, 400, s).width / of_size(size, 20, s).width for s in range(7)]
        assert low < np.median(narrowed) < high
    for seed in range(5):
        assert of_size(640, 200, seed, whole=True).width < 0.7 * of_size(640, 200, seed).width


def test_a_ratio_that_every_minibatch_has_is_known_as_far_as_there_are_others():
    """The next one may be another, of which more minibatches leave less; an order that starts over adds none."""
    rng, widths = np.random.default_rng(3), []
    for minibatches in (5, 50, 500):
        drawn = rng.uniform(1, 3, minibatches)
        low, high = interval(drawn, drawn / 2, apart(minibatches))
        assert low < 2 < high
        widths.append(high - low)
    assert widths[0] > 5 * widths[1] > 25 * widths[2]
    assert widths[1] < 0.01
    assert interval(drawn[:1], drawn[:1] / 3, apart(1)) == pytest.approx((3, 3))
    trace = Trace("t", lengths(rng.lognormal(7.5, 1.3, 320)))
    once, again = (Drawn(trace, 10 * times, in_order=True) for times in (1, 5))
    bounds = [interval(np.tile(once.above, n), np.tile(once.below, n), d.about) for n, d in ((1, once), (5, again))]
    assert bounds[0] == pytest.approx(bounds[1])


def lasting(about: Draws) -> float:
    return about.common(about.like)[1]


def test_likeness_counts_for_what_is_outside_the_trace_alone():
    """An epoch of the trace has these very samples, so what was drawn of them is known; of a dataset it is a part."""
    of = lengths(np.repeat(np.random.default_rng(2).lognormal(7, 1, 80), 8))
    found, singly = (Drawn(Trace("t", of, group=group), 20).about for group in (np.repeat(np.arange(80), 8), None))
    assert lasting(found) > 2 * lasting(singly)
    assert [lasting(found.of_all(n)) for n in (640, 10**9)] == pytest.approx([0, lasting(found)])
    assert lasting(found.of_all(1280)) == pytest.approx(lasting(singly.of_all(1280)) + 0.5 * (lasting(found) - 1 / 20))


def repeated(means: np.ndarray, times: np.ndarray, within: float, rng: np.random.Generator) -> np.ndarray:
    return np.exp(8 + np.repeat(means, times)[:SIZE] + within * rng.standard_normal(SIZE))


def grouped(each: int, between: float, within: float):
    return lambda rng: repeated(between * rng.standard_normal(SIZE), np.full(SIZE, each), within, rng)


def chained(rng: np.random.Generator) -> np.ndarray:
    logs = rng.standard_normal(SIZE)
    for place in range(1, SIZE):
        logs[place] = 0.8 * logs[place - 1] + 0.6 * logs[place]
    return np.exp(8 + 0.8 * logs)


ALIKE = {
    "groups of 8": grouped(8, 0.8, 0.1), "groups of 8, half alike": grouped(8, 0.6, 0.6),
    "groups of 4": grouped(4, 0.8, 0.2), "groups of 16": grouped(16, 0.8, 0.2), "like the one before": chained,
    "runs of 6 on average": lambda rng: repeated(0.8 * rng.standard_normal(SIZE), rng.geometric(1 / 6, SIZE), 0.2, rng),
}  # fmt: skip
UNLIKE = {
    **{name: lambda rng, draw=draw: draw(rng, SIZE) for name, draw in POPULATIONS.items()},
    "pareto": lambda rng: 300 * (1 + rng.pareto(1.3, SIZE)),
    "all the same": lambda _: np.full(SIZE, 4096.0),
}
ORDERED = {
    "sorted": lambda rng: np.sort(rng.lognormal(8, 1, SIZE)),
    "one source behind the other": lambda rng: rng.lognormal(np.repeat([6, 9], SIZE // 2), 0.5),
    "growing": lambda rng: np.exp(np.linspace(6, 9, SIZE) + 0.3 * rng.standard_normal(SIZE)),
}


def of_file(draw, seed: int, *, shuffled=False, column=False, **known) -> Drawn:
    rng = np.random.default_rng(seed)
    of = lengths(draw(rng), MOST)
    of = rng.permutation(of) if shuffled else of
    return Drawn(Trace("t", of, group=np.arange(SIZE) // 8 if column else None), 40, seed, **{"file": True} | known)


@pytest.mark.parametrize("name", ALIKE)
def test_files_of_groups_hold_the_truth_by_their_order_alone(name):
    """And as wide as files of the same kind differ, and as a column of them would have it; not where rows are
    shuffled."""
    many = np.concatenate([ALIKE[name](np.random.default_rng(seed)) for seed in range(10_000, 10_300)])
    truth, _ = truth_of(np.minimum(np.random.default_rng(0).permutation(many), MOST))
    mine, blind = ([of_file(ALIKE[name], seed, file=file) for seed in range(60)] for file in (True, False))
    assert np.mean([one.holds(truth) for one in mine]) >= 0.9
    width = np.mean([one.high - one.low for one in mine])
    assert width >= 1.25 * np.mean([one.high - one.low for one in blind])
    assert width <= 3 * 3.92 * np.std([one.above.sum() / one.below.sum() for one in mine])
    if name.startswith("groups of 8"):
        columns = [of_file(ALIKE[name], seed, column=True) for seed in range(60)]
        assert np.mean([one.holds(truth) for one in columns]) >= 0.9
        assert width == pytest.approx(np.mean([one.high - one.low for one in columns]), rel=0.25)
    shuffled = [of_file(ALIKE[name], seed, shuffled=True) for seed in range(40)]
    assert np.mean([len(one.about.like) == 1 for one in shuffled]) >= 0.95


@pytest.mark.parametrize("name", [*UNLIKE, *ORDERED])
def test_independent_samples_and_files_in_some_order_are_none_of_groups(name):
    """But for one file in fifty, in which neighbours are alike by chance, and hardly."""
    draw = (UNLIKE | ORDERED)[name]
    pairs = [(of_file(draw, seed).width, of_file(draw, seed, file=False).width) for seed in range(50)]
    mine, before = np.array(pairs).T
    assert np.mean(mine != before) <= (0.04 if name in UNLIKE else 0)
    assert mine.mean() <= 1.01 * before.mean()


@pytest.mark.parametrize("each", [2, 3, 4, 8, 16])
def test_the_likeness_of_neighbours_says_how_long_groups_are(each):
    likes = [of_file(grouped(each, 0.8, 0.3), seed).about.like[1:] for seed in range(20)]
    assert np.median([2 * like.sum() / like[0] for like in likes]) == pytest.approx(each, rel=0.2)


@pytest.mark.parametrize("alike", [200, 1600])
def test_seconds_of_a_run_of_batches_alike_in_length_are_covered(alike):
    """Of many groups that were sorted apart, and of few."""
    rng = np.random.default_rng(alike)
    trace = Trace("t", lengths(rng.lognormal(6.5, 1.2, 30_000), MOST))

    def seconds(minibatches: int, seed: int):
        ids = trace.minibatches(SAMPLES, minibatches, seed=seed, alike=alike)
        loads = [work(trace.lengths[i]) for i in ids]
        return ids, loads, np.array([max(of.max(), of.sum() / DEVICES) for of in loads])

    truth, held, times = seconds(930, 99)[2].mean(), 0, 80
    for seed in range(times):
        ids, loads, spent = seconds(96, seed)
        about = draws(ids, loads, trace.size, together=-(-alike // SAMPLES))
        low, high = of_run(spent, about, 1.0, 1.0)
        held += low * spent.mean() <= truth <= high * spent.mean()
    assert held / times >= LEAST

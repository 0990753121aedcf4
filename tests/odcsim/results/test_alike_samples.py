"""Files whose neighbours are alike: intervals are as wide as files of the same kind differ, whether a column says which
are of one group or only their order does. Independent samples are told from them, and keep their intervals."""

import numpy as np
import pytest

from odcsim.results.intervals import draws, interval

SIZE, SAMPLES, DEVICES = 640, 32, 8


def repeated(means: np.ndarray, times: np.ndarray, within: float, rng: np.random.Generator) -> np.ndarray:
    return np.exp(8 + np.repeat(means, times)[:SIZE] + within * rng.standard_normal(SIZE))


def chained(near: float, rng: np.random.Generator) -> np.ndarray:
    logs = rng.standard_normal(SIZE)
    for place in range(1, SIZE):
        logs[place] = near * logs[place - 1] + (1 - near**2) ** 0.5 * logs[place]
    return np.exp(8 + 0.8 * logs)


def grouped(each: int, between: float, within: float):
    return lambda rng: repeated(between * rng.standard_normal(SIZE), np.full(SIZE, each), within, rng)


ALIKE = {
    "groups of 8": grouped(8, 0.8, 0.1),
    "groups of 8, half alike": grouped(8, 0.6, 0.6),
    "groups of 4": grouped(4, 0.8, 0.2),
    "groups of 16": grouped(16, 0.8, 0.2),
    "runs of 6 on average": lambda rng: repeated(0.8 * rng.standard_normal(SIZE), rng.geometric(1 / 6, SIZE), 0.2, rng),
    "like the one before": lambda rng: chained(0.8, rng),
}
UNLIKE = {
    "log-normal": lambda rng: rng.lognormal(8, 1, SIZE),
    "pareto": lambda rng: 300 * (1 + rng.pareto(1.3, SIZE)),
    "3 % long": lambda rng: np.where(
        rng.random(SIZE) < 0.03, rng.uniform(2e4, 3e4, SIZE), rng.lognormal(6.5, 0.5, SIZE)
    ),
    "even": lambda rng: rng.uniform(100, 8000, SIZE),
    "all the same": lambda _: np.full(SIZE, 4096.0),
}
ORDERED = {
    "sorted": lambda rng: np.sort(rng.lognormal(8, 1, SIZE)),
    "one source behind the other": lambda rng: np.concatenate(
        [rng.lognormal(6, 0.5, SIZE // 2), rng.lognormal(9, 0.5, SIZE // 2)]
    ),
    "growing": lambda rng: np.exp(np.linspace(6, 9, SIZE) + 0.3 * rng.standard_normal(SIZE)),
}  # fmt: skip


def work(lengths: np.ndarray) -> np.ndarray:
    lengths = np.clip(np.rint(lengths), 16, 32_768)
    return 20_000 * lengths + lengths**2


def minibatches(seed: int, count: int = 40) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    passes = [rng.permutation(SIZE).reshape(-1, SAMPLES) for _ in range(-(-count * SAMPLES // SIZE))]
    return list(np.concatenate(passes)[:count])


def spans(loads: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of devices that take samples by their work, to and fro, and wait for each other in each microbatch, of which none
    knows the others' order; or at the end."""
    dealt = -np.sort(-loads, axis=1).reshape(len(loads), -1, DEVICES)
    dealt[:, 1::2] = dealt[:, 1::2, ::-1].copy()
    order = np.random.default_rng(0).permuted(np.indices(dealt.shape)[1], axis=1)
    return np.take_along_axis(dealt, order, axis=1).max(axis=2).sum(axis=1), dealt.sum(axis=1).max(axis=1)


def asked(of: np.ndarray, seed: int, *, column: bool = False, unknown: bool = False):
    """Interval, speedup, and what was known of the draws."""
    ids = minibatches(seed)
    loads = [of[each] for each in ids]
    kin = [each // 8 for each in ids] if column else None
    about = draws(ids, loads, SIZE, kin=kin, file=None if unknown else of)
    above, below = spans(np.stack(loads))
    return *interval(above, below, about), above.sum() / below.sum(), about


def told(draw, times: int, **how) -> tuple[float, float]:
    """How often the interval holds the truth, and its width over that which 95 % of files lie in."""
    found = np.array([asked(work(draw(np.random.default_rng(s))), s, **how)[:3] for s in range(times)])
    many = np.concatenate([work(draw(np.random.default_rng(s))) for s in range(10_000, 10_300)])
    above, below = spans(np.random.default_rng(0).permutation(many).reshape(-1, SAMPLES))
    held = (found[:, 0] <= above.sum() / below.sum()) & (above.sum() / below.sum() <= found[:, 1])
    return float(held.mean()), float((found[:, 1] - found[:, 0]).mean() / (3.92 * found[:, 2].std()))


@pytest.mark.parametrize("name", ALIKE)
def test_files_of_groups_hold_the_truth_by_their_order_alone(name):
    held, width = told(ALIKE[name], 60)
    assert held >= 0.9
    assert 1.25 * told(ALIKE[name], 60, unknown=True)[1] <= width <= 3


@pytest.mark.parametrize("name", ["groups of 8", "groups of 8, half alike"])
def test_a_column_says_what_the_order_does(name):
    held, width = told(ALIKE[name], 60, column=True)
    assert held >= 0.9
    assert width == pytest.approx(told(ALIKE[name], 60)[1], rel=0.25)


@pytest.mark.parametrize("name", UNLIKE)
def test_independent_samples_keep_their_intervals(name):
    """But for one file in fifty, in which neighbours are alike by chance, and hardly."""
    pairs = []
    for seed in range(100):
        of = work(UNLIKE[name](np.random.default_rng(seed)))
        pairs.append([high - low for low, high, *_ in (asked(of, seed), asked(of, seed, unknown=True))])
    mine, before = np.array(pairs).T
    assert np.mean(mine != before) <= 0.03
    assert mine.mean() <= 1.01 * before.mean()


@pytest.mark.parametrize("name", ORDERED)
def test_a_file_in_some_order_is_none_of_groups(name):
    for seed in range(20):
        of = work(ORDERED[name](np.random.default_rng(seed)))
        assert asked(of, seed)[:2] == asked(of, seed, unknown=True)[:2]


@pytest.mark.parametrize("name", ALIKE)
def test_shuffled_rows_tell_of_no_groups_unless_a_column_does(name):
    kept = []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        of, order = work(ALIKE[name](rng)), rng.permutation(SIZE)
        low, high, _, about = asked(of[order], seed)
        kept.append(len(about.like) == 1)
        if kept[-1]:
            assert (low, high) == asked(of[order], seed, unknown=True)[:2]
    assert np.mean(kept) >= 0.95


@pytest.mark.parametrize("each", [2, 3, 4, 8, 16])
def test_the_likeness_of_neighbours_says_how_long_groups_are(each):
    sizes = []
    for seed in range(20):
        like = asked(work(grouped(each, 0.8, 0.3)(np.random.default_rng(seed))), seed)[3].like[1:]
        sizes.append(2 * like.sum() / like[0])
    assert np.median(sizes) == pytest.approx(each, rel=0.2)


def test_pairs_are_counted_as_by_hand():
    ids = [np.array([0, 1, 2, 9]), np.array([1, 3, 7, 8])]
    rng = np.random.default_rng(0)
    of = np.repeat(rng.lognormal(8, 1, 60), 8)
    about = draws(ids, [of[each] for each in ids], len(of), file=of)
    every = np.concatenate(ids)
    for gap in range(len(about.like)):
        inside = sum(int((abs(each[:, None] - each) == gap).sum()) for each in ids)
        assert (about.inside[gap], about.every[gap]) == (inside, (abs(every[:, None] - every) == gap).sum())


@pytest.mark.parametrize("siblings", [2, 8, 32])
def test_a_table_counts_siblings_as_often_as_chance_brings_them_together(siblings):
    """By hand: the mean over many ways in which the samples may be of one prompt."""
    ids = minibatches(3, 30)
    loads = [np.ones(SAMPLES)] * len(ids)
    by_table = draws(ids, loads, SIZE, siblings=(siblings, 0.7))
    shuffled = [np.random.default_rng(seed).permutation(SIZE) // siblings for seed in range(400)]
    known = [draws(ids, loads, SIZE, kin=[prompts[each] for each in ids]) for prompts in shuffled]
    for name in ("inside", "every"):
        mean = np.mean([getattr(one, name) for one in known], axis=0)
        assert getattr(by_table, name) == pytest.approx(mean, rel=0.03)
    assert by_table.like.tolist() == [1.0, 0.7]
    unlike = draws(ids, loads, SIZE)
    assert by_table.lasting > unlike.lasting
    assert draws(ids, loads, SIZE, siblings=(siblings, 0.0)).lasting == pytest.approx(unlike.lasting)

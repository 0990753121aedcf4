"""What an interval knows of minibatches, against sums over all pairs of their samples; and the interval itself, where
no sample was drawn twice, against Student's of the same deviations with one more that is as far off as any."""

import numpy as np
import pytest
from scipy.stats import kurtosis, t

from odcsim.results.intervals import apart, draws, interval, intraclass, of_run

SEEDS = range(30)


def minibatches(rng, size, *, count=None, samples=None):
    """Of different samples each; the trace is gone through once, then again in another order."""
    count, samples = count or int(rng.integers(2, 12)), samples or int(rng.integers(2, size // 2))
    passes = [rng.permutation(size) for _ in range(count)]
    per_pass = size // samples
    order = [one[i * samples : (i + 1) * samples] for one in passes for i in range(per_pass)]
    return order[:count]


def by_pairs(ids, alike):
    """What a minibatch has in common with another, and what of the variance is left in the mean, where samples i and j
    vary together by `alike[i, j]`: summed over every pair of draws."""
    sums = np.array([np.bincount(minibatch, minlength=len(alike)) for minibatch in ids])
    together = np.array([[sum(alike[i, j] for i in one for j in other) for other in ids] for one in ids])
    assert np.allclose(together, sums @ alike @ sums.T)
    own, every = float(np.trace(together)), float(together.sum())
    return (every - own) / (len(ids) - 1) / own, every / len(ids) / own


@pytest.mark.parametrize("seed", SEEDS)
def test_overlap_is_what_pairs_of_minibatches_share(seed):
    """Samples of one prompt count by how alike they are, siblings that nobody knows as often as chance has them. Of all
    that there is only what was not drawn is open: the variance of the mean of draws over that of all, by weights."""
    rng = np.random.default_rng(seed)
    size, siblings, rho = int(rng.integers(8, 30)), int(rng.integers(2, 5)), float(rng.random())
    ids, prompts = minibatches(rng, size), rng.integers(0, size // 3, size)
    work = rng.lognormal(0, 1, size)[prompts] + rng.lognormal(-1, 1, size)
    loads, samples, there = [work[one] for one in ids], len(ids[0]), size + int(rng.integers(0, 30))
    found, over = draws(ids, loads, size), draws([*ids, *ids], [*loads, *loads], size)  # whose order starts over
    assert found.distinct == over.distinct == len(ids)
    assert found.common(found.like) == over.common(over.like) == pytest.approx(by_pairs(ids, np.eye(size)))
    weights = np.bincount(np.concatenate(ids), minlength=there) / sum(map(len, ids))
    assert found.of_all(there).common(found.like)[1] == pytest.approx(samples * ((weights - 1 / there) ** 2).sum())
    seen = np.unique(np.concatenate(ids))
    kin = np.where(np.equal.outer(prompts, prompts), by_variances(work[seen], prompts[seen]), 0.0)
    chance = np.full((size, size), rho * (siblings - 1) / (size - 1))
    of_prompts = draws(ids, loads, size, kin=[prompts[one] for one in ids])
    for found, alike in ((of_prompts, kin), (draws(ids, loads, size, siblings=(siblings, rho)), chance)):
        np.fill_diagonal(alike, 1.0)
        assert found.common(found.like) == pytest.approx(by_pairs(ids, alike))


def by_variances(values, prompts):
    """One-way analysis of variance, unbalanced: between prompts over all."""
    groups = [values[prompts == prompt] for prompt in np.unique(prompts)]
    if not 1 < len(groups) < len(values):
        return 0.0
    within = sum(((one - one.mean()) ** 2).sum() for one in groups) / (len(values) - len(groups))
    between = sum(len(one) * (one.mean() - values.mean()) ** 2 for one in groups) / (len(groups) - 1)
    each = (len(values) - sum(len(one) ** 2 for one in groups) / len(values)) / (len(groups) - 1)
    variance = (between - within) / each
    return float(np.clip(variance / (variance + within), 0, 1))


def test_likeness_of_prompts_is_that_which_was_planted():
    rng = np.random.default_rng(1)
    prompts = np.repeat(np.arange(3000), rng.integers(1, 9, 3000))
    for share in (0.0, 0.3, 0.8):
        values = share**0.5 * rng.standard_normal(3000)[prompts]
        values += (1 - share) ** 0.5 * rng.standard_normal(len(prompts))
        assert intraclass(values, prompts) == pytest.approx(share, abs=0.03)


def test_neighbours_in_a_file_count_by_how_alike_they_are_so_far_apart():
    rng = np.random.default_rng(4)
    size, run = 600, 6
    work = np.exp(0.9 * np.repeat(rng.standard_normal(size // run), run) + 0.3 * rng.standard_normal(size))
    ids = minibatches(rng, size, count=6, samples=20)
    found = draws(ids, [work[one] for one in ids], size, file=work)
    reach = len(found.like) - 1
    assert 2 <= reach <= 12
    assert found.like[1] > found.like[reach - 1]
    gaps = np.abs(np.subtract.outer(np.arange(size), np.arange(size)))
    alike = np.append(found.like, 0.0)[np.minimum(gaps, reach + 1)]
    assert found.common(found.like) == pytest.approx(by_pairs(ids, alike))
    assert len(draws(ids, [work[one] for one in ids], size, file=rng.permutation(work)).like) == 1


def by_student(off, level):
    """How far the mean of these may be above 0, with one more that is as far off as the farthest."""
    count, edge = len(off), max(off.max(), 0.03)
    heavy = max(kurtosis(off, fisher=False), 5.0)
    freedom = min(count - 1, max(2.0, 2 * count / (heavy - 1)))
    more = np.append(off, edge)
    reach = more.mean() + t.ppf(level, freedom) * more.std(ddof=1) / len(more) ** 0.5
    return min(reach, 2 * edge)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_interval_is_students_with_one_more_minibatch(seed):
    rng = np.random.default_rng(seed)
    count = int(rng.integers(2, 40))
    above, below = rng.lognormal(0, 0.5, (2, count)) ** rng.uniform(0.1, 2)
    off = above / above.mean() - below / below.mean()
    ratio = above.sum() / below.sum()
    for level in (0.975, 0.95):
        low, high = interval(above, below, apart(count), level)
        assert low == pytest.approx(ratio * np.exp(-by_student(-off, level)))
        assert high == pytest.approx(ratio * np.exp(by_student(off, level)))


@pytest.mark.parametrize("seed", SEEDS)
def test_it_is_turned_with_the_ratio(seed):
    rng = np.random.default_rng(seed)
    ids, work = minibatches(rng, 40, samples=4), rng.lognormal(0, 1, 40)
    about = draws(ids, [work[one] for one in ids], 40)
    above, below = rng.lognormal(0, 0.3, (2, len(ids)))
    low, high = interval(above, below, about)
    assert interval(below, above, about) == pytest.approx((1 / high, 1 / low))
    assert interval(3 * above, 2 * below, about) == pytest.approx((1.5 * low, 1.5 * high))


def over_bootstrap(seed, samples):
    """How wide it is over that of samples drawn anew, of sums of samples that minibatches share."""
    rng = np.random.default_rng(seed)
    size, count = 300, 250
    of = [rng.lognormal(0, 0.4, size), rng.lognormal(0, 0.4, size)]
    ids = minibatches(rng, size, count=count, samples=samples)
    about = draws(ids, [of[0][one] for one in ids], size)
    low, high = interval(*(np.array([work[one].sum() for one in ids]) for work in of), about)
    anew = [rng.integers(0, size, size) for _ in range(1000)]
    again = np.quantile([of[0][one].sum() / of[1][one].sum() for one in anew], (0.025, 0.975))
    return np.log(high / low) / np.log(again[1] / again[0])


@pytest.mark.parametrize("samples", [6, 30])
def test_of_many_minibatches_it_is_as_wide_as_a_bootstrap(samples):
    assert 0.85 < np.median([over_bootstrap(seed, samples) for seed in range(5)]) < 1.35


@pytest.mark.parametrize("seed", SEEDS)
def test_a_run_is_doubted_by_its_seconds_and_by_its_minibatches_together(seed):
    rng = np.random.default_rng(seed)
    count, low, high = int(rng.integers(2, 30)), rng.uniform(0.5, 1), rng.uniform(1, 2)
    seconds = rng.lognormal(0, 0.4, count)
    off = seconds / seconds.mean() - 1
    down, up = 1 - np.exp(-by_student(-off, 0.95)), np.exp(by_student(off, 0.95)) - 1
    found = of_run(seconds, apart(count), low, high)
    assert found == pytest.approx((1 - min(1, np.hypot(1 - low, down)), 1 + np.hypot(high - 1, up)))
    assert of_run(seconds[:1], apart(1), low, high) == pytest.approx((low, high))

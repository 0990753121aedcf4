"""Intervals of docs/model/statistics.md hold as often as its table says, for files drawn as its study draws them."""

import numpy as np
import pytest
from scripts import load

study = load("docs/studies/coverage.py")
LEAST = 0.85
UNSEEN = ("sharegpt", "pareto, 1.3")  # whose longest samples hardly any file has
TOLD_BY_ORDER = [name for name in study.LENGTHS if "groups" in name or "runs" in name]
UNLIKE = ("log-normal, sigma 1.3", "two log-normals", "2 % long")


def shares(held) -> dict[str, float]:
    return {figure: float(np.mean([inside for inside, _ in found])) for figure, found in held.items()}


@pytest.fixture(scope="module")
def truths():
    return study.truths()


@pytest.mark.slow
def test_mixtures_with_rare_long_samples_hold_whatever_the_figure(monkeypatch):
    some = {name: study.LENGTHS[name] for name in ("2 % long", "8 % long, mixed with short")}
    monkeypatch.setattr(study, "LENGTHS", some)
    for name, known in study.truths().items():
        found = shares(study.of_lengths(name, 640, 20, 20, known))
        assert set(found) == {"speedup", "speedup, 1.00", "run"}
        assert {figure for figure, share in found.items() if share < LEAST} == set(), found


@pytest.mark.drawn(2)
@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in study.LENGTHS if name not in (*UNSEEN, *TOLD_BY_ORDER)])
def test_files_of_every_kind_hold_the_truth(name, truths):
    for size, minibatches in study.SIZES:
        found = shares(study.of_lengths(name, size, minibatches, 40, truths[name]))
        assert min(found.values()) >= LEAST, (size, minibatches, found)


@pytest.mark.drawn(3)
@pytest.mark.slow
@pytest.mark.parametrize("name", [*TOLD_BY_ORDER, *UNLIKE])
def test_speedups_hold_as_often_of_groups_as_of_independent_samples(name, truths):
    """In 90 of 100 at least, less two standard errors of so many files, whose rows go together."""
    found = shares(study.of_lengths(name, 640, 60, 80, truths[name]))["speedup"]
    assert found >= 0.9 - 2 * (0.9 * 0.1 / 80) ** 0.5, found


@pytest.mark.drawn(0)
@pytest.mark.slow
@pytest.mark.parametrize("name", study.GROUPED)
def test_rollouts_hold_it_shuffled_in_order_and_as_steps(name):
    found = {order: shares(held) for order, held in study.of_rollouts(name, 640, 20, 40).items()}
    assert set(found) == {"shuffled", "in order", "odcsim rl"}
    assert min(share for held in found.values() for share in held.values()) >= LEAST, found

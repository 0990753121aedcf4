"""What a loss divides by is found out from a few samples, and then holds for every cut of every minibatch."""

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from odc_engine.trainers.counts import Counts, together
from odc_engine.trainers.normalization import weight
from odc_engine.trainers.trying import tried

EXACT = 2e-5  # as for a loss in fp32


def mean_over(name):
    return lambda part, _: sum(value for _, value in part) / sum(getattr(counts, name) for counts, _ in part)


def summed(part, _):
    return sum(value for _, value in part)


def by_items(part, items):
    return summed(part, items) / items


KNOWN = {
    **{f"mean over {name}": mean_over(name) for name in ("samples", "labels", "next_labels", "tokens")},
    "by items": by_items,
    "a sum": summed,
    "by items, and a penalty": lambda part, items: by_items(part, items) + 0.37,
    "by items, and a mean over samples": lambda part, items: by_items(part, items) + mean_over("samples")(part, items),
}
UNKNOWN = {
    "samples times each other": lambda part, _: math.prod(value for _, value in part) / len(part),
    "the worst sample besides": lambda part, items: by_items(part, items) + max(value for _, value in part),
    "over items squared": lambda part, items: summed(part, items) / items**2,
}
UNLIKE = [(Counts(1, 9, 8, 30), 9.0), (Counts(1, 31, 30, 40), 61.0), (Counts(1, 4, 3, 90), 2.0)]


@st.composite
def samples(draw, least):
    """Counts and a value of each, as far apart as those of real samples."""
    one = st.tuples(st.integers(1, 60), st.integers(1, 40), st.integers(0, 200), st.floats(0.5, 5.0))
    drawn = draw(st.lists(one, min_size=least, max_size=12))
    made = [(Counts(1.0, n + 1.0, float(n), n + 1.0 + more), value * n) for n, _, more, value in drawn]
    first = made[:3]
    for field in ("labels", "next_labels", "tokens"):
        shares = [getattr(counts, field) / getattr(together(c for c, _ in first), field) for counts, _ in first]
        assume(max(abs(share - 1 / 3) for share in shares) > 0.05)
    return made


def trial(loss, part, items=True):
    items = float(together(counts for counts, _ in part).next_labels) if items else None
    return tried(lambda places: [part[i] for i in places], len(part), loss, items)


@pytest.fixture(autouse=True)
def counted(monkeypatch):
    """Batches here are lists of what samples count and weigh."""
    monkeypatch.setattr("odc_engine.trainers.trying.counts_of", lambda batch, _: together(c for c, _ in batch))


@pytest.mark.parametrize("name", KNOWN)
@given(drawn=st.data())
def test_what_three_samples_tell_holds_for_every_cut_of_a_minibatch(name, drawn):
    loss, every = KNOWN[name], drawn.draw(samples(least=4))
    found = trial(loss, every[:3]).fitting(EXACT)
    assume(found)  # where values happen to be alike, nothing is said rather than something wrong
    whole = together(counts for counts, _ in every)
    items = whole.next_labels
    places = drawn.draw(st.lists(st.integers(0, 3), min_size=len(every), max_size=len(every)))
    cut = [part for k in range(4) if (part := [one for one, place in zip(every, places, strict=True) if place == k])]
    for over in found:
        weights = [weight(over, together(counts for counts, _ in part), whole) for part in cut]
        parts = [w * loss(part, items * w) for w, part in zip(weights, cut, strict=True)]
        assert sum(parts) == pytest.approx(loss(every, items), rel=1e-6)


@pytest.mark.parametrize(("kinds", "fits"), [(KNOWN, True), (UNKNOWN, False)], ids=["known", "unknown"])
def test_each_that_is_known_is_found_where_samples_are_unlike_and_no_other(kinds, fits):
    for name, loss in kinds.items():
        trials = trial(loss, UNLIKE)
        assert bool(trials and trials.fitting(EXACT)) == fits, name


@pytest.mark.parametrize("noise", [0, 2e-4])
def test_rounding_does_not_hide_what_matters(noise):
    """In bf16 nobody tells labels from those without each row's first, and it hardly matters; samples are far off."""
    part = [(Counts(1, n, n - 1, n + 300), n * value) for n, value in ((900, 2.0), (2400, 2.9), (1500, 1.1))]
    rounded = iter([1 + noise, 1 - noise, 1 + noise / 3, 1 - noise / 2] * 9)

    def loss(one, items):
        return mean_over("labels")(one, items) * next(rounded)

    trials = trial(loss, part, items=False)
    assert set(trials.fitting(5e-3 if noise else EXACT)) <= {"labels", "next_labels"}
    assert trials.fitting(5e-3 if noise else EXACT)


def test_a_sample_without_labels_counts_for_nothing_though_its_own_mean_is_no_number():
    part = [(Counts(1, 9, 8, 30), 9.0), (Counts(1, 0, 0, 7), 0.0), (Counts(1, 31, 30, 40), 61.0)]

    def loss(one, items):
        return mean_over("labels")(one, items) if any(counts.labels for counts, _ in one) else math.nan

    for turned in (part, part[1:] + part[:1], part[::-1]):
        assert trial(loss, turned).fitting(EXACT) == ("labels",)
    assert trial(lambda *_: math.nan, part) is None or not trial(lambda *_: math.nan, part).fitting(EXACT)


def test_where_every_batch_has_the_same_loss_nothing_is_said():
    """As preferences have while a policy is its reference: it fits means over all things, which weigh otherwise."""
    part = [(Counts(1, 9, 8, 30), 0.0), (Counts(1, 31, 30, 40), 0.0), (Counts(1, 4, 3, 90), 0.0)]
    assert trial(lambda *_: 0.693, part, items=False).fitting(EXACT) == ()


def test_what_samples_do_not_tell_apart_stays_open():
    """A label of each sample: a mean over labels is one over samples, until some sample has two."""
    part = [(Counts(1, 1, 0, 5), 3.0), (Counts(1, 1, 0, 9), 5.0), (Counts(1, 1, 0, 2), 4.0)]
    assert trial(mean_over("samples"), part, items=False).fitting(EXACT) == ("samples", "labels")

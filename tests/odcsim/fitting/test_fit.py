"""A profile from measurements: known seconds come back, and what the fit cannot explain speaks against it."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odcsim import profile as profiles
from odcsim.errors import InputError
from odcsim.fitting.fit import examine, fit
from odcsim.measurements import Compute, Constant, Measurements, Transfer
from odcsim.profile import Polynomial
from odcsim.recipe import recipe_of

# Tokens, squares and samples vary independently of each other.
HELD = [(t // n,) * n for t in (256, 512, 1024, 2048) for n in (1, 2, 4, 8)] + [(900, 50, 50), (400, 10, 10, 10, 10)]
TRUTH = {
    "forward": Polynomial(2e-4, 4e-6, 1e-9, 3e-5),
    "backward": Polynomial(5e-4, 1.2e-5, 3.5e-9, 8e-5),
    "head": Polynomial(3e-4, 2e-5),
    "embed": Polynomial(5e-5, 1e-7),
}
KINDS = ("gather", "push", "all-gather", "reduce-scatter")
SIZES = (1 << 16, 1 << 20, 1 << 24)
ONCE = {"meeting": 1e-5, "optimizer": 0.2, "publish": 0.1, "overhead": 1e-3, "settle": 2e-5}
WORDS = {"hardware": "a test", "versions": "v", "date": "2026-01-02", "dtype": "float32", "transport": "shm"}
positive = (st.floats(1e-5, 1e-2), st.floats(1e-6, 1e-5), st.floats(1e-10, 1e-8))
terms = st.builds(Polynomial, *positive, st.floats(1e-5, 1e-3))


def seconds(p: Polynomial, held: tuple[int, ...]) -> float:
    return p.constant + p.linear * sum(held) + p.quadratic * sum(n * n for n in held) + p.sample * len(held)


def bare(truth):
    """Without seconds for each sample."""
    return {kind: replace(p, sample=0.0) for kind, p in truth.items()}


def moved(slowdown=1.0, devices=(2, 4), sizes=SIZES, *, computing=True) -> tuple[Transfer, ...]:
    cases = product(enumerate(KINDS, 1), devices, sizes)
    return tuple(Transfer(k, n, b, slowdown * (2e-5 * i * n + 1e-10 * i * b), computing) for (i, k), n, b in cases)


def measured(truth=TRUTH, held=HELD, *, known=True, noise=0.0, repeats=1, seed=0, transfers=None) -> Measurements:
    """`known`: whether rows say how many samples they held."""
    rng = np.random.default_rng(seed)

    def noisy(row):
        return replace(row, seconds=float(row.seconds * np.exp(noise * rng.standard_normal())))

    computes = [
        Compute(kind, sum(h), float(sum(n * n for n in h)), seconds(p, h), max(h), samples=known * len(h))
        for kind, p in truth.items()
        for h in held
    ]
    constants = [Constant(kind, n, n * s / 2) for kind, s in ONCE.items() for n in (2, 4)]
    every = (computes, moved() if transfers is None else transfers, constants)
    return Measurements("tiny", "cpu", *(tuple(noisy(r) for r in of for _ in range(repeats)) for of in every), **WORDS)


@pytest.mark.parametrize("left_out", HELD[:16], ids=str)
def test_a_cell_that_was_left_out_is_told_as_least_squares_tell_it(left_out):
    truth, others = bare(TRUTH), [held for held in HELD[:16] if held != left_out]
    m = measured(truth, others, known=False, noise=0.01, repeats=3, seed=HELD.index(left_out))
    profile = fit(m)
    for kind in ("forward", "backward", "head"):
        rows = [row for row in m.compute if row.kind == kind]
        terms = np.array([(1, r.tokens, r.squares)[: 3 - (kind == "head")] for r in rows])
        relative = terms / np.array([[row.seconds] for row in rows])
        best = Polynomial(*np.linalg.lstsq(relative, np.ones(len(rows)), rcond=None)[0])
        told, its = (seconds(of, left_out) for of in (getattr(profile, kind), truth[kind]))
        assert told == pytest.approx(seconds(best, left_out), rel=0.012)
        assert told == pytest.approx(its, rel=0.02)
        assert profile.low < told / its < profile.high


def only(m: Measurements, keep, factor=0.0) -> Measurements:
    """Rows to keep; the others so many times as long, or not at all."""
    longer = (r if keep(r) else replace(r, seconds=r.seconds * factor) for r in m.compute)
    return replace(m, compute=tuple(r for r in longer if r.seconds))


@pytest.mark.parametrize("known", [True, False])
@settings(max_examples=25)
@given(forward=terms, backward=terms)
def test_known_seconds_come_back(known, forward, backward):
    kept = {"forward kept": backward, "backward kept": forward}
    truth = TRUTH | {"forward": forward, "backward": backward} | kept
    truth = truth if known else bare(truth)
    report = examine(measured(truth, known=known))
    p = report.profile
    found = {"forward": p.forward, "backward": p.backward, "head": p.head, "embed": p.embed}
    found |= {"forward kept": p.kept.forward, "backward kept": p.kept.backward}
    for kind, mine in found.items():
        its = [seconds(truth[kind], h) for h in HELD]
        np.testing.assert_allclose([seconds(mine, h) for h in HELD], its, rtol=1e-6)
        assert mine.sample == pytest.approx(truth[kind].sample, rel=1e-4, abs=1e-2 * max(its))
    assert (p.head.sample, p.head.quadratic, p.embed.sample) == (0, 0, 0)
    assert report.good
    assert p.recompute
    assert p.worst_residual < 1e-6


def test_all_else_comes_back_too(tmp_path):
    found = fit(measured())
    by_kind = {(t.kind, t.devices): t for t in found.timings}
    for t in moved():
        mine = by_kind[t.kind, t.devices]
        assert mine.constant + t.bytes * mine.per_byte == pytest.approx(t.seconds)
    for kind, its in ONCE.items():
        assert [found.timing(kind, n).constant for n in (2, 3, 4)] == pytest.approx([its, 1.5 * its, 2 * its])
    assert len(by_kind) == 2 * (len(KINDS) + len(ONCE))
    assert (found.model, found.gpu, found.fidelity) == ("tiny", "cpu", "calibrated")
    assert {name: getattr(found, name) for name in WORDS} == WORDS
    assert (found.overhead, found.interference, found.slow, found.swing) == (0, 1, (), 0)
    profiles.write(noisy := fit(measured(noise=0.02, repeats=2)), tmp_path / "p.json")
    assert profiles.read(tmp_path / "p.json") == noisy


@settings(max_examples=20)
@given(st.integers(0, 2**20))
def test_noise_stays_small_and_is_reported(seed):
    truth = bare(TRUTH)
    report = examine(measured(truth, known=False, noise=0.02, repeats=3, seed=seed))
    found = report.profile
    assert report.good
    assert 0.01 < found.jitter < 0.04
    assert 0.002 < found.residual < 0.03
    assert found.residual < found.worst_residual < 0.1
    for name in ("forward", "backward"):
        wanted, mine, error = truth[name], getattr(found, name), getattr(found, f"{name}_error")
        assert mine.quadratic == pytest.approx(wanted.quadratic, abs=5 * error.quadratic)
        assert 0 < error.quadratic < wanted.quadratic
    assert 0.9 < found.low < 1 < found.high < 1.1


def cubed(m):
    return replace(m, compute=tuple(replace(r, seconds=1e-4 + 1e-9 * r.tokens**3) for r in m.compute))


SEEN = ((1 << 18, 1), (1 << 19, 3), (1 << 22, 1))


def same(m):
    return m


def doubled(m):
    return only(m, lambda r: (r.kind, r.tokens, r.longest) != ("forward", 512, 64), 2.0)


def bent(m):
    return only(m, lambda r: r.tokens < 1024 or r.longest >= 1024, 1.5)


def long_transfer(m):
    rows = [Transfer("push", 4, size, (1.6e-4 + 2e-10 * size) * f, True) for size, f in SEEN]
    return replace(m, transfers=(*m.transfers, *rows, *rows))


def interrupted(m):
    """One of three calls."""
    return replace(m, compute=(replace(m.compute[0], seconds=9.0), *m.compute[1:]))


MISSED = [(same, 0, 0), (interrupted, 0, 0), (doubled, 1, 1), (long_transfer, 1, 1), (cubed, 13, 99), (bent, 1, 99)]


@pytest.mark.parametrize(("change", "least", "most"), MISSED)
def test_what_the_fit_misses_widens_the_range(change, least, most):
    """And hardly moves the rest."""
    m = measured(bare(TRUTH), known=False, noise=0.01, repeats=3)
    report, calm = examine(change(m)), fit(m)
    assert least <= len(report.unexplained) <= most
    assert report.good == (least == 0)
    said = len(report.lines()) - len(report.doubts) - len(examine(m).lines())
    assert said == min(len(report.unexplained), 13)  # of more the last line says how many
    if most <= 1:
        assert report.profile.forward.linear == pytest.approx(calm.forward.linear, rel=0.04)
    if least and change is not long_transfer:
        assert report.profile.low < 0.8 < calm.low


def test_interruptions_lengthen_the_mean_and_none_counts_more_than_twice():
    """One call in ten is interrupted: what adds up over many calls is a tenth longer, however long it took."""
    m = measured(bare(TRUTH), known=False, repeats=10)
    calm = fit(m).forward.linear
    for factor, longer in ((1.5, 1.05), (2.0, 1.1), (50.0, 1.1)):
        rows = tuple(replace(r, seconds=r.seconds * (factor if i % 10 == 9 else 1)) for i, r in enumerate(m.compute))
        found = fit(replace(m, compute=rows)).forward
        assert found.linear == pytest.approx(longer * calm, rel=1e-3)


ALIKE = [
    *[only(measured(), lambda r, kind=kind: r.kind != kind or r.tokens == 512) for kind in ("backward", "head")],
    only(measured(), lambda r: r.kind != "forward" or r.longest == 256),
    only(measured(), lambda r: r.kind != "head"),
    measured(held=[(64,) * n for n in range(4, 24, 3)]),  # samples follow tokens
    measured(transfers=moved(sizes=SIZES[:1])),
    replace(measured(), compute=tuple(replace(r, alone=True) for r in measured().compute)),
    measured(TRUTH | {"microbatch": Polynomial(0.3, 1e-4, 4e-8)}),
]


@pytest.mark.parametrize("wrong", ALIKE)
def test_what_cannot_be_told_apart_is_refused(wrong):
    with pytest.raises(InputError):
        examine(wrong, layers=10)


def test_the_valid_range_is_what_every_kind_was_measured_on_and_what_noise_hides_is_doubtful():
    """Squares that bring little may bring anything up to what noise allows."""
    little = bare(TRUTH) | {"forward": Polynomial(2e-4, 4e-6, 1e-10)}
    assert examine(measured(little, known=False, noise=0.1)).doubts
    assert examine(measured(noise=0.001, repeats=2)).doubts == ()
    less = only(measured(), lambda r: r.kind != "backward" or (r.longest <= 512 and r.tokens <= 1024))
    for m, longest in ((measured(), (2048, 2048)), (less, (512, 1024))):
        unsaid = replace(m, compute=tuple(replace(r, longest=0) for r in m.compute))
        for found in map(fit, (m, unsaid)):
            assert (found.longest, found.most_tokens) == longest


def test_a_slow_device_is_in_the_profile_beside_the_mean_of_all():
    m = measured(bare(TRUTH), known=False)
    rows = tuple(
        replace(row, seconds=factor * row.seconds, minibatch=place % 16 + 1, device=device)
        for device, factor in enumerate((1.0, 1.2))
        for place, row in enumerate(m.compute)
    )
    found = fit(replace(m, compute=rows))
    assert found.slow == pytest.approx((1 / 1.1, 1.2 / 1.1), rel=5e-3)
    assert found.forward.linear == pytest.approx(1.1 * TRUTH["forward"].linear, rel=0.015)


@pytest.mark.parametrize("recomputes", [True, False])
def test_whole_microbatches_are_given_to_the_layers_as_flops_are(recomputes):
    """A backward costs twice a forward, of attention two and a half times, and has another forward by recompute."""
    recipe = recipe_of({"recompute": "full" if recomputes else "none"})
    m = replace(measured({"microbatch": Polynomial(0.3, 1e-4, 4e-8)}, known=False, transfers=()), constants=())
    found = examine(m, layers=10, transfers_included=True, recipe=recipe, devices=3).profile
    assert 10 * (found.forward.linear + found.backward.linear) == pytest.approx(1e-4)
    assert 10 * (found.forward.quadratic + found.backward.quadratic) == pytest.approx(4e-8)
    assert found.backward.linear == pytest.approx((2 + recomputes) * found.forward.linear)
    assert found.backward.quadratic == pytest.approx((2.5 + recomputes) * found.forward.quadratic)
    assert (found.microbatch, found.node_transfers_included) == (pytest.approx(0.3), True)
    assert (found.recompute, found.run.devices) == (recomputes, 3)


@pytest.mark.parametrize("samples", [0, 1, 4])
def test_samples_that_do_not_vary_by_themselves_have_no_coefficient(samples):
    """0: a single row does not know its own, which spoils those of its kind."""
    held = [(t // samples,) * samples for t in (256, 512, 1024, 2048, 300, 700)] if samples else HELD
    m = measured(bare(TRUTH), held)
    if not samples:
        m = replace(m, compute=(replace(m.compute[0], samples=0), *m.compute[1:]))
    found = fit(m)
    assert (found.forward.sample, found.forward_error.sample) == (0, 0)
    assert (found.backward_error.sample > 0) == (not samples)
    np.testing.assert_allclose([seconds(found.forward, h) for h in held],
                               [seconds(bare(TRUTH)["forward"], h) for h in held], rtol=1e-6)  # fmt: skip


@settings(max_examples=30)
@given(st.floats(0.5, 5), st.sampled_from([SIZES, SIZES[:1], SIZES[1:]]))
def test_how_much_longer_transfers_take_beside_compute_comes_back(slowdown, sizes):
    """For each number of devices by itself, where both were seen, whatever sizes were seen beside compute."""
    rows = (*moved(slowdown, (2,), sizes), *moved(devices=(2, 4), computing=False), *moved(3.0, (8,)))
    for timing in fit(measured(transfers=rows)).timings:
        if timing.kind in KINDS:
            n, i = timing.devices, 1 + KINDS.index(timing.kind)
            assert timing.slowdown == pytest.approx(slowdown if n == 2 else 1)
            times = 3 if n == 8 else 1
            its = times * 2e-5 * i * n, times * 1e-10 * i
            assert (timing.constant, timing.per_byte) == pytest.approx(its, rel=1e-6)


@settings(max_examples=20)
@given(st.floats(0.5, 4), st.floats(0.1, 10))
def test_compute_alone_never_enters_the_fit_and_says_what_others_cost(interference, noise):
    """Rows of a device alone, however odd: the coefficients are those of the rest."""
    m, usual = measured(), fit(measured())
    factor = {"forward": 1 / interference, "backward": 1 / interference, "head": noise, "embed": noise}
    alone = tuple(replace(r, seconds=factor[r.kind] * r.seconds, alone=True) for r in m.compute)
    found = fit(replace(m, compute=(*alone, *m.compute)))
    assert found.interference == pytest.approx(interference)
    assert replace(found, interference=1.0, origin="") == replace(usual, origin="")

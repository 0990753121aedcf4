"""What a fit learns from whole runs: seconds per sample, transfers beside compute, compute alone, overhead."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odcsim.errors import InputError
from odcsim.fitting.fit import examine, fit
from odcsim.fitting.measurements import Compute, Constant, Measurements, Transfer
from odcsim.profile import Polynomial, Timing

# Tokens, squares and samples vary independently of each other.
HELD = [(t // n,) * n for t in (256, 512, 1024, 2048) for n in (1, 2, 4, 8)] + [(900, 50, 50), (400, 10, 10, 10, 10)]
TRUTH = {
    "forward": Polynomial(2e-4, 4e-6, 1e-9, 3e-5),
    "backward": Polynomial(5e-4, 1.2e-5, 3.5e-9, 8e-5),
    "head": Polynomial(3e-4, 2e-5),
    "embed": Polynomial(5e-5, 1e-7),
}
KINDS = ("gather", "push", "all-gather", "reduce-scatter")
BYTES = (1 << 16, 1 << 20, 1 << 24)
terms = st.builds(
    Polynomial, st.floats(1e-5, 1e-2), st.floats(1e-6, 1e-5), st.floats(1e-10, 1e-8), st.floats(1e-5, 1e-3)
)


def row(kind: str, held: tuple[int, ...], p: Polynomial, factor: float = 1.0, *, known: bool = True) -> Compute:
    tokens, squares, samples = sum(held), float(sum(n * n for n in held)), len(held)
    seconds = p.constant + p.linear * tokens + p.quadratic * squares + p.sample * samples
    return Compute(kind, tokens, squares, factor * seconds, max(held), samples=samples if known else 0)


def timed(truth=TRUTH, held=HELD, *, known: bool = True) -> Measurements:
    return Measurements("tiny", "cpu", tuple(row(k, h, p, known=known) for k, p in truth.items() for h in held))


def seconds(p: Polynomial, held=HELD) -> list[float]:
    return [row("forward", h, p).seconds for h in held]


@given(terms, terms)
def test_seconds_per_sample_come_back(forward, backward):
    report = examine(timed(TRUTH | {"forward": forward, "backward": backward}))
    assert report.good
    np.testing.assert_allclose(seconds(report.profile.forward), seconds(forward), rtol=1e-6)
    np.testing.assert_allclose(seconds(report.profile.backward), seconds(backward), rtol=1e-6)
    # Where they bring something they are told from all else.
    if forward.sample > 0.01 * max(seconds(forward)):
        assert report.profile.forward.sample == pytest.approx(forward.sample, rel=1e-4)


def test_seconds_per_sample_are_said_with_their_error():
    line = next(line for line in examine(timed()).lines() if line.startswith("forward:"))
    assert ", sample 3e-05 ± " in line


def test_head_and_embedding_have_none_whatever_their_rows_know():
    found = fit(timed())
    assert (found.head.sample, found.embed.sample, found.head.quadratic) == (0, 0, 0)
    assert found.head.linear == pytest.approx(2e-5)


def test_where_samples_are_not_known_they_have_no_coefficient():
    """Seconds that hold none are explained as before; a single row that does not know its samples spoils the rest."""
    none = {kind: replace(p, sample=0.0) for kind, p in TRUTH.items()}
    found = fit(timed(none, known=False))
    assert found.forward.sample == 0
    np.testing.assert_allclose(seconds(found.forward), seconds(none["forward"]), rtol=1e-6)
    m = timed(none)
    found = fit(replace(m, compute=(replace(m.compute[0], samples=0), *m.compute[1:])))
    assert (found.forward.sample, found.forward_error.sample) == (0, 0)
    assert found.backward_error.sample > 0


@pytest.mark.parametrize("samples", [1, 4])
def test_samples_that_do_not_vary_by_themselves_have_no_coefficient(samples):
    held = [(t // samples,) * samples for t in (256, 512, 1024, 2048, 300, 700)]
    none = {kind: replace(p, sample=0.0) for kind, p in TRUTH.items()}
    found = fit(timed(none, held))
    assert (found.forward.sample, found.backward.sample) == (0, 0)
    np.testing.assert_allclose(seconds(found.forward, held), seconds(none["forward"], held), rtol=1e-6)


def test_samples_that_only_follow_tokens_do_not_save_a_fit():
    with pytest.raises(InputError, match="do not tell the coefficients apart"):
        fit(timed(held=[(64,) * n for n in range(4, 24, 3)]))


def moved(slowdown: float, *, computing: bool, devices: int = 2, sizes=BYTES) -> tuple[Transfer, ...]:
    return tuple(
        Transfer(kind, devices, size, slowdown * (2e-5 * i + 1e-10 * i * size), computing)
        for i, kind in enumerate(KINDS, 1)
        for size in sizes
    )


@given(st.floats(0.5, 5), st.sampled_from([BYTES, BYTES[:1], BYTES[1:]]))
def test_how_much_longer_transfers_take_beside_compute_comes_back(slowdown, sizes):
    """Whatever sizes were seen there: those alone say what a constant and a byte cost."""
    rows = (*moved(slowdown, computing=True, sizes=sizes), *moved(1.0, computing=False))
    for timing in fit(replace(timed(), transfers=rows)).timings:
        i = 1 + KINDS.index(timing.kind)
        assert timing.slowdown == pytest.approx(slowdown)
        assert (timing.constant, timing.per_byte) == pytest.approx((2e-5 * i, 1e-10 * i), rel=1e-6)


@pytest.mark.parametrize("computing", [True, False])
def test_transfers_of_one_sort_alone_are_fitted_as_they_are(computing):
    for timing in fit(replace(timed(), transfers=moved(3.0, computing=computing))).timings:
        i = 1 + KINDS.index(timing.kind)
        assert timing.slowdown == 1
        assert (timing.constant, timing.per_byte) == pytest.approx((6e-5 * i, 3e-10 * i), rel=1e-6)


def test_each_number_of_devices_has_a_slowdown_of_its_own_and_lines_say_it():
    rows = (
        *moved(1.0, computing=False),
        *moved(2.0, computing=True),
        *moved(1.0, computing=False, devices=4),
        *moved(1.0, computing=True, devices=8),
    )
    report = examine(replace(timed(), transfers=rows))
    by = {(t.kind, t.devices): t for t in report.profile.timings}
    assert [by["push", n].slowdown for n in (2, 4, 8)] == pytest.approx([2, 1, 1])
    told = [line for line in report.lines() if "as long beside compute" in line]
    assert sorted(told) == sorted(f"{kind} on 2 devices: 2.00 times as long beside compute" for kind in KINDS)


@settings(max_examples=20)
@given(st.floats(0.5, 4), st.floats(0.1, 10))
def test_compute_alone_never_enters_the_fit_and_says_what_others_cost(interference, noise):
    """Rows of a device alone, however odd: the coefficients are those of the rest."""
    m, usual = timed(), fit(timed())
    alone = tuple(
        replace(row(kind, held, TRUTH[kind], 1 / interference), alone=True)
        for kind in ("forward", "backward")
        for held in HELD
    )
    odd = tuple(replace(row(kind, HELD[0], TRUTH[kind], noise), alone=True) for kind in ("head", "embed"))
    found = fit(replace(m, compute=(*alone, *m.compute, *odd)))
    assert found.interference == pytest.approx(interference)
    assert replace(found, interference=1.0, origin="") == replace(usual, origin="")
    assert usual.interference == 1


def test_interference_is_said_where_there_is_any():
    m = timed()
    alone = tuple(replace(r, seconds=r.seconds / 1.4, alone=True) for r in m.compute)
    lines = examine(replace(m, compute=(*m.compute, *alone))).lines()
    assert "beside others compute takes 1.40 times what it takes alone: in the fit already" in lines
    assert not any("alone" in line for line in examine(m).lines())


def test_a_fit_needs_rows_that_were_not_alone():
    m = timed()
    with pytest.raises(InputError, match="no measurements of forward, backward, head"):
        fit(replace(m, compute=tuple(replace(r, alone=True) for r in m.compute)))


def test_what_is_constant_has_a_timing_for_each_number_of_devices():
    constants = [
        Constant(kind, n, factor * n * seconds)
        for kind, seconds in (("overhead", 1e-3), ("meeting", 1e-5), ("optimizer", 0.1), ("publish", 0.2))
        for n in (2, 4)
        for factor in (0.9, 1.0, 1.1)
    ]
    found = fit(replace(timed(), constants=tuple(constants)))
    assert {(t.kind, t.devices) for t in found.timings} == {(c.kind, c.devices) for c in constants}
    assert found.timing("overhead", 2) == Timing("overhead", 2, pytest.approx(2e-3))
    assert found.timing("overhead", 4).constant == pytest.approx(4e-3)
    assert found.timing("overhead", 3).constant == pytest.approx(3e-3)
    assert found.overhead == 0

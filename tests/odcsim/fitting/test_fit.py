"""A profile from measurements: known seconds come back, and what the fit cannot explain is said."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odcsim import profile as profiles
from odcsim.errors import InputError
from odcsim.fitting.fit import examine, fit
from odcsim.fitting.measurements import Compute, Constant, Measurements, Transfer
from odcsim.profile import Polynomial, Timing

TOKENS, PARTS = (256, 512, 1024, 2048), (1, 2, 4, 8)
BYTES = (1 << 16, 1 << 20, 1 << 24)
polynomials = st.builds(Polynomial, st.floats(1e-5, 1e-2), st.floats(1e-6, 1e-5), st.floats(1e-10, 1e-8))
linear = polynomials.map(lambda p: replace(p, quadratic=0.0))
TRUTH = {
    "forward": Polynomial(2e-4, 4e-6, 1e-9),
    "backward": Polynomial(5e-4, 1.2e-5, 3.5e-9),
    "head": Polynomial(3e-4, 2e-5),
    "embed": Polynomial(5e-5, 1e-7),
}
MOVED = tuple(
    Timing(kind, n, 2e-5 * n, 1e-10 * n) for kind in ("gather", "push", "all-gather", "reduce-scatter") for n in (2, 4)
)


def measured(truth=TRUTH, noise=0.0, repeats=1, seed=0, moved=MOVED) -> Measurements:
    rng = np.random.default_rng(seed)

    def seconds(exact: float) -> float:
        return float(exact * np.exp(noise * rng.standard_normal()))

    compute = [
        Compute(kind, t, t * t / n, seconds(p.constant + p.linear * t + p.quadratic * t * t / n), t // n)
        for kind, p in truth.items()
        for t in TOKENS
        for n in PARTS
        for _ in range(repeats)
    ]
    transfers = [
        Transfer(t.kind, t.devices, size, seconds(t.constant + t.per_byte * size))
        for t in moved
        for size in BYTES
        for _ in range(repeats)
    ]
    constants = [Constant("meeting", 2, seconds(1e-5)), Constant("optimizer", 2, seconds(0.2))]
    constants += [Constant("publish", 2, seconds(0.1)), Constant("overhead", 2, seconds(1e-3))]
    words = {"hardware": "a test", "versions": "v", "date": "2026-01-02", "dtype": "float32", "transport": "shm"}
    return Measurements("tiny", "cpu", tuple(compute), tuple(transfers), tuple(constants), **words)


@given(forward=polynomials, backward=polynomials, head=linear)
def test_known_seconds_come_back(forward, backward, head):
    found = examine(measured({"forward": forward, "backward": backward, "head": head}))
    for name, wanted in (("forward", forward), ("backward", backward), ("head", head)):
        mine = getattr(found.profile, name)
        for tokens in (256, 2048):
            exact, guess = (p.constant + p.linear * tokens + p.quadratic * tokens * tokens for p in (wanted, mine))
            assert guess == pytest.approx(exact, rel=1e-6)
    assert found.good
    assert found.profile.worst_residual < 1e-6


def test_transfers_constants_and_words_come_back():
    found = fit(measured())
    by_kind = {(t.kind, t.devices): t for t in found.timings}
    for wanted in MOVED:
        mine = by_kind[wanted.kind, wanted.devices]
        assert mine.constant == pytest.approx(wanted.constant)
        assert mine.per_byte == pytest.approx(wanted.per_byte)
    assert by_kind["meeting", 2].constant == pytest.approx(1e-5)
    assert (by_kind["optimizer", 2].constant, by_kind["publish", 2].constant) == pytest.approx((0.2, 0.1))
    assert by_kind["overhead", 2].constant == pytest.approx(1e-3)
    assert found.embed.linear == pytest.approx(1e-7)
    assert (found.model, found.gpu, found.fidelity, found.dtype) == ("tiny", "cpu", "calibrated", "float32")
    assert (found.hardware, found.versions, found.date, found.transport) == ("a test", "v", "2026-01-02", "shm")
    assert found.origin == "92 measurements on a test, 2026-01-02"


@settings(max_examples=20)
@given(st.integers(0, 2**20))
def test_noise_stays_small_and_is_reported(seed):
    report = examine(measured(noise=0.02, repeats=3, seed=seed))
    found = report.profile
    assert report.good
    assert 0.01 < found.jitter < 0.04
    assert 0.002 < found.residual < 0.03
    assert found.residual < found.worst_residual < 0.1
    for name in ("forward", "backward"):
        wanted, mine, error = (TRUTH[name], getattr(found, name), getattr(found, f"{name}_error"))
        assert mine.quadratic == pytest.approx(wanted.quadratic, abs=5 * error.quadratic)
        assert 0 < error.quadratic < wanted.quadratic
    assert 0.9 < found.low < 1 < found.high < 1.1


def slowed(m: Measurements, factor: float, of) -> Measurements:
    return replace(m, compute=tuple(replace(r, seconds=r.seconds * factor) if of(r) else r for r in m.compute))


def test_a_measurement_that_the_fit_misses_is_named_and_widens_the_range():
    odd = slowed(measured(noise=0.01, repeats=3), 2.0, lambda r: (r.kind, r.tokens, r.longest) == ("forward", 512, 64))
    report, calm = examine(odd), fit(measured(noise=0.01, repeats=3))
    assert not report.good
    assert len(report.unexplained) == 1
    assert report.unexplained[0].startswith("forward of 512 tokens, squares 3.277e+04: measured")
    assert report.unexplained[0].endswith("(-50%)")
    assert report.lines()[-1] == f"NOT EXPLAINED: {report.unexplained[0]}"
    assert report.profile.origin.endswith("; 1 of them not explained by the fit")
    assert report.profile.forward.linear == pytest.approx(calm.forward.linear, rel=0.03)
    assert report.profile.low < 0.7 < calm.low


def test_one_interrupted_repeat_is_no_reason_to_distrust_the_fit():
    m = measured(noise=0.01, repeats=3)
    interrupted = replace(m, compute=(replace(m.compute[0], seconds=9.0), *m.compute[1:]))
    report = examine(interrupted)
    assert report.good
    rows = [row for row in m.compute if row.kind == m.compute[0].kind]
    assert report.profile.forward.linear == pytest.approx(fit(m).forward.linear, rel=0.02 + 1 / len(rows))


def test_interruptions_lengthen_the_mean_and_none_counts_more_than_twice():
    """One call in ten is interrupted: what adds up over many calls is a tenth longer, however long it took."""
    m = measured(repeats=10)
    for factor, longer in ((1.5, 1.05), (2.0, 1.1), (50.0, 1.1)):
        places = {(r.kind, r.tokens, r.squares): i for i, r in enumerate(m.compute)}.values()
        rows = tuple(replace(r, seconds=r.seconds * (factor if i in places else 1)) for i, r in enumerate(m.compute))
        found = examine(replace(m, compute=rows)).profile.forward
        assert found.linear == pytest.approx(longer * fit(m).forward.linear, rel=1e-3)


def test_seconds_of_another_shape_are_not_explained():
    """Cubic seconds: the fit does what it can, and does not hide behind its own large errors."""
    m = measured()
    cubed = tuple(replace(r, seconds=1e-4 + 1e-9 * r.tokens**3) for r in m.compute)
    assert len(examine(replace(m, compute=cubed)).unexplained) > 3
    stepped = slowed(m, 1.5, lambda r: r.tokens >= 1024 and r.longest < 1024)
    assert not examine(stepped).good
    report = examine(replace(m, compute=cubed))
    more = len(report.unexplained) - 12
    assert [line for line in report.lines() if line.endswith(" more")] == ([f"NOT EXPLAINED: {more} more"] * (more > 0))
    assert more > 0


def test_a_transfer_that_the_fit_misses_is_named():
    m = measured(noise=0.01, repeats=2)
    rows = [
        Transfer("push", 4, size, (8e-5 + 4e-10 * size) * f) for size, f in ((1 << 18, 1), (1 << 19, 3), (1 << 22, 1))
    ]
    report = examine(replace(m, transfers=(*m.transfers, *rows, *rows)))
    assert [line.split(":")[0] for line in report.unexplained] == ["push of 524,288 bytes on 4 devices"]


def only(m: Measurements, keep) -> Measurements:
    return replace(m, compute=tuple(r for r in m.compute if keep(r)))


@pytest.mark.parametrize(
    ("keep", "problem"),
    [
        (lambda r: r.kind != "forward" or r.longest == 256, "forward: the measurements do not tell .* short ones"),
        (lambda r: r.kind != "backward" or r.tokens == 512, "backward: the measurements do not tell .* apart"),
        (lambda r: r.kind != "head" or r.tokens == 512, "head: .*; measure more sizes"),
        (lambda r: r.kind != "head", "no measurements of head"),
    ],
)
def test_what_cannot_be_told_apart_is_refused(keep, problem):
    with pytest.raises(InputError, match=problem):
        fit(only(measured(), keep))


def test_transfers_of_one_size_are_refused():
    m = measured()
    with pytest.raises(InputError, match=r"gather on 2 devices: the measurements do not tell .*; measure more sizes"):
        fit(replace(m, transfers=tuple(t for t in m.transfers if t.bytes == BYTES[0])))


def test_a_coefficient_that_noise_hides_is_doubtful():
    """Squares vary, but bring little: the quadratic coefficient may be anything up to what noise allows."""
    report = examine(measured(TRUTH | {"forward": Polynomial(2e-4, 4e-6, 1e-10)}, noise=0.1))
    assert any(line.startswith("forward: its quadratic coefficient") for line in report.doubts)
    assert any(line.startswith("doubtful: forward") for line in report.lines())
    assert examine(measured(noise=0.001, repeats=2)).doubts == ()


def test_the_valid_range_is_what_every_kind_was_measured_on():
    found = fit(measured())
    assert (found.longest, found.most_tokens) == (2048, 2048)
    less = only(measured(), lambda r: r.kind != "backward" or (r.longest <= 512 and r.tokens <= 1024))
    found = fit(less)
    assert (found.longest, found.most_tokens) == (512, 1024)
    unsaid = replace(less, compute=tuple(replace(r, longest=0) for r in less.compute))
    assert fit(unsaid).longest == 512


def test_a_slow_device_is_in_the_profile_beside_the_mean_of_all():
    m = measured()
    rows = tuple(
        replace(row, seconds=factor * row.seconds, minibatch=place % 16 + 1, device=device)
        for device, factor in enumerate((1.0, 1.2))
        for place, row in enumerate(m.compute)
    )
    report = examine(replace(m, compute=rows))
    assert report.profile.slow == pytest.approx((1 / 1.1, 1.2 / 1.1), rel=5e-3)
    assert report.profile.forward.linear == pytest.approx(1.1 * TRUTH["forward"].linear, rel=0.015)
    assert [line for line in report.lines() if line.startswith("device ")] == [
        "device 0 takes 0.91 times as long as all on average",
        "device 1 takes 1.09 times as long as all on average",
    ]
    assert fit(m).slow == ()


def test_a_profile_survives_its_file(tmp_path):
    found = fit(measured(noise=0.02, repeats=2))
    profiles.write(found, tmp_path / "p.json")
    assert profiles.read(tmp_path / "p.json") == found


def test_whole_microbatches_are_given_to_the_layers():
    truth = {"microbatch": Polynomial(0.3, 1e-4, 4e-8)}
    m = measured(truth, moved=())
    found = examine(replace(m, constants=()), layers=10, transfers_included=True).profile
    assert 10 * (found.forward.linear + found.backward.linear) == pytest.approx(1e-4)
    assert 10 * (found.forward.quadratic + found.backward.quadratic) == pytest.approx(4e-8)
    assert found.backward.linear == pytest.approx(3 * found.forward.linear)
    assert found.backward.quadratic == pytest.approx(3.5 * found.forward.quadratic)
    assert (found.microbatch, found.node_transfers_included) == (pytest.approx(0.3), True)
    with pytest.raises(InputError, match="whole microbatches beside other kinds"):
        examine(measured(truth | TRUTH), layers=10)

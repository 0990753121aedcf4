"""A profile comes back as it was written, or is refused in one line."""

import json
from dataclasses import asdict, fields, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import damaged, mutated

from odcsim import profile
from odcsim.catalog import fits
from odcsim.errors import InputError
from odcsim.profile import (
    DTYPES,
    FIDELITIES,
    SHARDED,
    TIMINGS,
    TRANSFERS,
    Passes,
    Polynomial,
    Profile,
    ProfileBelow,
    Timing,
)

seconds = st.floats(0, 1e6)
polynomials = st.builds(Polynomial, seconds, seconds, seconds, seconds)
timings = st.builds(Timing, st.sampled_from(TIMINGS), st.integers(1, 99), seconds, seconds, seconds)
profiles = st.fixed_dictionaries(
    {
        **dict.fromkeys(("model", "gpu", "origin"), st.text(max_size=9)),
        **dict.fromkeys(("forward", "backward", "head", "embed"), polynomials),
        **dict.fromkeys(("microbatch", "overhead", "optimizer", "publish"), seconds),
        "fidelity": st.sampled_from(FIDELITIES),
        **dict.fromkeys(("node_transfers_included", "recompute"), st.booleans()),
        "kept": st.builds(Passes, polynomials, polynomials),
        "below": st.builds(ProfileBelow, *[polynomials] * 4, seconds, seconds),
        "fewest": st.integers(0, 10**6),
        "longest": st.integers(0, 10**6),
        "low": st.floats(0.1, 1),
        "slow": st.lists(seconds, max_size=3).map(tuple),
        "high": st.floats(1, 10),
        "timings": st.lists(timings, max_size=4, unique_by=lambda t: (t.kind, t.devices)).map(tuple),
        "most_tokens": st.integers(0, 10**6),
        "dtype": st.sampled_from(["", *DTYPES]),
        **dict.fromkeys(("hardware", "versions", "date", "transport"), st.text(max_size=9)),
        **dict.fromkeys(("jitter", "interference", "residual", "worst_residual"), seconds),
        **dict.fromkeys(("forward_error", "backward_error", "head_error", "embed_error"), polynomials),
    }
).map(lambda values: Profile(**values))
FIT = fits.published("r1-distill-qwen-1.5b", "a100")
MEASURED = replace(FIT, timings=(Timing("push", 2, 1e-5, 1e-10, 1.5), Timing("overhead", 2, 1e-3)), interference=1.2)

POLYNOMIALS = ("embed", "forward_error", "backward_error", "head_error", "embed_error")


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("profiles") / "p.json"


def save(path, **changes: object):
    content = {"format": profile.FORMAT, "version": profile.VERSION, **asdict(FIT), **changes}
    path.write_text(json.dumps(content))
    return path


@given(wanted=profiles)
def test_what_is_written_comes_back(wanted, path):
    profile.write(wanted, path)
    assert profile.read(path) == wanted


@settings(max_examples=150)
@given(data=st.data())
def test_damaged_bytes_are_refused_or_make_a_profile(data, path):
    profile.write(MEASURED, path)
    path.write_bytes(data.draw(damaged(path.read_bytes())))
    read_or_refuse(path)


@settings(max_examples=150)
@given(data=st.data())
def test_changed_json_is_refused_or_makes_a_profile(data, path):
    profile.write(MEASURED, path)
    path.write_text(json.dumps(data.draw(mutated(json.loads(path.read_text())))))
    read_or_refuse(path)


def read_or_refuse(path) -> None:
    try:
        found = profile.read(path)
    except InputError as error:
        line = str(error)
    else:
        assert isinstance(found, Profile)
        return
    assert line.startswith(str(path))
    assert "\n" not in line


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"overhead": -1}, "overhead is -1; expected a number from 0"),
        ({"overhead": float("nan")}, "overhead is nan"),
        ({"overhead": float("inf")}, "overhead is inf"),
        ({"overhead": 10**400}, "overhead is huge"),
        ({"overhead": 1e300}, "overhead is 1e.300"),
        ({"overhead": "1"}, "overhead is '1'"),
        ({"overhead": True}, "overhead is True"),
        ({"forward": {"linear": None}}, "forward.linear is None"),
        ({"forward": {"cubic": 1}}, "unknown key 'cubic' in forward"),
        ({"forward": [1, 2, 3]}, r"forward is \[1, 2, 3\]; expected an object"),
        ({"fidelity": "guess"}, "fidelity is 'guess'; one of calibrated"),
        ({"node_transfers_included": 1}, "node_transfers_included is 1"),
        ({"low": 1.1}, "range 1.1 to 1.1; low at most 1"),
        ({"low": 0}, "range 0"),
        ({"high": 0.9}, "range 0.9 to 0.9"),
        ({"dtype": "int8"}, "dtype is 'int8'; one of float32"),
        ({"timings": {}}, "timings is {}; expected a list"),
        ({"timings": [1]}, r"timings\[0\] is 1; expected an object"),
        ({"timings": [{"kind": "send", "devices": 2}]}, r"timings\[0\].kind is 'send'; one of gather"),
        ({"timings": [{"kind": "push", "devices": 0}]}, r"timings\[0\].devices is 0; expected a whole number from 1"),
        ({"timings": [{"kind": "push", "devices": 2, "constant": -1}]}, r"timings\[0\].constant is -1"),
        ({"timings": [{"kind": "push", "devices": 2, "rate": 1}]}, r"unknown key 'rate' in timings\[0\]"),
        ({"timings": 2 * [{"kind": "push", "devices": 2}]}, r"timings\[1\] is a second push of 2 devices"),
        ({"timings": [{"kind": "push", "devices": 2, "slowdown": -2}]}, r"timings\[0\].slowdown is -2"),
        ({"timings": [{"kind": "push", "devices": 2, "slowdown": None}]}, r"timings\[0\].slowdown is None"),
        ({"timings": 2 * [{"kind": "overhead", "devices": 4}]}, r"timings\[1\] is a second overhead of 4 devices"),
        ({"forward": {"sample": "1"}}, "forward.sample is '1'"),
        ({"backward_error": {"sample": -1}}, "backward_error.sample is -1"),
        ({"recompute": 1}, "recompute is 1; expected true or false"),
        ({"kept": {"backward": {"linear": -1}}}, "kept.backward.linear is -1"),
        ({"interference": True}, "interference is True"),
        ({"interference": float("inf")}, "interference is inf"),
        ({"jitter": -0.1}, "jitter is -0.1"),
        ({"slow": [1.0, -0.1]}, r"slow\[1\] is -0.1"),
        ({"forward_error": {"linear": -1}}, "forward_error.linear is -1"),
        ({"speed": 1}, "unknown key 'speed'; known: model"),
        ({"longest": 1.5}, "longest is 1.5; expected a whole number from 0"),
        ({"version": 7}, "version 7 is not 1; make a profile again"),
        ({"format": "odcsim schedule"}, "not a profile"),
    ],
)
def test_a_wrong_value_is_named(changes, problem, path):
    with pytest.raises(InputError, match=problem) as caught:
        profile.read(save(path, **changes))
    assert str(caught.value).startswith(f"{path}: ")


@pytest.mark.parametrize("name", ["model", "gpu", "fidelity", "origin", "forward", "backward", "head"])
def test_a_missing_value_is_named(name, path):
    content = json.loads(save(path).read_text())
    del content[name]
    path.write_text(json.dumps(content))
    with pytest.raises(InputError, match=f": no {name}; known: model, gpu, "):
        profile.read(path)


@pytest.mark.parametrize("content", ["", "[1]", "null", '{"format": "odcsim profile"', "[" * 100_000])
def test_what_is_no_profile_is_refused(content, path):
    path.write_text(content)
    with pytest.raises(InputError, match=f"^{path}: "):
        profile.read(path)
    with pytest.raises(InputError, match="no such file"):
        profile.read(path.with_name("missing.json"))


def test_what_may_be_left_out_is_zero(path):
    needed = ("model", "gpu", "fidelity", "origin", "forward", "backward", "head")
    content = {k: v for k, v in asdict(FIT).items() if k in needed}
    path.write_text(json.dumps({"format": profile.FORMAT, "version": 1, **content}))
    found = profile.read(path)
    assert (found.overhead, found.publish, found.low, found.high, found.longest) == (0, 0, 1, 1, 0)
    assert (found.embed, found.below) == (Polynomial(), ProfileBelow())
    rest = {f.name for f in fields(Profile)} - set(needed)
    assert {name for name in rest if getattr(found, name)} == {
        "low",
        "high",
        "interference",
        "recompute",
        "kept",
        "below",
        "run",
        *POLYNOMIALS,
    }
    assert found.kept == Passes()
    assert {getattr(found, name) for name in POLYNOMIALS} == {Polynomial()}


def test_a_file_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "p.json"
    profile.write(FIT, path)
    content = path.read_bytes()

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(type(path), "replace", full)
    with pytest.raises(InputError, match="No space left on device"):
        profile.write(FIT, path)
    assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]


def timed(*found: Timing) -> Profile:
    return replace(FIT, timings=found)


def test_what_was_measured_is_taken_as_it_is():
    profile = timed(Timing("gather", 2, 1.0, 2.0), Timing("gather", 4, 3.0, 4.0), Timing("push", 2, 5.0, 6.0))
    assert profile.timing("gather", 4) == Timing("gather", 4, 3.0, 4.0)
    assert profile.timing("push", 2) == Timing("push", 2, 5.0, 6.0)
    assert profile.timing("meeting", 2) is None
    assert FIT.timing("gather", 2) is None


@given(st.sampled_from(TIMINGS), st.integers(2, 8), st.integers(9, 20), st.tuples(*6 * [seconds]))
def test_between_measured_numbers_of_devices_lies_a_straight_line(kind, low, high, values):
    a, b, c, d, e, f = values
    profile = timed(Timing(kind, low, a, b, e), Timing(kind, high, c, d, f))
    for devices in range(low, high + 1):
        share = (devices - low) / (high - low)
        found = profile.timing(kind, devices)
        assert found.constant == pytest.approx(a + share * (c - a), abs=1e-6)
        assert found.per_byte == pytest.approx(b + share * (d - b), abs=1e-6)
        assert found.slowdown == pytest.approx(e + share * (f - e), abs=1e-6)


@given(st.integers(2, 64), st.integers(2, 64), seconds)
def test_beyond_them_shards_shrink_and_what_comes_from_others_grows(measured, asked, value):
    for kind in TRANSFERS:
        found = timed(Timing(kind, measured, 1.0, value, 1.5)).timing(kind, asked)
        assert found.slowdown == 1.5
        assert found.per_byte * asked / (asked - 1) == pytest.approx(value * measured / (measured - 1))
        assert found.constant == 1.0
    for kind in SHARDED:
        assert timed(Timing(kind, measured, value)).timing(kind, asked).constant * asked == pytest.approx(
            value * measured
        )
    for kind in ("meeting", "overhead"):
        assert timed(Timing(kind, measured, value)).timing(kind, asked).constant == value


def test_it_knows_which_numbers_of_devices_it_was_measured_with():
    profile = timed(Timing("gather", 2), Timing("gather", 8))
    assert [profile.measured_with(n) for n in (1, 2, 5, 8, 9)] == [False, True, True, True, False]
    assert FIT.measured_with(99)

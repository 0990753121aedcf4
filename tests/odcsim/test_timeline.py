"""A timeline file comes back as it was written, or is refused in one line."""

import json
import math
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import damaged, mutated

from odcsim import timeline as timelines
from odcsim.errors import InputError
from odcsim.results import metrics
from odcsim.timeline import Timeline

COLUMNS = ("minibatches", "counts", "asked", "had")


@pytest.fixture(scope="module")
def saved(timeline, tmp_path_factory):
    path = tmp_path_factory.mktemp("timelines") / "whole.npz"
    timelines.write(timeline, path)
    return path


@pytest.fixture(scope="module")
def columns(saved) -> dict:
    with np.load(saved) as found:
        return {name: found[name] for name in found.files}


@pytest.fixture(scope="module")
def place(saved):
    return saved.with_name("damaged.npz")


def read_or_refuse(path) -> Timeline | None:
    """The timeline, which must then be good enough to measure, or None where it is refused in one line."""
    try:
        found = timelines.read(path)
    except InputError as error:
        line = str(error)
    else:
        metrics.usage(found)
        return found
    assert line.startswith(str(path))
    assert "\n" not in line
    return None


def refused(path, columns, problem: str) -> None:
    np.savez(path, **columns)
    with pytest.raises(InputError, match=problem) as caught:
        timelines.read(path)
    assert str(caught.value).startswith(str(path))


def test_what_is_written_comes_back(timeline, saved):
    back = timelines.read(saved)
    assert back.about == timeline.about
    assert np.array_equal(back.samples, timeline.samples)
    assert np.array_equal(back.tokens, timeline.tokens)
    assert len(back.blocks) == len(timeline.blocks)
    for one, other in zip(back.blocks, timeline.blocks, strict=True):
        assert one.program == other.program
        for name in COLUMNS:
            assert np.array_equal(getattr(one, name), getattr(other, name))
            assert getattr(one, name).dtype == getattr(other, name).dtype


def test_every_minibatch_is_found_in_its_block(timeline):
    for minibatch in range(len(timeline.samples)):
        block, place = timeline.block_of(minibatch)
        assert block.minibatches[place] == minibatch
    with pytest.raises(InputError, match="no minibatch 6; they are numbered 0 to 5"):
        timeline.block_of(6)


def test_steps_of_microbatches_that_a_device_has_not_are_absent_and_take_no_time(timeline):
    seen = 0
    for block in timeline.blocks:
        for i in range(len(block.program.steps)):
            absent = ~block.present(i)
            seen += absent.sum()
            assert (block.asked[i][absent] == block.had[i][absent]).all()
    assert seen


@settings(max_examples=150)
@given(data=st.data())
def test_damaged_bytes_are_refused(data, saved, place):
    place.write_bytes(data.draw(damaged(saved.read_bytes())))
    read_or_refuse(place)


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.99, 0.9999])
def test_a_truncated_file_is_refused(share, saved, place):
    content = saved.read_bytes()
    place.write_bytes(content[: int(share * len(content))])
    assert read_or_refuse(place) is None


def test_other_files_are_refused(saved, place):
    with pytest.raises(InputError, match="no such file"):
        timelines.read(saved.with_name("missing.npz"))
    np.save(place.with_suffix(".npy"), np.zeros(3))
    assert read_or_refuse(place.with_suffix(".npy")) is None
    assert read_or_refuse(saved.parent) is None
    place.write_text("minibatch,device\n0,1\n")
    assert read_or_refuse(place) is None


def test_a_damaged_member_is_refused_although_the_archive_is_whole(saved, place):
    """The checksum of the archive cannot see this: a header that is no Python literal, a method nobody knows."""
    with zipfile.ZipFile(saved) as whole, zipfile.ZipFile(place, "w") as other:
        for name in whole.namelist():
            content = whole.read(name)
            other.writestr(name, content.replace(b"'fortran_order'", b"('fortran_order"))
    assert read_or_refuse(place) is None
    for method in (zipfile.ZIP_BZIP2, zipfile.ZIP_DEFLATED):
        with zipfile.ZipFile(place, "w", method) as other:
            other.writestr("header.npy", b"\x93NUMPY" * 40)
        data = bytearray(place.read_bytes())
        data[60:64] = b"\xff\x00\xff\x00"
        place.write_bytes(data)
        assert read_or_refuse(place) is None


@settings(max_examples=150)
@given(data=st.data())
def test_a_changed_header_is_refused_or_harmless(data, columns, place):
    header = json.loads(str(columns["header"]))
    changed = json.dumps(data.draw(mutated(header)))
    np.savez(place, **{**columns, "header": np.array(changed)})
    read_or_refuse(place)


def test_another_version_is_refused(columns, place):
    header = json.loads(str(columns["header"]))
    refused(place, {**columns, "header": np.array(json.dumps({**header, "version": 2}))}, "version")
    refused(place, {**columns, "header": np.array(json.dumps({**header, "format": "x"}))}, "not a timeline")
    refused(place, {**columns, "header": np.array(json.dumps({**header, "max_tokens": "8"}))}, "max_tokens is '8'")
    refused(place, {**columns, "header": np.array(json.dumps({**header, "devices": 3}))}, "shape")


@pytest.mark.parametrize("name", ["header", "samples", "0.shape", "0.steps", "0.minibatches", "0.counts", "0.had"])
def test_a_missing_column_is_refused(name, columns, place):
    refused(place, {n: c for n, c in columns.items() if n != name}, "not a timeline")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["0.asked", "0.had"])
def test_times_that_are_not_finite_are_refused(name, value, columns, place):
    times = columns[name].copy()
    times[1, 0, 0] = value
    refused(place, {**columns, name: times}, "not finite")


@pytest.mark.parametrize("name", ["samples", "tokens", "0.minibatches", "0.counts", "0.asked", "0.had", "0.shape"])
@pytest.mark.parametrize("kind", ["U8", "complex128", "bool", "object"])
def test_columns_of_another_kind_are_refused(name, kind, columns, place):
    np.savez(place, **{**columns, name: columns[name].astype(kind)})
    assert read_or_refuse(place) is None or name == "0.shape"


@pytest.mark.parametrize("name", ["samples", "tokens", "0.minibatches", "0.counts", "0.asked", "0.had", "0.shape"])
def test_columns_of_another_shape_are_refused(name, columns, place):
    for changed in (columns[name][:-1], columns[name][..., None], np.array(3)):
        np.savez(place, **{**columns, name: changed})
        assert read_or_refuse(place) is None


def test_minibatches_that_are_missing_or_repeated_are_refused(columns, place):
    numbers = columns["0.minibatches"]
    refused(place, {**columns, "0.minibatches": np.full_like(numbers, numbers[0])}, "missing or repeated")
    refused(place, {**columns, "0.minibatches": numbers + 1}, "missing or repeated")


def test_steps_of_another_program_are_refused(columns, place):
    refused(place, {**columns, "0.steps": np.array("0 compute")}, "another version of odcsim")


def test_a_shape_out_of_this_world_costs_no_time(columns, place):
    refused(place, {**columns, "0.shape": np.array([10**9, 10**3])}, "too short")


def test_a_file_is_written_whole_or_not_at_all(timeline, saved, tmp_path):
    path = tmp_path / "t.npz"
    path.write_bytes(saved.read_bytes())

    class Unwritable:
        def __array__(self, *_: object, **__: object) -> None:
            raise OSError(28, "No space left on device")

    broken = Timeline(timeline.about, timeline.blocks, timeline.samples, Unwritable())  # type: ignore[arg-type]
    with pytest.raises(InputError, match="No space left on device"):
        timelines.write(broken, path)
    assert path.read_bytes() == saved.read_bytes()
    assert list(tmp_path.iterdir()) == [path]

"""A schedule file comes back as it was written, and no tampering with it goes unseen."""

import json
from dataclasses import MISSING, fields, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import damaged, mutated, schedule_files

from odcsim import schedule
from odcsim.errors import InputError
from odcsim.schedule import Header, Schedule, ScheduleFile

HEADER = Header("lb-mini", "m", "published fit: x", max_tokens=100, devices=2, seed=0)
TWO = (
    Schedule((60, 40, 30, 70), (((0, 1),), ((2,), (3,))), (7, 8, 9, 3), (1, 0, 30, 5)),
    Schedule((10,), (((0,),), ()), (4,), (10,)),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("schedules")


@pytest.fixture
def lines(folder) -> list[str]:
    path = folder / "two.jsonl"
    schedule.write(ScheduleFile(HEADER, TWO), path)
    return path.read_text().splitlines()


def sealed(folder, header: dict, entries: list[dict]):
    """A file with this content whose digest fits, as somebody who knows how could forge it."""
    path = folder / "forged.jsonl"
    text = [json.dumps(e, separators=(",", ":")) for e in (header, *entries)]
    path.write_text("\n".join(text) + "\n")
    return path


def refused(path, line: int, problem: str) -> None:
    place = f"{path}:{line}: " if line else f"{path}: "
    with pytest.raises(InputError, match=problem) as caught:
        schedule.read(path)
    assert str(caught.value).startswith(place)
    assert "\n" not in str(caught.value)


@given(file=schedule_files())
def test_what_is_written_comes_back(file, folder):
    path = folder / "s.jsonl"
    written = schedule.write(file, path)
    assert schedule.read(path) == written
    assert written.schedules == file.schedules
    assert replace(written.header, digest="") == file.header
    assert schedule.write(written, path) == written


def test_counts_and_unevenness():
    assert TWO[0].microbatches == (1, 2)
    assert TWO[0].uneven
    assert not Schedule((1, 1), (((0,),), ((1,),))).uneven


@given(schedule_files(), st.data())
def test_any_other_content_has_another_digest(file, data):
    digest = file.compute_digest()
    assert file.compute_digest() == digest
    assert file.sealed().compute_digest() == digest
    name = data.draw(st.sampled_from(["balancer", "model", "weights", "max_tokens", "devices", "seed", "trace"]))
    value = getattr(file.header, name)
    other = replace(file, header=replace(file.header, **{name: value + (1 if isinstance(value, int) else "x")}))
    assert other.compute_digest() != digest
    assert replace(file, header=replace(file.header, in_order=not file.header.in_order)).compute_digest() != digest
    first = file.schedules[0]
    for changed in (
        replace(first, lengths=(first.lengths[0] + 1, *first.lengths[1:])),
        replace(first, devices=(*first.devices, ())),
        replace(first, samples=tuple(i + 1 for i in first.samples) or tuple(range(len(first.lengths)))),
        replace(first, loss=() if first.loss else first.lengths),
    ):
        assert replace(file, schedules=(changed, *file.schedules[1:])).compute_digest() != digest
    assert replace(file, schedules=(*file.schedules, first)).compute_digest() != digest


@settings(max_examples=200)
@given(data=st.data())
def test_damaged_bytes_are_refused_or_say_the_same(data, folder):
    whole = folder / "whole.jsonl"
    written = schedule.write(ScheduleFile(HEADER, TWO), whole)
    path = folder / "damaged.jsonl"
    path.write_bytes(data.draw(damaged(whole.read_bytes())))
    read_or_refuse(path, written)


def read_or_refuse(path, written: ScheduleFile) -> None:
    try:
        found = schedule.read(path)
    except InputError as error:
        line = str(error)
    else:
        assert found == written
        return
    assert line.startswith(str(path))
    assert "\n" not in line


@settings(max_examples=200)
@given(data=st.data())
def test_changed_json_is_refused_or_says_the_same(data, folder):
    path = folder / "mutated.jsonl"
    written = schedule.write(ScheduleFile(HEADER, TWO), path)
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    place = data.draw(st.integers(0, 2))
    entries[place] = data.draw(mutated(entries[place]))
    path.write_text("".join(json.dumps(e) + "\n" for e in entries))
    read_or_refuse(path, written)


@given(content=st.binary(max_size=200))
def test_rubbish_is_refused(content, folder):
    path = folder / "rubbish.jsonl"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        schedule.read(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"devices": [[[0, 1]], [[2]]]}, "missing, repeated or out of range"),
        ({"devices": [[[0, 1]], [[2], [3, 3]]]}, "missing, repeated or out of range"),
        ({"devices": [[[0, 1]], [[2], [4]]]}, "missing, repeated or out of range"),
        ({"devices": [[[0, 1]], [[2, 3], []]]}, "device 1 microbatch 1 is empty"),
        ({"lengths": [61, 40, 30, 70]}, "device 0 microbatch 0 holds 101 tokens, over max_tokens 100"),
        ({"lengths": [60, 40, 30, "70"]}, r"lengths\[3\] is '70'; expected a whole number from 1 to 2147483647"),
        ({"lengths": [60, 40, 30, 7.0]}, r"lengths\[3\] is 7.0"),
        ({"lengths": [60, 40, 30, float("nan")]}, r"lengths\[3\] is nan"),
        ({"lengths": [60, 40, 30, True]}, r"lengths\[3\] is True"),
        ({"lengths": [60, 40, 30, 0]}, r"lengths\[3\] is 0"),
        ({"lengths": [60, 40, 30, 2**31]}, r"lengths\[3\] is 2147483648"),
        ({"lengths": None}, "lengths is None; expected a list"),
        ({"devices": {}}, "devices is {}; expected a list"),
        ({"devices": [[[0, 1, 2, 3]]]}, "expected a list of 2"),
        ({"devices": [[[0, 1]], 3]}, r"devices\[1\] is 3; expected a list"),
        ({"devices": [[[0, 1]], [2, 3]]}, r"devices\[1\]\[0\] is 2; expected a list"),
        ({"samples": [1]}, "1 samples for 4 lengths"),
        ({"loss": [1, 2]}, "2 loss for 4 lengths"),
        ({"loss": [-1, 0, 30, 5]}, r"loss\[0\] is -1; expected a whole number from 0"),
    ],
)
def test_a_broken_minibatch_is_named_by_its_line(change, problem, lines, folder):
    header, first, second = (json.loads(line) for line in lines)
    refused(sealed(folder, header, [{**first, **change}, second]), 2, problem)
    refused(sealed(folder, header, [second, {**first, **change}]), 3, problem)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"format": "odcsim timeline"}, "not a schedule file"),
        ({"version": 2}, "version 2 is not 1"),
        ({"devices": "2"}, "devices is '2'"),
        ({"devices": True}, "devices is True"),
        ({"devices": 0}, "devices is 0; expected a whole number from 1"),
        ({"max_tokens": -5}, "max_tokens is -5"),
        ({"seed": 1.0}, "seed is 1.0"),
        ({"colour": "red"}, "unknown key 'colour'; known: balancer"),
    ],
)
def test_a_broken_header_is_named(change, problem, lines, folder):
    header, *entries = (json.loads(line) for line in lines)
    refused(sealed(folder, {**header, **change}, entries), 1, problem)


def test_a_header_without_a_key_is_refused_or_has_its_default(lines, folder):
    header, *entries = (json.loads(line) for line in lines)
    for field in fields(HEADER):
        less = sealed(folder, {key: value for key, value in header.items() if key != field.name}, entries)
        if field.default is MISSING:
            refused(less, 1, f"no {field.name}; known: balancer")
        elif header[field.name] == field.default:
            assert schedule.read(less).schedules == TWO
        else:
            refused(less, 0, "does not fit the content")


def test_edits_that_leave_a_good_schedule_are_seen_by_the_digest(lines, folder):
    header, first, second = (json.loads(line) for line in lines)
    swapped = {**first, "devices": [[[2], [3]], [[0, 1]]]}
    for entries in ([swapped, second], [second, first], [first], [first, second, second]):
        refused(sealed(folder, header, entries), 0, "does not fit the content")
    refused(sealed(folder, {**header, "seed": 5}, [first, second]), 0, "does not fit the content")


@pytest.mark.parametrize("cut", [0, 1, 40, 300])
def test_a_truncated_file_is_refused(cut, lines, folder):
    path = folder / "cut.jsonl"
    path.write_text("\n".join(lines)[:-cut] if cut else "")
    with pytest.raises(InputError, match=str(path)):
        schedule.read(path)


def test_other_files_are_refused(folder):
    with pytest.raises(InputError, match="no such file; write one with 'odcsim balance'"):
        schedule.read(folder / "missing.jsonl")
    with pytest.raises(InputError, match="cannot be read"):
        schedule.read(folder)
    path = folder / "header.jsonl"
    schedule.write(ScheduleFile(HEADER, TWO), path)
    path.write_text(path.read_text().splitlines()[0])
    refused(path, 0, "holds no minibatch")
    path.write_text("[" * 100_000)
    refused(path, 1, "not a JSON object")


def test_a_file_is_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "s.jsonl"
    schedule.write(ScheduleFile(HEADER, TWO), path)
    content = path.read_bytes()
    with pytest.raises(TypeError):
        schedule.write(ScheduleFile(HEADER, (*TWO, Schedule((1,), (object(),)))), path)  # type: ignore[arg-type]
    assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]

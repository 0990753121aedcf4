"""Microbatches without an image where another device's has one: those that a definition by words gives, and a way out
that leads out."""

import io
import json
import sys
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odcsim.checking.batches import Batch
from odcsim.checking.findings import Rules, check, unpaired
from odcsim.cli import main
from odcsim.schedule import Header, Schedule, ScheduleFile, write

SYNCS = st.sampled_from(["collective", "deferred", "on-demand"])


@st.composite
def batches(draw, even=False):
    """A minibatch of 1 to 4 devices, each with 0 to 4 microbatches (all with as many, if even) of 0 to 2 samples."""
    counts = draw(st.lists(st.integers(0, 4), min_size=1, max_size=4))
    counts = [counts[0] for _ in counts] if even else counts
    sizes = [draw(st.lists(st.integers(0, 2), min_size=n, max_size=n)) for n in counts]
    numbers = iter(range(40))
    devices = [[[next(numbers) for _ in range(size)] for size in device] for device in sizes]
    has = draw(st.lists(st.booleans(), min_size=40, max_size=40))
    return Batch(devices, images={i: has[i] for device in devices for part in device for i in part})


def in_words(plan):
    """Every microbatch that has no image and stands where some other device's has one."""
    parts = [(n, m, d, part) for n, batch in enumerate(plan) for d, own in enumerate(batch.devices)
             for m, part in enumerate(own)]  # fmt: skip
    some = {(n, m, d): any(plan[n].images[i] for i in part) for n, m, d, part in parts}
    return {(n, m, d) for n, m, d in some if not some[n, m, d] and any(some.get((n, m, e)) for e in range(4))}


@given(st.lists(batches(), min_size=1, max_size=3), SYNCS)
def test_places_are_those_of_the_definition_and_the_first_is_told(plan, sync):
    found, expected = unpaired(plan), in_words(plan)
    assert [(one.minibatch, one.microbatch, one.device) for one in found] == sorted(expected)
    for one in found:
        other = plan[one.minibatch].devices[one.other][one.microbatch]
        assert any(plan[one.minibatch].images[i] for i in other)
    findings = [f for f in check(plan, Rules(sync)) if f.kind in ("unpaired", "patched")]
    meets = sync != "on-demand"
    assert [f.severity for f in findings] == ([] if not expected else ["error", "note"] if meets else ["note"])
    for finding in findings[:1]:
        number, m, d = min(expected)
        assert finding.text.startswith(f"microbatch {m} of device {d} has no image where device ")
        assert (f"the first of {len(expected)} such" in finding.text) == (len(expected) > 1)
        assert (finding.minibatch, finding.minibatches) == (number, len({place[0] for place in expected}))


def no_deal_pairs(batch):
    """Of the samples that have images: the others may go anywhere. More positions than samples are as one of them."""
    some = [i for i, has in batch.images.items() if has]
    devices, positions = len(batch.devices), len(some)
    for places in product(product(range(devices), range(positions)), repeat=len(some)):
        devices_at = [{d for d, m in places if m == position} for position in range(positions)]
        if all(len(at) in (0, devices) for at in devices_at):
            return False
    return True


@given(batches(even=True).filter(lambda batch: unpaired([batch]) and sum(batch.images.values()) <= 4))
def test_the_way_out_leads_out(batch):
    [unpaired_one] = [f for f in check([batch], Rules("collective")) if f.kind == "unpaired"]
    way = unpaired_one.text.partition("; ")[2]
    assert way.startswith("run on-demand")
    first = [sorted(device, key=lambda part: not any(batch.images[i] for i in part)) for device in batch.devices]
    assert ("begin with" in way) == (unpaired([replace(batch, devices=first)]) == [])
    if "too few" in way:
        assert no_deal_pairs(batch)
    if "deal so" in way:
        assert not no_deal_pairs(batch)


MIXED = [[[[0], [1]], [[2], [3]]], [[[4], [5]], [[6], [7]]]]
ROWS = [1, 0, 0, 2, 1, 0, 0, 0]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.json").write_text(json.dumps(MIXED))
    (tmp_path / "l.csv").write_text("length,images,notes\n" + "".join(f"9,{n},{n or 'maybe'}\n" for n in ROWS))
    return tmp_path


def run(*more):
    return main(["check", "p.json", "--lengths", "l.csv", *more])


def test_the_status_of_the_command(folder, capsys):
    images = ["--images", "images"]
    assert [run(), run(*images), run(*images, "--sync", "on-demand", "--strict")] == [0, 1, 0]
    capsys.readouterr()
    assert run(*images, "--json") == 1
    found = [(f["kind"], f["severity"], f["minibatches"]) for f in json.loads(capsys.readouterr().out)["findings"]]
    assert found == [("unpaired", "error", 2), ("patched", "note", 2)]
    one = Schedule.of((9, 9), (((0,),), ((1,),)), samples=(7, 3))  # rows of ours, of which row 3 alone has images
    write(ScheduleFile(Header("native", "tiny", "", 99, 2), (one,)).sealed(), folder / "p.json")
    assert run(*images) == 1


LINES = ["--lengths l.csv --images image", "--lengths l.csv --images notes", "--images images",
         "--lengths longalign --images images", "--lengths - --images images"]  # fmt: skip


@pytest.mark.usefixtures("folder")
def test_what_says_nothing_of_images_is_one_line(capsys, monkeypatch):
    for line in LINES:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"length,images\n" + b"9,0\n" * 8)))
        assert main(["check", "p.json", *line.split()]) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1

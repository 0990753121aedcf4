"""The ladder on a CPU, with faults in every probe in turn."""

import os

import ladder
import probing
import pytest
import rehearse
from probing import probe

from odc_engine.doctor.probes.base import ABSENT, FAILED, OK
from odc_engine.doctor.probes.every import PROBES


@pytest.mark.slow
def test_every_probe_may_fail_or_hang_and_the_others_report():
    assert rehearse.main([]) == 0


def test_each_probe_has_each_fault_once():
    turns = [rehearse.faulty(PROBES, turn) for turn in range(3)]
    for each in zip(PROBES, *turns, strict=True):
        assert sorted(of.call for of in each[1:]) == sorted([each[0].call, "rehearse:fails", "rehearse:hangs"])


@pytest.mark.slow
def test_a_rehearsal_of_quick_probes(tmp_path, monkeypatch):
    probing.written(tmp_path, monkeypatch)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path) + ":" + os.environ["PYTHONPATH"])
    probes = [probe("good", name=f"good-{i}", rung=1 + i % 2) for i in range(3)]
    assert rehearse.rehearsed(probes, tmp_path / "fine") == []
    probes = [probe("exits", name="alone")]
    assert len(rehearse.rehearsed(probes, tmp_path / "wrong")) == 1


@pytest.mark.parametrize(
    ("call", "entry", "good"),
    [
        ("m:f", {"status": OK}, True),
        ("m:f", {"status": ABSENT}, True),
        ("m:f", {"status": FAILED}, False),
        ("m:f", {}, False),
        ("rehearse:fails", {"status": OK}, False),
        ("rehearse:hangs", {"status": FAILED, "found": "no answer within 1 s", "data": {"before": "the hang"}}, False),
    ],
)
def test_what_is_not_told_as_it_was_is_wrong(call, entry, good):
    of = ladder.Probe("name", "?", 1.0, call)
    assert (rehearse.wrong([of], {"name": entry} if entry else {}) == []) is good

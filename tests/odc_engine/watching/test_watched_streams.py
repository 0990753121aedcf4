"""Steps of a GPU that is not here: events are done when it comes to them, and nobody waits for it before the end."""

import json

import pytest

from odc_engine import Watcher
from odc_engine.watching import ticking as module
from odc_engine.watching import watcher as home


class LateEvent:
    """Done once the device has come so far; it takes a second for each."""

    made = reached = 0

    def __init__(self, enable_timing):
        assert enable_timing

    def record(self):
        LateEvent.made += 1
        self.at = LateEvent.made

    def query(self):
        return self.at <= LateEvent.reached

    def synchronize(self):
        LateEvent.reached = max(LateEvent.reached, self.at)

    def elapsed_time(self, other):
        assert other.query(), "asked for before it was done"
        return 1000.0 * (other.at - self.at)


@pytest.fixture
def folder(monkeypatch, tmp_path):
    monkeypatch.setattr(LateEvent, "made", 0)
    monkeypatch.setattr(LateEvent, "reached", 0)
    monkeypatch.setattr(module._cuda, "Event", LateEvent)
    monkeypatch.setattr(home, "ticking", module.StreamTicking)
    return tmp_path / "watched"


def step(watcher, *lengths):
    for length in lengths:
        with watcher.microbatch([length]):
            pass
    watcher.step()


def steps_of(folder):
    about, *steps = [json.loads(line) for line in (folder / "watch-rank0.jsonl").read_text().splitlines()]
    assert about["device"] == "cuda"
    return steps


def test_a_step_is_written_when_the_device_has_come_so_far(folder):
    watcher = Watcher(folder)
    step(watcher, 5, 7)  # events 1 to 6
    assert steps_of(folder) == []
    LateEvent.reached = 6
    step(watcher, 9)
    assert [line["step"] for line in steps_of(folder)] == [1]
    watcher.close()
    first, second = steps_of(folder)
    assert [m["lengths"] for m in first["microbatches"]] == [[5], [7]]
    assert (first["seconds"], [(m["begin"], m["seconds"]) for m in first["microbatches"]]) == (5, [(1, 1), (3, 1)])
    assert second["step"] == 2
    assert "waited" not in first["microbatches"][0]


def test_nobody_waits_for_a_device_before_the_end(folder, monkeypatch):
    monkeypatch.setattr(LateEvent, "synchronize", lambda _: pytest.fail("waited for"))
    watcher = Watcher(folder)
    for _ in range(3):
        step(watcher, 5)
    monkeypatch.undo()
    watcher.close()

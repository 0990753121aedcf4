"""A loop of somebody's own that is watched: what stands in its files, and that nothing of anybody's is lost."""

import gc
import json
import subprocess
import sys

import pytest
import torch
from scripts import ROOT

import odc_engine
from odc_engine.watching import ticking as ticks
from odc_engine.watching import watcher as module
from odcsim.errors import InputError


def lines_of(folder, rank=0):
    text = (folder / f"watch-rank{rank}.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def looped(folder, steps=2, **how):
    watcher = odc_engine.Watcher(folder, **how)
    for step in range(steps):
        for lengths in ([5, 7], [2 + step]):
            with watcher.microbatch(lengths):
                torch.ones(3, requires_grad=True).sum().backward()
        watcher.step()
    watcher.close()


def test_a_line_for_the_run_and_one_for_each_step(tmp_path):
    looped(tmp_path / "watched")
    about, *steps = lines_of(tmp_path / "watched")
    assert {name: about[name] for name in ("format", "version", "rank", "ranks", "trainer", "device")} == {
        "format": "odcsim watch",
        "version": 1,
        "rank": 0,
        "ranks": 1,
        "trainer": "own loop",
        "device": "cpu",
    }
    assert [step["step"] for step in steps] == [1, 2]
    assert [[m["lengths"] for m in step["microbatches"]] for step in steps] == [[[5, 7], [2]], [[5, 7], [3]]]
    for step in steps:
        spans = [(m["begin"], m["begin"] + m["seconds"]) for m in step["microbatches"]]
        edges = [0.0, *(edge for span in spans for edge in span), step["seconds"]]
        assert edges == pytest.approx(sorted(edges), abs=2e-6)
        assert all(0 <= m.get("waited", 0) <= m["seconds"] for m in step["microbatches"])


class Clock:
    """Stands still but where somebody sleeps, and a core is had where somebody works."""

    def __init__(self):
        self.now, self.worked = 1e9, 0.0

    def time(self):
        return self.now

    perf_counter = time

    def thread_time(self):
        return self.worked

    def sleep(self, seconds):
        self.now += seconds

    def work(self, seconds):
        self.now += seconds
        self.worked += seconds


@pytest.fixture
def clock(monkeypatch, tmp_path):
    """With nobody in line for a core."""
    clock = Clock()
    for where in (module, ticks):
        monkeypatch.setattr(where, "time", clock)
    (tmp_path / "schedstat").write_text("0 0 0")
    monkeypatch.setattr(ticks, "QUEUE", tmp_path / "schedstat")
    monkeypatch.setattr(ticks, "_processes", lambda: 0)
    return clock


def slowly(clock, items):
    for item in items:
        clock.sleep(0.25)
        yield item


@pytest.mark.parametrize("epochs", [1, 2])
def test_what_lies_between_steps_is_not_counted_and_a_loader_is_where_it_is_asked_for(tmp_path, clock, epochs):
    """Evaluations are ahead of a step, behind it, and between epochs, one of which is left early."""
    watcher = odc_engine.Watcher(tmp_path / "watched")
    for _ in range(epochs):
        for number, lengths in enumerate(watcher.loaded(slowly(clock, [[4], [5], [6]]))):
            if number == 2:
                break
            clock.sleep(7)
            for _ in range(2):
                with watcher.microbatch(lengths, computed=8):
                    clock.work(0.5)
                clock.sleep(0.125)
            watcher.step()
            clock.sleep(7)
        clock.sleep(7)
    watcher.close()
    _, *steps = lines_of(tmp_path / "watched")
    assert [step["seconds"] - step["loader"] for step in steps] == [1.25] * 2 * epochs
    assert [step["loader"] for step in steps] == [0.25, 0.25, 0.5, 0.25][: 2 * epochs]  # a batch that nobody trained on
    for step in steps:
        assert [m["begin"] - step["loader"] for m in step["microbatches"]] == [0.0, 0.625]
        assert step["microbatches"][0]["computed"] == 8
    assert steps[0]["begin"] == 1e9 + 7


def test_seconds_of_garbage_collection_are_the_steps(tmp_path):
    watcher = odc_engine.Watcher(tmp_path / "watched")
    kept = [[i] for i in range(200_000)]
    for collect in (gc.collect, lambda: None):
        with watcher.microbatch([1]):
            collect()
        watcher.step()
    heard = len(gc.callbacks)
    watcher.close()
    first, second = lines_of(tmp_path / "watched")[1:]
    assert len(gc.callbacks) == heard - 1
    assert first["collector"] > second["collector"]
    assert len(kept)


def test_who_sleeps_waits_and_who_computes_does_not(tmp_path, clock):
    watcher = odc_engine.Watcher(tmp_path / "watched")
    for does in (clock.sleep, clock.work):
        with watcher.microbatch([1]):
            does(0.5)
    watcher.step()
    watcher.close()
    slept, computed = lines_of(tmp_path / "watched")[1]["microbatches"]
    assert (slept["waited"], computed["waited"]) == (0.5, 0.0)


def test_another_run_gets_a_folder_of_its_own_and_says_so(tmp_path, capsys):
    folder = tmp_path / "watched"
    looped(folder)
    first = (folder / "watch-rank0.jsonl").read_bytes()
    looped(folder)
    assert (folder / "watch-rank0.jsonl").read_bytes() == first
    assert len(lines_of(tmp_path / "watched-2")) == 3
    assert f"into {folder}-2, since {folder} has another run's" in capsys.readouterr().err


def test_a_file_in_the_folders_place_is_refused_in_a_line(tmp_path):
    (tmp_path / "watched").write_text("mine")
    with pytest.raises(InputError, match="is no folder"):
        looped(tmp_path / "watched")
    assert (tmp_path / "watched").read_text() == "mine"


class Full:
    """A file on a disk that has become full."""

    closed = False

    def write(self, _):
        raise OSError(28, "No space left on device")

    def close(self):
        self.write("")


def test_a_disk_that_becomes_full_ends_the_watching_in_a_line_and_not_the_run(tmp_path, capsys):
    watcher = odc_engine.Watcher(tmp_path / "watched")
    for step in range(4):
        if step == 1:
            watcher._file.close()
            watcher._file = Full()
        with watcher.microbatch([step + 1]):
            pass
        watcher.step()
    watcher.close()
    assert capsys.readouterr().err == "odc_engine.watch: stops watching: OSError: [Errno 28] No space left on device\n"
    assert [line["step"] for line in lines_of(tmp_path / "watched")[1:]] == [1]


def test_a_folder_that_cannot_be_written_is_refused_before_anything_is_trained(tmp_path):
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(InputError, match="cannot be written: Not a directory"):
        odc_engine.Watcher(tmp_path / "mine" / "watched").open()


KILLED = """
import os, sys, odc_engine
watcher = odc_engine.Watcher(sys.argv[1])
for step in range(3):
    with watcher.microbatch([step + 1]):
        pass
    watcher.step()
with watcher.microbatch([9]):
    os.kill(os.getpid(), 9)
"""


def test_a_run_that_is_killed_leaves_whole_lines(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path / "watched")], cwd=ROOT, capture_output=True, check=False
    )
    assert done.returncode == -9, done.stderr
    assert [line["microbatches"][0]["lengths"] for line in lines_of(tmp_path / "watched")[1:]] == [[1], [2], [3]]


def test_a_step_without_microbatches_and_one_that_failed_are_no_steps(tmp_path):
    watcher = odc_engine.Watcher(tmp_path / "watched")
    watcher.step()
    with pytest.raises(ValueError, match="mine"), watcher.microbatch([1]):
        raise ValueError("mine")
    with watcher.microbatch([2]):
        pass
    watcher.step()
    watcher.close()
    assert [[m["lengths"] for m in line["microbatches"]] for line in lines_of(tmp_path / "watched")[1:]] == [[[2]]]


RANKS = """
import datetime, sys, time, torch.distributed as dist, odc_engine
folder, store, rank = sys.argv[1], sys.argv[2], int(sys.argv[3])
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
for run in range(2):
    watcher = odc_engine.Watcher(folder)
    if rank == run:
        dist.barrier()  # the other one is first
    with watcher.microbatch([1]):
        pass
    if rank != run:
        dist.barrier()
    watcher.step()
    watcher.close()
    dist.barrier()
"""


def test_ranks_take_one_folder_and_one_name_whatever_earlier_runs_left(tmp_path):
    """Of a run of one rank, say, whose folder only one of them would pass by."""
    folder = tmp_path / "watched"
    looped(folder)
    program = [sys.executable, "-c", RANKS, str(folder), str(tmp_path / "store")]
    ranks = [subprocess.Popen([*program, str(rank)], cwd=ROOT) for rank in range(2)]
    assert [rank.wait(120) for rank in ranks] == [0, 0]
    names = []
    for number in (2, 3):
        first, second = (lines_of(tmp_path / f"watched-{number}", rank)[0]["run"] for rank in range(2))
        assert first == second
        names.append(first)
    assert len({*names, lines_of(folder)[0]["run"]}) == 3
    assert not (folder / "watch-rank1.jsonl").exists()

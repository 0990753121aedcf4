"""A loop of somebody's own, or a Trainer's, that is watched: its files, and that nothing of anybody's is lost."""

import copy
import gc
import io
import json
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from scripts import ROOT

import odc_engine
from odc_engine.watching import ticking as ticks
from odc_engine.watching import watcher as module
from odcsim.errors import InputError


def lines_of(folder, rank=0):
    return [json.loads(line) for line in (folder / f"watch-rank{rank}.jsonl").read_text().splitlines()]


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "watched"


@pytest.fixture
def watched(folder):
    """A watcher that is closed at the end."""
    watcher = odc_engine.Watcher(folder)
    yield watcher
    watcher.close()


def steps_of(watcher, folder):
    watcher.close()
    return lines_of(folder)[1:]


def step(watcher, *microbatches):
    for lengths in microbatches:
        with watcher.microbatch(lengths):
            torch.ones(3, requires_grad=True).sum().backward()
    watcher.step()


def looped(folder):
    watcher = odc_engine.Watcher(folder)
    for last in (2, 3):
        step(watcher, [5, 7], [last])
    watcher.close()


ABOUT = {"format": "odcsim watch", "version": 1, "rank": 0, "ranks": 1, "trainer": "own loop", "device": "cpu"}


def test_a_line_for_the_run_and_one_for_each_step(folder, tmp_path, capsys):
    """And another folder for another run, which says so."""
    looped(folder)
    about, *steps = lines_of(folder)
    assert about.items() >= ABOUT.items()
    assert [one["step"] for one in steps] == [1, 2]
    assert [[m["lengths"] for m in one["microbatches"]] for one in steps] == [[[5, 7], [2]], [[5, 7], [3]]]
    for one in steps:
        spans = [(m["begin"], m["begin"] + m["seconds"]) for m in one["microbatches"]]
        edges = [0.0, *(edge for span in spans for edge in span), one["seconds"]]
        assert edges == pytest.approx(sorted(edges), abs=2e-6)
        assert all(0 <= m.get("waited", 0) <= m["seconds"] for m in one["microbatches"])
    first = (folder / "watch-rank0.jsonl").read_bytes()
    capsys.readouterr()
    looped(folder)
    assert (folder / "watch-rank0.jsonl").read_bytes() == first
    assert len(lines_of(tmp_path / "watched-2")) == 3
    assert str(tmp_path / "watched-2") in capsys.readouterr().err


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
def test_what_lies_between_steps_is_not_counted_and_a_loader_is_where_it_is_asked_for(clock, folder, watched, epochs):
    """Evaluations are ahead of a step, behind it, and between epochs, one of which is left early."""
    for _ in range(epochs):
        for number, lengths in enumerate(watched.loaded(slowly(clock, [[4], [5], [6]]))):
            if number == 2:
                break
            clock.sleep(7)
            for _ in range(2):
                with watched.microbatch(lengths, computed=8):
                    clock.work(0.5)
                clock.sleep(0.125)
            watched.step()
            clock.sleep(7)
        clock.sleep(7)
    steps = steps_of(watched, folder)
    assert [step["seconds"] - step["loader"] for step in steps] == [1.25] * 2 * epochs
    assert [step["loader"] for step in steps] == [0.25, 0.25, 0.5, 0.25][: 2 * epochs]  # a batch that nobody trained on
    for step in steps:
        assert [m["begin"] - step["loader"] for m in step["microbatches"]] == [0.0, 0.625]
        assert step["microbatches"][0]["computed"] == 8
    assert steps[0]["begin"] == 1e9 + 7


def test_who_sleeps_waits_and_who_computes_does_not(clock, folder, watched):
    for does in (clock.sleep, clock.work):
        with watched.microbatch([1]):
            does(0.5)
    watched.step()
    assert [m["waited"] for m in steps_of(watched, folder)[0]["microbatches"]] == [0.5, 0.0]


def test_seconds_of_garbage_collection_are_the_steps(folder, watched):
    kept = [[i] for i in range(200_000)]
    with watched.microbatch([1]):
        gc.collect()
    watched.step()
    step(watched, [len(kept)])
    heard = len(gc.callbacks)
    first, second = steps_of(watched, folder)
    assert len(gc.callbacks) == heard - 1
    assert first["collector"] > second["collector"]


def test_a_file_in_the_folders_place_is_refused_before_anything_is_trained(tmp_path):
    (tmp_path / "mine").write_text("mine")
    for folder in (tmp_path / "mine", tmp_path / "mine" / "watched"):
        with pytest.raises(InputError):
            odc_engine.Watcher(folder).open()
    assert (tmp_path / "mine").read_text() == "mine"


class Full:
    """A file on a disk that has become full."""

    closed = False

    def write(self, _=""):
        raise OSError(28, "No space left on device")

    close = write


def test_a_disk_that_becomes_full_ends_the_watching_in_a_line_and_not_the_run(folder, watched, capsys):
    step(watched, [1])
    watched._file.close()
    watched._file = Full()
    for _ in range(3):
        step(watched, [2])
    assert [line["step"] for line in steps_of(watched, folder)] == [1]
    assert capsys.readouterr().err.count("\n") == 1


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


def test_a_run_that_is_killed_leaves_whole_lines(folder):
    done = subprocess.run([sys.executable, "-c", KILLED, str(folder)], cwd=ROOT, capture_output=True, check=False)
    assert done.returncode == -9, done.stderr
    assert [line["microbatches"][0]["lengths"] for line in lines_of(folder)[1:]] == [[1], [2], [3]]


def test_a_step_without_microbatches_and_one_that_failed_are_no_steps(folder, watched):
    watched.step()
    with pytest.raises(ValueError, match="mine"), watched.microbatch([1]):
        raise ValueError("mine")
    step(watched, [2])
    assert [[m["lengths"] for m in line["microbatches"]] for line in steps_of(watched, folder)] == [[[2]]]


def of_two_ranks(rank, folder, run):
    watcher = odc_engine.Watcher(folder)
    if rank == run:
        torch.distributed.barrier()  # the other one is first
    step(watcher, [1])
    if rank != run:
        torch.distributed.barrier()
    watcher.close()
    torch.distributed.barrier()


def test_ranks_take_one_folder_and_one_name_whatever_earlier_runs_left(pools, folder, tmp_path):
    """Of a run of one rank, say, whose folder only one of them would pass by."""
    looped(folder)
    names = {lines_of(folder)[0]["run"]}
    for run in range(2):
        pools(2).run(of_two_ranks, folder, run)
        one, other = (lines_of(tmp_path / f"watched-{run + 2}", rank)[0]["run"] for rank in range(2))
        assert one == other
        names.add(one)
    assert len(names) == 3
    assert not (folder / "watch-rank1.jsonl").exists()


class LateEvent:
    """Of a GPU that is not here: done once that has come so far. It takes a second for each."""

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


def test_a_step_is_written_when_the_device_has_come_so_far_which_nobody_waits_for(folder, watched, monkeypatch):
    monkeypatch.setattr(ticks._cuda, "Event", LateEvent)
    monkeypatch.setattr(module, "ticking", ticks.StreamTicking)
    with monkeypatch.context() as until_the_end:
        until_the_end.setattr(LateEvent, "synchronize", lambda _: pytest.fail("waited for"))
        step(watched, [5], [7])  # events 1 to 6
        assert len(lines_of(folder)) == 1
        LateEvent.reached = 6
        step(watched, [9])
        assert [line["step"] for line in lines_of(folder)[1:]] == [1]
    first, second = steps_of(watched, folder)
    assert lines_of(folder)[0]["device"] == "cuda"
    assert [m["lengths"] for m in first["microbatches"]] == [[5], [7]]
    assert (first["seconds"], [(m["begin"], m["seconds"]) for m in first["microbatches"]]) == (5, [(1, 1), (3, 1)])
    assert second["step"] == 2
    assert "waited" not in first["microbatches"][0]


class Tiny(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(9, 4)

    def forward(self, input_ids, seq_lengths=None):  # noqa: ARG002
        return self.embedding(input_ids).sum()


def begun(model, folder):
    watch = odc_engine.watch(folder, every=0)
    watch.on_train_begin(SimpleNamespace(n_gpu=0), None, None, model=model)
    return watch


def trained(watch, *models, **batch):
    watch.on_step_begin()
    for model in models:
        model(torch.ones(1, 3, dtype=torch.int64), **batch).backward()
    watch.on_step_end(None, SimpleNamespace(global_step=1), None)


def microbatches_of(folder):
    return [len(step["microbatches"]) for step in lines_of(folder)[1:]]


def test_a_batch_of_an_odd_form_ends_the_watching_and_not_the_run(tmp_path, capsys):
    model = Tiny()
    watch = begun(model, tmp_path / "watched")
    trained(watch, model)
    trained(watch, model, seq_lengths=[torch.tensor([1, 2])])
    trained(watch, model)
    watch.on_train_end()
    assert capsys.readouterr().err.count("\n") == 1
    assert microbatches_of(tmp_path / "watched") == [1]


def saved(model):
    torch.save(model, file := io.BytesIO())
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("again", [copy.deepcopy, saved])
def test_a_model_is_copied_and_saved_while_it_is_watched_and_the_copy_is_not(tmp_path, again):
    model = Tiny()
    watch = begun(model, tmp_path / "watched")
    trained(watch, again(model), model, again(again(model)))
    watch.on_train_end()
    assert microbatches_of(tmp_path / "watched") == [1]


def test_what_a_run_left_that_ended_by_an_exception_is_taken_away(tmp_path):
    model = Tiny()
    trained(begun(model, tmp_path / "first"), model)
    watch = begun(model, tmp_path / "second")
    trained(watch, model)
    watch.on_train_end()
    assert (len(model._forward_pre_hooks), len(model._forward_hooks)) == (0, 0)
    assert [microbatches_of(tmp_path / name) for name in ("first", "second")] == [[1], [1]]


@pytest.mark.parametrize(("n_gpu", "device"), [(4, "cpu"), (1, "xpu")])
def test_devices_whose_time_it_cannot_tell_are_refused(tmp_path, n_gpu, device):
    model = type("Far", (Tiny,), {"parameters": lambda _: [SimpleNamespace(device=torch.device(device))]})()
    with pytest.raises(InputError):
        odc_engine.watch(tmp_path / "watched").on_train_begin(SimpleNamespace(n_gpu=n_gpu), None, None, model=model)
    assert not (tmp_path / "watched").exists()
    assert not model._forward_pre_hooks

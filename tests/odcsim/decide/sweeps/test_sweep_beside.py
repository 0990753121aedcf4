"""Two processes and one file of points: nobody's rows are lost, whoever comes, stays or is killed, and when."""

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import Executor, Future
from pathlib import Path
from random import random
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import odcsim
from odcsim.cli import main
from odcsim.decide.sweeps.grid import grid_of
from odcsim.decide.sweeps.store import all_beside, lines, results
from odcsim.decide.sweeps.sweeping import planned, run
from odcsim.decide.sweeps.written import write
from odcsim.errors import InputError
from odcsim.support.held import held

GRID = {
    "trace": "uniform:min=20,max=900,samples=64",
    "model": "tiny",
    "gpu": "a100",
    "devices": [2, 4],
    "minibatch": [2, 3],
    "minibatches": 2,
    "sync": "on-demand",
    "balancer": "lb-mini",
}
ROOT = Path(__file__).parents[4]
HOLDS = """
import pathlib, sys, time
from odcsim.support.held import held
with held(pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


class Disturbed(Executor):
    """Works here, on each point once for all tests, and calls `disturb` before the point of this number."""

    known: ClassVar = {}

    def __init__(self, number=-1, disturb=None):
        self.left, self.disturb = number, disturb

    def submit(self, function, point):
        if self.left == 0:
            self.disturb()
        self.left -= 1
        if point.key not in self.known:
            self.known[point.key] = function(point)
        done = Future()
        done.set_result(self.known[point.key])
        return done


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    output = tmp_path_factory.mktemp("whole") / "out.csv"
    odcsim.sweep(GRID, output=output)
    return output.read_bytes()


@pytest.fixture
def without_locks(monkeypatch):
    def none(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", none)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("number", [0, 2])
def test_a_second_sweep_of_one_output_is_refused_and_the_first_ends_well(whole, tmp_path, number, capsys):
    output, grid = tmp_path / "out.csv", tmp_path / "grid.toml"
    grid.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in GRID.items()))
    codes = []
    second = lambda: codes.append(main(["sweep", str(grid), "-o", str(output), "--jobs", "1"]))  # noqa: E731
    odcsim.sweep(GRID, output=output, executor=Disturbed(number, second))
    assert codes == [2]
    told = f"odcsim: error: {output}.points: another run is writing to it; wait for it, or name another output\n"
    assert capsys.readouterr().err == told
    assert output.read_bytes() == whole
    assert names(tmp_path) == ["grid.toml", "out.csv", "out.csv.points"]


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(numbers=st.lists(st.integers(0, 3), min_size=1, max_size=3))
@pytest.mark.usefixtures("without_locks")
def test_where_nothing_can_be_locked_both_have_all_rows(whole, tmp_path_factory, numbers):
    """One begins within the other, and is done before it."""
    output = tmp_path_factory.mktemp("both") / "out.csv"
    tables = []

    def begin(left):
        executor = Disturbed(left[0], lambda: begin(left[1:])) if left else Disturbed()
        odcsim.sweep(GRID, output=output, executor=executor)
        tables.append(output.read_bytes())

    begin(numbers)
    assert tables == [whole] * (len(numbers) + 1)


@pytest.mark.usefixtures("without_locks")
def test_where_nothing_can_be_locked_those_who_begin_at_once_lose_no_rows(whole, tmp_path, monkeypatch):
    """Nor would a file that one of them puts in the place of the others', which takes its time here."""
    output, problems, together = tmp_path / "out.csv", [], threading.Barrier(4, timeout=60)
    monkeypatch.setattr("odcsim.decide.sweeps.store.check_writable", lambda _: together.wait())
    monkeypatch.setattr("odcsim.support.files.secrets.token_hex", lambda _: time.sleep(random() / 10) or f"{random()}")

    def one():
        try:
            odcsim.sweep(GRID, output=output, executor=Disturbed())
        except Exception as error:
            problems.append(error)

    threads = [threading.Thread(target=one) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    assert output.read_bytes() == whole


@pytest.fixture
def holder(tmp_path):
    """A process that holds a file, until it is killed."""
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(tmp_path / "out.csv.points")], env=env, stdout=subprocess.PIPE
    )
    assert process.stdout.readline() == b"held\n"
    yield process
    process.kill()
    process.communicate()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_lock_goes_with_its_holder_however_that_one_ends(holder, whole, tmp_path, number):
    with pytest.raises(InputError, match="another run is writing to it"):
        odcsim.sweep(GRID, output=tmp_path / "out.csv")
    holder.send_signal(number)
    holder.wait()
    odcsim.sweep(GRID, output=tmp_path / "out.csv", executor=Disturbed())
    assert (tmp_path / "out.csv").read_bytes() == whole
    assert names(tmp_path) == ["out.csv", "out.csv.points"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked here")
def test_a_forked_worker_does_not_keep_its_parents_lock(tmp_path):
    """As those of a ProcessPoolExecutor, which outlive a parent that is killed."""
    path, (out, into) = tmp_path / "points", os.pipe()
    with held(path):
        child = os.fork()
        if child == 0:
            os.close(into)
            os.read(out, 1)
            os._exit(0)
    try:
        with held(path):
            pass
    finally:
        os.close(into)
        os.close(out)
        os.waitpid(child, 0)
    assert names(tmp_path) == []


def test_a_file_that_is_put_away_while_it_is_asked_for_is_not_taken_for_the_one_that_is_there(tmp_path, monkeypatch):
    path, real, left = tmp_path / "points", fcntl.flock, [1, 1]

    def flock(fd, how):
        if left:
            left.pop()
            path.unlink()
        real(fd, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    with held(path):
        assert path.exists()
        with pytest.raises(InputError, match="another run"), held(path):
            pass
    assert not path.exists()


def test_a_folder_that_nobody_may_write_into_is_told(tmp_path):
    told = r"points: cannot be written \(No such file or directory\)"
    with pytest.raises(InputError, match=told), held(tmp_path / "none" / "points"):
        pass


def test_points_that_somebody_takes_away_are_told(tmp_path):
    plan, done = planned(grid_of(GRID), tmp_path / "out.csv"), []

    def away(result):
        done.append(result)
        if len(done) == 2:
            plan.kept.unlink()

    with pytest.raises(InputError, match=r"4 points are gone that were kept, such as \w+; .*: run it again"):
        run(plan, Disturbed(), away)
    assert names(tmp_path) == []


@pytest.mark.parametrize("change", [lambda text: text[:200], lambda text: text.replace("\n", "\n\n")])
def test_a_file_that_changes_while_a_table_is_made_of_it_loses_no_row_in_silence(tmp_path, change):
    output, points = tmp_path / "out.csv", tmp_path / "out.csv.points"
    odcsim.sweep(GRID, output=output, executor=Disturbed())
    before, found = output.read_bytes(), lines([points])
    points.write_text(change(points.read_text()))
    with pytest.raises(InputError, match=r"out\.csv\.points: has changed while it was read; run it again"):
        write(output, results(found))
    points.unlink()
    with pytest.raises(InputError, match=r"out\.csv\.points: no such file; it was there: run it again"):
        write(output, results(found))
    assert output.read_bytes() == before
    assert names(tmp_path) == ["out.csv"]


@pytest.mark.parametrize("begun", ["", '{"format": "odc'])
def test_whoever_was_killed_as_soon_as_it_began_is_gone_on_from(whole, tmp_path, begun):
    (tmp_path / "out.csv.points").write_text(begun)
    odcsim.sweep(GRID, output=tmp_path / "out.csv", executor=Disturbed())
    assert (tmp_path / "out.csv").read_bytes() == whole
    assert [len(path.read_bytes().splitlines()) for path in all_beside(tmp_path / "out.csv")] == [5]


@pytest.fixture
def twice(tmp_path):
    """The same points, worked on twice."""
    for name in "ab":
        odcsim.sweep(GRID, output=tmp_path / f"{name}.csv", executor=Disturbed())
    return tmp_path / "a.csv.points", tmp_path / "b.csv.points", tmp_path / "out.csv"


def changed(path, change):
    head, first, *rest = path.read_text().splitlines()
    content = json.loads(first)
    change(content["rows"])
    path.write_text("\n".join([head, json.dumps(content), *rest, ""]))
    return content["point"]


def test_like_results_of_one_point_are_one(twice, whole):
    a, b, output = twice
    changed(b, lambda rows: rows[0].update(makespan_seconds=rows[0]["makespan_seconds"] * (1 + 1e-13)))
    write(output, results(lines([a, b, a])))
    assert output.read_bytes() == whole


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda rows: rows[0].update(makespan_seconds=3.5), r"makespan_seconds of on-demand \+ lb-mini is .* and 3.5;"),
        (lambda rows: rows[0].update(makespan_seconds=3.5, idle=0.5), "and 1 more differ;"),
        (lambda rows: rows[0].pop("idle"), r"idle of on-demand \+ lb-mini is .* and not there;"),
        (lambda rows: rows[0].update(refused="no"), "refused of .* is not there and no;"),
        (lambda rows: rows[0].update(memory_fits=not rows[0]["memory_fits"]), "memory_fits of .* is True and False;"),
        (lambda rows: rows.append(rows[0]), "1 and 2 rows;"),
    ],
)
def test_unlike_results_of_one_point_are_refused_by_name(twice, change, told):
    a, b, output = twice
    key = changed(b, change)
    refuses(lambda: lines([a, b]), f"{a} and {b}", key, told)
    refuses(lambda: lines([b, a]), f"{b} and {a}", key, ";")
    whole = a.rename(output.with_name("out.csv.points"))
    share = b.rename(output.with_name("out.csv.1-of-2.points"))
    refuses(lambda: odcsim.sweep(GRID, output=output), f"{share} and {whole}", key, ";")
    whole.write_text(whole.read_text() + share.read_text().split("\n", 1)[1])
    refuses(lambda: lines([whole]), f"{whole}, twice", key, told)
    assert not output.exists()


def refuses(run, where, key, told):
    with pytest.raises(InputError, match=told) as caught:
        run()
    assert str(caught.value).startswith(f"{where}: unlike results of point {key}: ")
    assert str(caught.value).endswith("take both away and run the sweep again")

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
from odcsim.decide.sweeps.store import lines, results
from odcsim.decide.sweeps.sweeping import planned, run
from odcsim.decide.sweeps.written import write
from odcsim.errors import InputError

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
def test_a_second_sweep_of_one_output_is_refused_and_the_first_ends_well(whole, tmp_path, number):
    output, grid = tmp_path / "out.csv", tmp_path / "grid.toml"
    grid.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in GRID.items()))
    codes = []
    second = lambda: codes.append(main(["sweep", str(grid), "-o", str(output), "--jobs", "1"]))  # noqa: E731
    odcsim.sweep(GRID, output=output, executor=Disturbed(number, second))
    assert codes == [2]
    assert output.read_bytes() == whole
    assert names(tmp_path) == ["grid.toml", "out.csv", "out.csv.points"]


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
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
    with pytest.raises(InputError):
        odcsim.sweep(GRID, output=tmp_path / "out.csv")
    holder.send_signal(number)
    holder.wait()
    odcsim.sweep(GRID, output=tmp_path / "out.csv", executor=Disturbed())
    assert (tmp_path / "out.csv").read_bytes() == whole
    assert names(tmp_path) == ["out.csv", "out.csv.points"]


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


UNLIKE = [
    lambda rows: rows[0].update(makespan_seconds=3.5),
    lambda rows: rows[0].pop("idle"),
    lambda rows: rows[0].update(refused="no"),
    lambda rows: rows[0].update(memory_fits=not rows[0]["memory_fits"]),
    lambda rows: rows.append(rows[0]),
]


@pytest.mark.parametrize("change", UNLIKE)
def test_like_results_of_one_point_are_one_and_unlike_ones_are_refused(twice, whole, change):
    a, b, output = twice
    changed(b, lambda rows: rows[0].update(makespan_seconds=rows[0]["makespan_seconds"] * (1 + 1e-13)))
    write(output, results(lines([a, b, a])))
    assert output.read_bytes() == whole
    output.unlink()
    changed(b, change)
    for some in ([a, b], [b, a]):
        with pytest.raises(InputError):
            lines(some)
    whole = a.rename(output.with_name("out.csv.points"))
    share = b.rename(output.with_name("out.csv.1-of-2.points"))
    with pytest.raises(InputError):
        odcsim.sweep(GRID, output=output)
    whole.write_text(whole.read_text() + share.read_text().split("\n", 1)[1])
    with pytest.raises(InputError):
        lines([whole])
    assert not output.exists()


def test_points_that_somebody_takes_away_or_changes_lose_no_row_in_silence(tmp_path):
    plan, done = planned(grid_of(GRID), tmp_path / "out.csv"), []

    def away(result):
        done.append(result)
        if len(done) == 2:
            plan.kept.unlink()

    with pytest.raises(InputError):
        run(plan, Disturbed(), away)
    assert names(tmp_path) == []
    output, points = tmp_path / "out.csv", tmp_path / "out.csv.points"
    odcsim.sweep(GRID, output=output, executor=Disturbed())
    before, text, found = output.read_bytes(), points.read_text(), lines([points])
    for change in (text[:200], text.replace("\n", "\n\n"), None):
        points.unlink() if change is None else points.write_text(change)
        with pytest.raises(InputError):
            write(output, results(found))
    assert output.read_bytes() == before

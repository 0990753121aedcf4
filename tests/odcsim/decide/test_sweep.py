"""However a sweep is run, its table is the same; that rows are those of `odcsim compare` is a law of all doors. Of two
processes and one file of points nobody's rows are lost, whoever comes, stays or is killed, and when."""

import csv
import errno
import fcntl
import io
import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import nullcontext
from random import random
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scripts import ROOT

import odcsim
from odcsim import InputError
from odcsim.cli import main
from odcsim.decide.grid import read_grid
from odcsim.decide.sweep import COLUMNS, Sweep, read

SMALL = {
    "trace": "uniform:min=20,max=900,samples=64", "model": "tiny", "gpu": "a100", "devices": [2, 4],
    "minibatch": [2, 3], "minibatches": 2, "sync": ["collective", "on-demand"], "balancer": ["lb-micro", "lb-mini"],
}  # fmt: skip
SHARED = settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
NONE_RUNS = 'trace = "uniform:min=2,max=9,samples=8"\nmodel = "tiny"\ngpu = "a100"\ndevices = [8, 16]\nminibatch = 2\n'
OWN = 'trace = "theirs.csv"\nmodel = "tiny"\ngpu = "a100"\ndevices = 2\nminibatch = 2\nminibatches = 2\n'
HOLDS = """
import pathlib, sys, time
from odcsim.support.outputs import lock
with lock(pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture(scope="module")
def grid(tmp_path_factory):
    """A grid of five points, of which one cannot run."""
    path = tmp_path_factory.mktemp("grid") / "grid.toml"
    shared = "".join(f"{key} = {json.dumps(value)}\n" for key, value in SMALL.items())
    path.write_text(shared + "[[case]]\n[[case]]\ndevices = 3\nminibatch = 64\n")
    return path


def swept(grid, output, *words):
    return main(["sweep", str(grid), "-o", str(output), "--jobs", "1", *words])


@pytest.fixture(scope="module")
def whole(grid, tmp_path_factory):
    """The table of a run that nobody disturbed, and what was kept."""
    output = tmp_path_factory.mktemp("whole") / "out.csv"
    assert swept(grid, output) == 0
    return output.read_bytes(), output.with_name("out.csv.points").read_bytes()


def table(text: str) -> list[dict]:
    return list(csv.DictReader(io.StringIO(text)))


@SHARED
@given(data=st.data())
def test_a_sweep_that_was_killed_anywhere_goes_on_to_the_same_bytes(grid, whole, tmp_path_factory, data):
    expected, kept = whole
    head = kept.index(b"\n") + 1
    output = tmp_path_factory.mktemp("killed") / "out.csv"
    cut = data.draw(st.sampled_from([0, 15, head]) | st.integers(head, len(kept)))
    output.with_name("out.csv.points").write_bytes(kept[:cut])
    assert swept(grid, output) == 0
    assert output.read_bytes() == expected


@pytest.mark.parametrize("change", [
    lambda rows: rows[0].update(nothing=1), lambda rows: rows[0].update(idle=True),
    lambda rows: rows[0].update(devices=2.5), lambda rows: rows[1].pop("point"), lambda rows: rows.clear(),
    lambda rows: rows[0].update(idle=math.nan), lambda rows: rows[0].update(speedup=math.inf),
    lambda rows: rows[0].update(devices=2**63),
])  # fmt: skip
def test_a_line_that_holds_no_rows_is_as_good_as_not_there(grid, whole, tmp_path, change):
    output = tmp_path / "out.csv"
    output.with_name("out.csv.points").write_bytes(whole[1])
    changed(output.with_name("out.csv.points"), change)
    odcsim.sweep(grid, output=output, executor=Disturbed())
    assert output.read_bytes() == whole[0]


def test_any_executor_and_every_form_give_the_same_rows(grid, whole, tmp_path):
    alone = odcsim.sweep(grid, output=tmp_path / "out.jsonl")
    with ThreadPoolExecutor(2) as executor:
        assert odcsim.sweep(grid, executor=executor) == alone
    texts = [{n: "" if v is None else str(v) for n, v in row.items()} for row in alone.records()]
    assert texts == table(whole[0].decode())
    shown = alone._repr_html_()
    assert shown.count("<tr>") == 1 + len(alone)
    assert [f'<th scope="col">{name}</th>' in shown for name in ("devices", "refused", "model")] == [True, True, False]
    assert [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()] == alone
    parquet = pytest.importorskip("pyarrow.parquet")
    assert odcsim.sweep(grid, output=tmp_path / "out.parquet") == alone
    assert sum("refused" in row for row in alone) == 1
    read = parquet.read_table(tmp_path / "out.parquet").to_pylist()
    assert list(read[0]) == list(COLUMNS)
    assert [{name: value for name, value in row.items() if value is not None} for row in read] == alone


def test_epochs_tell_the_whole_run(tmp_path):
    one = {"devices": 2, "minibatch": 2, "epochs": 3, "balancer": "lb-mini", "price": 2, "sync": "on-demand"}
    [row] = odcsim.sweep(SMALL | one)
    assert odcsim.sweep(SMALL | one, output=tmp_path / "out.csv") == [row]
    assert row["run.steps"] == 64 * 3 / 4
    assert row["run.seconds"] == pytest.approx(row["makespan_seconds"] * row["run.steps"] / 2)
    assert row["run.dollars"] == pytest.approx(row["run.seconds"] * 2 / 3600 * 2)


@pytest.mark.parametrize("shares", [["3/3", "1/3", "2/3"], ["2/2"], []])
def test_what_shares_have_done_is_not_done_again(grid, whole, tmp_path, monkeypatch, shares):
    output = tmp_path / "out.csv"
    for share in shares:
        assert swept(grid, output, "--shard", share) == 0
    assert not output.exists()
    assert len([*tmp_path.iterdir()]) == len(shares)
    if not shares:
        output.with_name("out.csv.points").write_bytes(whole[1])
    if len(shares) != 1:  # which leaves something to do
        monkeypatch.setattr("odcsim.decide.sweep.work", lambda _: 1 / 0)
    assert swept(grid, output) == 0
    assert output.read_bytes() == whole[0]


def test_a_point_that_cannot_run_is_kept_though_no_other_is_left(grid, whole, tmp_path):
    output, points = tmp_path / "out.csv", tmp_path / "out.csv.points"
    points.write_bytes(whole[1][: whole[1].rindex(b"\n", 0, -1) + 1])
    assert swept(grid, output) == 0
    assert (output.read_bytes(), points.read_bytes()) == whole


def test_points_of_another_release_are_worked_on_again(grid, whole, tmp_path, monkeypatch):
    output, points = tmp_path / "out.csv", tmp_path / "out.csv.points"
    points.write_bytes(whole[1])
    monkeypatch.setattr("odcsim.decide.grid.release", lambda: "another")
    assert swept(grid, output) == 0
    assert points.read_bytes().startswith(whole[1])
    now, then = table(output.read_text()), table(whole[0].decode())
    assert not {row.pop("point") for row in now} & {row.pop("point") for row in then}
    assert now == then


@pytest.mark.parametrize("words", [
    "none-runs.toml -o out.csv", "own.toml -o theirs.csv --force", "own.toml -o notes.csv", "own.toml -o shared.csv",
    "own.toml -o out.xlsx",
    "own.toml -o out.csv --shard 3/2", "own.toml -o out.csv --shard 0/2", "own.toml -o out.csv --jobs 0",
])  # fmt: skip
def test_a_mistake_writes_nothing_and_nothing_of_the_users_over(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "none-runs.toml").write_text(NONE_RUNS)
    (tmp_path / "own.toml").write_text(OWN)
    (tmp_path / "theirs.csv").write_text("length\n20\n30\n40\n50\n")
    for name in ("notes.csv.points", "shared.csv.1-of-2.points"):
        (tmp_path / name).write_text("my own notes\n")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    try:
        code = main(["sweep", *words.split()])
    except SystemExit as stopped:
        code = stopped.code
    assert code == 2
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("name", ["none/out.csv", "out.xlsx", "", "folder.csv"])
def test_python_refuses_what_cannot_be_a_table_before_it_works(name, tmp_path, monkeypatch):
    (tmp_path / "folder.csv").mkdir()
    monkeypatch.setattr("odcsim.decide.sweep.work", lambda _: 1 / 0)
    with pytest.raises(InputError):
        odcsim.sweep(SMALL, output=tmp_path / name)


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


@pytest.fixture
def without_locks(monkeypatch):
    def none(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", none)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_failure_leaves_an_executor_nothing_to_do(grid):
    futures = []

    class Failing(Executor):
        def submit(self, *_):
            futures.append(Future())
            if len(futures) == 1:
                futures[0].set_exception(ZeroDivisionError())
            return futures[-1]

    with pytest.raises(ZeroDivisionError):
        odcsim.sweep(grid, executor=Failing())
    assert [future.cancelled() for future in futures] == [False] + [True] * 4


@pytest.mark.parametrize("number", [0, 2])
def test_a_second_sweep_of_one_output_is_refused_and_the_first_ends_well(grid, whole, tmp_path, number):
    output, codes = tmp_path / "out.csv", []
    odcsim.sweep(grid, output=output, executor=Disturbed(number, lambda: codes.append(swept(grid, output))))
    assert codes == [2]
    assert output.read_bytes() == whole[0]
    assert names(tmp_path) == ["out.csv", "out.csv.points"]


@SHARED
@given(numbers=st.lists(st.integers(0, 4), min_size=1, max_size=3))
@pytest.mark.usefixtures("without_locks")
def test_where_nothing_can_be_locked_both_have_all_rows(grid, whole, tmp_path_factory, numbers):
    """One begins within the other, and is done before it."""
    output = tmp_path_factory.mktemp("both") / "out.csv"
    tables = []

    def begin(left):
        executor = Disturbed(left[0], lambda: begin(left[1:])) if left else Disturbed()
        odcsim.sweep(grid, output=output, executor=executor)
        tables.append(output.read_bytes())

    begin(numbers)
    assert tables == [whole[0]] * (len(numbers) + 1)


@pytest.mark.usefixtures("without_locks")
def test_where_nothing_can_be_locked_those_who_begin_at_once_lose_no_rows(grid, whole, tmp_path, monkeypatch):
    """Nor would a file that one of them puts in the place of the others', which takes its time here."""
    output, problems, together = tmp_path / "out.csv", [], threading.Barrier(4, timeout=60)
    monkeypatch.setattr("odcsim.decide.sweep.lock", lambda _: nullcontext(together.wait()))
    monkeypatch.setattr(
        "odcsim.support.outputs.secrets.token_hex", lambda _: time.sleep(random() / 10) or f"{random()}"
    )

    def one():
        try:
            odcsim.sweep(grid, output=output, executor=Disturbed())
        except Exception as error:
            problems.append(error)

    with ThreadPoolExecutor(4) as four:
        for _ in range(4):
            four.submit(one)
    assert problems == []
    assert output.read_bytes() == whole[0]


@pytest.fixture
def holder(tmp_path):
    """A process that holds a file, until it is killed."""
    command = [sys.executable, "-c", HOLDS, str(tmp_path / "out.csv.points")]
    process = subprocess.Popen(command, env=os.environ | {"PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"held\n"
    yield process
    process.kill()
    process.communicate()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_lock_goes_with_its_holder_however_that_one_ends(holder, grid, whole, tmp_path, number):
    with pytest.raises(InputError):
        odcsim.sweep(grid, output=tmp_path / "out.csv")
    holder.send_signal(number)
    holder.wait()
    odcsim.sweep(grid, output=tmp_path / "out.csv", executor=Disturbed())
    assert (tmp_path / "out.csv").read_bytes() == whole[0]
    assert names(tmp_path) == ["out.csv", "out.csv.points"]


def changed(path, change):
    head, first, *rest = path.read_text().splitlines()
    content = json.loads(first)
    change(content["rows"])
    path.write_text("\n".join([head, json.dumps(content), *rest, ""]))


@pytest.mark.parametrize("change", [
    lambda rows: rows[0].update(makespan_seconds=3.5),
    lambda rows: rows[0].pop("idle"),
    lambda rows: rows[0].update(refused="no"),
    lambda rows: rows[0].update(memory_fits=not rows[0]["memory_fits"]),
    lambda rows: rows.append(rows[0]),
])  # fmt: skip
def test_like_results_of_one_point_are_one_and_unlike_ones_are_refused(grid, whole, tmp_path, change):
    own, share, output = (tmp_path / f"out.csv{ending}" for ending in (".points", ".1-of-2.points", ""))
    own.write_bytes(whole[1] + whole[1].split(b"\n", 1)[1])
    share.write_bytes(whole[1])
    changed(share, lambda rows: rows[0].update(makespan_seconds=rows[0]["makespan_seconds"] * (1 + 1e-13)))
    odcsim.sweep(grid, output=output)
    table = output.read_bytes().splitlines()
    assert table[2:] == whole[0].splitlines()[2:]
    output.unlink()
    changed(share, change)
    for _ in range(2):
        with pytest.raises(InputError):
            odcsim.sweep(grid, output=output)
        first, second = own.read_bytes(), share.read_bytes()
        own.write_bytes(second)
        share.write_bytes(first)
    share.unlink()
    own.write_bytes(first + second.split(b"\n", 1)[1])
    with pytest.raises(InputError):
        odcsim.sweep(grid, output=output)
    assert not output.exists()


def test_points_that_somebody_takes_away_or_changes_lose_no_row_in_silence(grid, whole, tmp_path):
    output, points, done = tmp_path / "out.csv", tmp_path / "out.csv.points", []
    sweep = Sweep(read_grid(grid), output)

    def away(rows):
        done.append(rows)
        if len(done) == 2:
            points.unlink()

    sweep.run(sweep.rest(), Disturbed(), away)
    with pytest.raises(InputError):
        sweep.write()
    assert names(tmp_path) == ["out.csv.points"]
    sweep.run(sweep.rest(), Disturbed())
    lines, text = sweep.write(), points.read_text()
    assert output.read_bytes() == whole[0]
    for change in (text[:200], text.replace("\n", "\n\n"), None):
        points.unlink() if change is None else points.write_text(change)
        with pytest.raises(InputError):
            list(read(lines))

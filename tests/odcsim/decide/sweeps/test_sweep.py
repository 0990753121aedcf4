"""However a sweep is run, its table is the same, and its rows are those of `odcsim compare`."""

import csv
import io
import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import odcsim
from odcsim.cli import main
from odcsim.decide.sweeps.columns import KINDS
from odcsim.decide.sweeps.store import all_beside

SMALL = {
    "trace": "uniform:min=20,max=900,samples=64",
    "model": "tiny",
    "gpu": "a100",
    "devices": [2, 4],
    "minibatch": [2, 3],
    "minibatches": 2,
    "sync": ["collective", "on-demand"],
    "balancer": ["lb-micro", "lb-mini"],
}
COMPARED = ["compare", SMALL["trace"], "--model", "tiny", "--gpu", "a100", "--minibatches", "2", "--csv"]


@pytest.fixture(scope="module")
def grid(tmp_path_factory):
    """A grid of five points, of which one cannot run."""
    path = tmp_path_factory.mktemp("grid") / "grid.toml"
    shared = "".join(f"{key} = {json.dumps(value)}\n" for key, value in SMALL.items())
    path.write_text(shared + "[[case]]\n[[case]]\ndevices = 3\nminibatch = 64\n")
    return path


@pytest.fixture(scope="module")
def whole(grid, tmp_path_factory):
    """The table of a run that nobody disturbed, and what was kept."""
    output = tmp_path_factory.mktemp("whole") / "out.csv"
    assert main(["sweep", str(grid), "-o", str(output), "--jobs", "1"]) == 0
    [kept] = all_beside(output)
    return output.read_bytes(), kept.read_bytes()


def table(text: str) -> list[dict]:
    return list(csv.DictReader(io.StringIO(text)))


def test_the_rows_are_those_of_compare(whole, capsys):
    rows = table(whole[0].decode())
    assert list(rows[0]) == list(KINDS)
    for devices in ("2", "4"):
        assert main([*COMPARED, "--devices", devices, "--minibatch", "3"]) == 0
        compared = {(r["balancer"], r["sync"]): r for r in table(capsys.readouterr().out)}
        ours = [r for r in rows if (r["devices"], r["minibatch"]) == (devices, "3") and not r["refused"]]
        assert [(r["balancer"], r["sync"]) for r in ours] == [
            ("lb-micro", "collective"),
            ("lb-micro", "on-demand"),
            ("lb-mini", "on-demand"),
        ]
        for row in ours:
            theirs = compared[row["balancer"], row["sync"]]
            assert {name: row[name] for name in theirs} == theirs


def test_a_point_that_cannot_run_says_so_in_its_row(whole):
    [refused] = [row for row in table(whole[0].decode()) if row["refused"]]
    assert refused["devices"] == "3"
    assert refused["makespan_seconds"] == ""


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_sweep_that_was_killed_anywhere_goes_on_to_the_same_bytes(grid, whole, tmp_path_factory, data):
    expected, kept = whole
    head = kept.index(b"\n") + 1
    output = tmp_path_factory.mktemp("killed") / "out.csv"
    cut = data.draw(st.sampled_from([0, 15, head]) | st.integers(head, len(kept)))
    output.with_name("out.csv.points").write_bytes(kept[:cut])
    assert main(["sweep", str(grid), "-o", str(output), "--jobs", "1"]) == 0
    assert output.read_bytes() == expected


def test_any_executor_gives_the_same_rows(grid, whole):
    alone = odcsim.sweep(grid)
    with ThreadPoolExecutor(2) as executor:
        assert odcsim.sweep(grid, executor=executor) == alone
    texts = [{n: "" if v is None else str(v) for n, v in row.items()} for row in alone.records()]
    assert texts == table(whole[0].decode())


def test_epochs_tell_the_whole_run():
    [row] = odcsim.sweep(
        SMALL | {"devices": 2, "minibatch": 2, "epochs": 3, "balancer": "lb-mini", "price": 2, "sync": "on-demand"}
    )
    assert row["run.steps"] == 64 * 3 / 4
    assert row["run.seconds"] == pytest.approx(row["makespan_seconds"] * row["run.steps"] / 2)
    assert row["run.dollars"] == pytest.approx(row["run.seconds"] * 2 / 3600 * 2)


def test_every_form_has_the_same_rows(grid, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = odcsim.sweep(grid, output=tmp_path / "out.parquet")
    assert odcsim.sweep(grid, output=tmp_path / "out.jsonl") == rows
    assert [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()] == rows
    read = parquet.read_table(tmp_path / "out.parquet").to_pylist()
    assert list(read[0]) == list(KINDS)
    assert [{name: value for name, value in row.items() if value is not None} for row in read] == rows


@pytest.mark.parametrize("shares", [["3/3", "1/3", "2/3"], ["2/2"], []])
def test_what_shares_have_done_is_not_done_again(grid, whole, tmp_path, monkeypatch, shares):
    output = tmp_path / "out.csv"
    for share in shares:
        assert main(["sweep", str(grid), "-o", str(output), "--shard", share, "--jobs", "1"]) == 0
    assert not output.exists()
    assert len(all_beside(output)) == len(shares)
    if not shares:
        output.with_name("out.csv.points").write_bytes(whole[1])
    if len(shares) != 1:  # which leaves something to do
        monkeypatch.setattr("odcsim.decide.sweeps.workers.work", lambda _: 1 / 0)
    assert main(["sweep", str(grid), "-o", str(output), "--jobs", "1"]) == 0
    assert output.read_bytes() == whole[0]


NONE_RUNS = 'trace = "uniform:min=2,max=9,samples=8"\nmodel = "tiny"\ngpu = "a100"\ndevices = [8, 16]\nminibatch = 2\n'
OWN = 'trace = "theirs.csv"\nmodel = "tiny"\ngpu = "a100"\ndevices = 2\nminibatch = 2\nminibatches = 2\n'


@pytest.mark.parametrize(
    "words",
    [
        "none-runs.toml -o out.csv",
        "own.toml -o theirs.csv --force",
        "own.toml -o notes.csv",
        "own.toml -o out.csv --shard 3/2",
        "own.toml -o out.csv --shard 0/2",
        "own.toml -o out.csv --jobs 0",
        "own.toml -o out.xlsx",
    ],
)
def test_a_mistake_writes_nothing_and_nothing_of_the_users_over(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "none-runs.toml").write_text(NONE_RUNS)
    (tmp_path / "own.toml").write_text(OWN)
    (tmp_path / "theirs.csv").write_text("length\n20\n30\n40\n50\n")
    (tmp_path / "notes.csv.points").write_text("my own notes\n")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    try:
        code = main(["sweep", *words.split()])
    except SystemExit as stopped:
        code = stopped.code
    assert code == 2
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before

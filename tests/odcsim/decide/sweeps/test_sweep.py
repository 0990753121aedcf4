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
    assert refused["refused"].startswith("one minibatch needs 192 samples")
    assert refused["makespan_seconds"] == ""


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_a_sweep_that_was_killed_anywhere_goes_on_to_the_same_bytes(grid, whole, tmp_path_factory, data):
    expected, kept = whole
    head = kept.index(b"\n") + 1
    output = tmp_path_factory.mktemp("killed") / "out.csv"
    cut = data.draw(st.integers(head, len(kept)))
    output.with_name("out.csv.points").write_bytes(kept[:cut])
    assert main(["sweep", str(grid), "-o", str(output), "--jobs", "1"]) == 0
    assert output.read_bytes() == expected


def test_what_is_done_is_not_done_again(grid, whole, tmp_path, monkeypatch):
    (tmp_path / "out.csv.points").write_bytes(whole[1])
    monkeypatch.setattr("odcsim.decide.sweeps.workers.work", lambda _: 1 / 0)
    assert main(["sweep", str(grid), "-o", str(tmp_path / "out.csv"), "--jobs", "1"]) == 0
    assert (tmp_path / "out.csv").read_bytes() == whole[0]


def test_shares_that_are_put_together_are_the_whole(grid, whole, tmp_path, capsys, monkeypatch):
    output = tmp_path / "out.csv"
    for number in (3, 1, 2):
        assert main(["sweep", str(grid), "-o", str(output), "--shard", f"{number}/3", "--jobs", "1"]) == 0
        assert f"share {number} of 3: " in capsys.readouterr().out
    assert not output.exists()
    assert len(all_beside(output)) == 3
    monkeypatch.setattr("odcsim.decide.sweeps.workers.work", lambda _: 1 / 0)
    assert main(["sweep", str(grid), "-o", str(output), "--jobs", "1"]) == 0
    assert output.read_bytes() == whole[0]


def test_the_sweep_itself_does_what_shares_have_left(grid, whole, tmp_path):
    output = tmp_path / "out.csv"
    assert main(["sweep", str(grid), "-o", str(output), "--shard", "2/2", "--jobs", "1"]) == 0
    assert main(["sweep", str(grid), "-o", str(output), "--jobs", "1"]) == 0
    assert output.read_bytes() == whole[0]


def test_any_executor_gives_the_same_rows(grid, whole):
    alone = odcsim.sweep(grid)
    with ThreadPoolExecutor(2) as executor:
        assert odcsim.sweep(grid, executor=executor) == alone
    assert [row["point"] for row in alone] == [row["point"] for row in table(whole[0].decode())]
    assert [str(row.get("idle", "")) for row in alone] == [row["idle"] for row in table(whole[0].decode())]


def test_from_python_a_table_is_written_and_gone_on_with_too(grid, whole, tmp_path):
    rows = odcsim.sweep(grid, output=tmp_path / "out.csv")
    assert rows == odcsim.sweep(grid)
    assert (tmp_path / "out.csv").read_bytes() == whole[0]


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])
def test_every_form_has_the_same_rows(grid, tmp_path, suffix):
    output = tmp_path / f"out{suffix}"
    rows = odcsim.sweep(grid, output=output)
    if suffix == ".parquet":
        parquet = pytest.importorskip("pyarrow.parquet")
        read = parquet.read_table(output).to_pylist()
        assert list(read[0]) == list(KINDS)
        assert [{name: value for name, value in row.items() if value is not None} for row in read] == rows
    else:
        assert [json.loads(line) for line in output.read_text().splitlines()] == rows


def test_epochs_tell_the_whole_run():
    [row] = odcsim.sweep(
        SMALL | {"devices": 2, "minibatch": 2, "epochs": 3, "balancer": "lb-mini", "price": 2, "sync": "on-demand"}
    )
    assert row["run.steps"] == 64 * 3 / 4
    assert row["run.seconds"] == pytest.approx(row["makespan_seconds"] * row["run.steps"] / 2)
    assert row["run.dollars"] == pytest.approx(row["run.seconds"] * 2 / 3600 * 2)


def test_where_nothing_can_run_nothing_is_written(tmp_path, capsys):
    (tmp_path / "grid.toml").write_text(
        'trace = "uniform:min=2,max=9,samples=8"\nmodel = "tiny"\ngpu = "a100"\ndevices = [8, 16]\nminibatch = 2\n'
    )
    assert main(["sweep", str(tmp_path / "grid.toml"), "-o", str(tmp_path / "out.csv"), "--jobs", "1"]) == 2
    assert "no point can run, such as: one minibatch needs 16 samples" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["grid.toml"]


def test_nothing_of_the_users_is_written_over(grid, tmp_path, capsys):
    theirs = tmp_path / "theirs.csv"
    theirs.write_text("length\n20\n30\n40\n50\n")
    text = 'trace = "theirs.csv"\nmodel = "tiny"\ngpu = "a100"\ndevices = 2\nminibatch = 2\nminibatches = 2\n'
    (tmp_path / "own.toml").write_text(text)
    assert main(["sweep", str(tmp_path / "own.toml"), "-o", str(theirs), "--force"]) == 2
    assert "is what this command reads" in capsys.readouterr().err
    (tmp_path / "out.csv.points").write_text("my own notes\n")
    assert main(["sweep", str(grid), "-o", str(tmp_path / "out.csv")]) == 2
    assert "holds no points of a sweep; move it, or name another" in capsys.readouterr().err
    assert (tmp_path / "out.csv.points").read_text() == "my own notes\n"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--shard", "3/2"], "'3/2' is not a part of a sweep, such as 2/8: the second of eight"),
        (["--shard", "0/2"], "'0/2' is not a part of a sweep"),
        (["--jobs", "0"], "'0' is not a whole number from 1"),
        (["-o", "out.xlsx"], "is no name for a sweep's table; name it FILE.csv, FILE.jsonl, FILE.parquet"),
    ],
)
def test_a_mistake_on_the_command_line_is_told(grid, tmp_path, words, told, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    try:
        code = main(["sweep", str(grid), "-o", "out.csv", *words])
    except SystemExit as stopped:
        code = stopped.code
    assert code == 2
    assert told in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []

"""The rows of a sweep in Python: those of the command's table, in one line and as a small table."""

import csv
import io
import json

import pytest

import odcsim
from odcsim.cli import main
from odcsim.decide.sweeps.columns import KINDS

GRID = {
    "trace": "lognormal:median=800,sigma=0.8,max=4000",
    "model": "qwen3-0.6b",
    "gpu": "a100",
    "devices": [2, 4],
    "minibatch": 4,
    "minibatches": 3,
    "max_tokens": [4000, 100],
    "balancer": ["lb-micro", "lb-mini"],
}
TOML = "\n".join(f"{name} = {json.dumps(value)}" for name, value in GRID.items())


@pytest.fixture(scope="module")
def rows():
    return odcsim.sweep(GRID)


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_python_says_what_the_command_writes(rows, tmp_path, suffix):
    (tmp_path / "grid.toml").write_text(TOML)
    table = tmp_path / f"t.{suffix}"
    assert main(["sweep", str(tmp_path / "grid.toml"), "-o", str(table), "--jobs", "1"]) == 0
    if suffix == "jsonl":
        assert [json.loads(line) for line in table.read_text().splitlines()] == json.loads(json.dumps(rows))
    else:
        texts = [{n: "" if v is None else str(v) for n, v in row.items()} for row in rows.records()]
        assert list(csv.DictReader(io.StringIO(table.read_text()))) == texts
    assert odcsim.sweep(tmp_path / "grid.toml") == rows
    again = odcsim.sweep(GRID, output=tmp_path / f"again.{suffix}")
    assert again == rows
    assert (tmp_path / f"again.{suffix}").read_bytes() == table.read_bytes()


def test_nothing_is_written_where_no_output_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    odcsim.sweep(GRID | {"devices": 2, "max_tokens": 4000})
    assert list(tmp_path.iterdir()) == []


def test_its_records_have_the_columns_of_every_table(rows):
    assert all(list(one) == list(KINDS) for one in rows.records())
    assert [{n: v for n, v in one.items() if v is not None} for one in rows.records()] == rows


def test_it_is_shown_in_short(rows):
    assert repr(rows).startswith(f"<SweepRows: 4 points, {len(rows)} rows: 2 of them cannot run, such as: lognormal")
    assert "\n" not in repr(rows)
    shown = rows._repr_html_()
    assert shown.count("<tr>") == 1 + len(rows)
    assert all(f'<th scope="col">{name}</th>' in shown for name in ("devices", "max_tokens", "speedup", "refused"))
    assert '<th scope="col">model</th>' not in shown


@pytest.mark.parametrize(
    ("grid", "line"),
    [
        (GRID | {"devces": 2}, "grid: unknown key 'devces'; did you mean 'devices'?"),
        (GRID | {"devices": 0}, "grid: devices is 0"),
        (GRID | {"devices": []}, "grid: devices has no value; give one, or leave it out"),
        (GRID | {"recompute": "ful"}, "grid: recompute"),
        ({"trace": "longalign"}, "grid: no model; add it"),
        (GRID | {"minibatch": 4, "global_batch": 8}, "grid: both minibatch and global_batch"),
        ("nowhere.toml", "nowhere.toml: no such file"),
    ],
)
def test_a_wrong_grid_is_refused_in_one_line(grid, line):
    with pytest.raises(odcsim.InputError) as refused:
        odcsim.sweep(grid)
    assert str(refused.value).startswith(line)

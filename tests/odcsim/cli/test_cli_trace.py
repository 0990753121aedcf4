"""`odcsim trace`, as typed."""

import io
import json
import sys

import pytest

from odcsim.cli import Parser
from odcsim.cli import trace as command
from odcsim.errors import InputError
from odcsim.reading import load


def run(*argv):
    parser = Parser(prog="odcsim")
    command.add(parser.add_subparsers(parser_class=Parser))
    args = parser.parse_args(["trace", *map(str, argv)])
    return args.run(args)


@pytest.fixture
def rl(tmp_path):
    path = tmp_path / "rl.csv"
    path.write_text("step,prompt_id,prompt,response\n1,a,10,30\n1,a,10,90\n2,b,20,40\n2,b,20,180\n")
    return path


def test_info_shows_the_figures(rl, capsys):
    run("info", rl, "--cutoff", 100)
    shown = capsys.readouterr().out
    for line in ("samples     4", "tokens      400", "mean        100.0", "p50         80", "longest     200",
                 "loss share  85.0% of tokens", "RL steps    2", "RL groups   2  (2 samples each)",
                 "over 100 tokens: 1 samples (25.00%)", "cut to it, they lose 100 tokens (25.00% of all)",
                 "dropped, 200 tokens (50.00% of all)"):  # fmt: skip
        assert line in shown


def test_info_as_json(rl, capsys):
    run("info", rl, "--json", "--cutoff", 100, "--column", "response")
    found = json.loads(capsys.readouterr().out)
    assert {"schema", "name", "origin", "count", "tokens", "mean", "cv", "min", "max"} <= set(found)
    assert (found["count"], found["max"], found["p50"], found["p99.9"]) == (4, 180, 65, pytest.approx(179.73))
    assert found["cutoff"] == {"at": 100, "samples": 1, "tokens_if_cut": 80, "tokens_if_dropped": 180}


@pytest.mark.parametrize(("encoding", "bar", "other"), [("utf-8", "█", "#"), ("ascii", "#", "█")])
def test_bars_suit_the_terminal(monkeypatch, encoding, bar, other):
    out = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    monkeypatch.setattr(sys, "stdout", out)
    run("info", "longalign")
    out.flush()
    shown = out.buffer.getvalue().decode(encoding)
    assert bar in shown
    assert other not in shown


def test_a_rare_length_still_shows(tmp_path, capsys):
    path = tmp_path / "a.csv"
    path.write_text("length,count\n10,1000000\n1000,1\n")
    run("info", path)
    assert "▏" in capsys.readouterr().out


def test_one_length_is_one_bar(capsys):
    run("info", "fixed:length=7")
    assert "7 - 7" in capsys.readouterr().out


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "npy", "parquet"])
def test_make_writes_what_load_reads(tmp_path, suffix):
    pytest.importorskip("pyarrow")
    path, again = tmp_path / f"a.{suffix}", tmp_path / f"b.{suffix}"
    run("make", "swe-smith", "--samples", 50, "--seed", 3, "-o", path)
    run("make", "swe-smith", "--samples", 50, "--seed", 3, "-o", again)
    assert load(path).size == 50
    assert load(path).lengths.tolist() == load(again).lengths.tolist()
    assert sorted(file.name for file in tmp_path.iterdir()) == [path.name, again.name]


def test_make_of_a_spec_follows_the_flags(tmp_path):
    run("make", "uniform:min=1,max=99,samples=5,seed=9", "--samples", 30, "-o", tmp_path / "a.npy")
    assert load(tmp_path / "a.npy").lengths.tolist() == load("uniform:min=1,max=99,samples=30").lengths.tolist()


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("info", "longalgn"), "did you mean 'longalign'"),
        (("make", "longalign", "--seed", -1, "-o", "a.csv"), "seed=-1 is out of range"),
        (("make", "longalign", "-o", "a.xls"), r"cannot tell the format from '\.xls'; known: \.csv"),
        (("make", "longalign", "-o", "no/such/folder/a.csv"), "its folder does not exist"),
    ],
)
def test_mistakes(tmp_path, monkeypatch, argv, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=message):
        run(*argv)
    assert not list(tmp_path.iterdir())


def test_a_failed_write_leaves_the_old_file_alone(tmp_path, monkeypatch):
    path = tmp_path / "a.parquet"
    path.write_bytes(b"old")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputError, match="pip install"):
        run("make", "longalign", "-o", path)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_list_names_them_all(capsys):
    run("list")
    shown = capsys.readouterr().out.splitlines()
    assert any(line.startswith("longalign     shape, not data    10,000   16,500") for line in shown)
    assert any(line.startswith("mooncake      data") for line in shown)


def test_trace_alone_asks_for_an_action(capsys):
    with pytest.raises(SystemExit):
        run()
    assert "ACTION" in capsys.readouterr().err


def test_make_and_info_say_what_a_limit_costs(rl, tmp_path, capsys):
    run("info", rl, "--truncate", 100)
    assert "origin      file rl.csv; 1 samples over 100 tokens shortened, 25.00%; 100 tokens lost, 25.00%" in (
        capsys.readouterr().out
    )
    run("make", "uniform:min=1,max=2", "--samples", "1k", "--drop-over", 1, "-o", tmp_path / "a.npy")
    kept = load(tmp_path / "a.npy")
    assert kept.longest == 1
    assert f"wrote {kept.size:,} lengths" in capsys.readouterr().out
    assert 0 < kept.size < 1000


def test_info_tells_whether_lengths_are_still_those_of_another_trace(tmp_path, capsys):
    for name, seed in (("then", 1), ("now", 2)):
        run("make", "longalign", "--samples", 500, "--seed", seed, "-o", tmp_path / f"{name}.csv")
    capsys.readouterr()
    run("info", tmp_path / "now.csv", "--against", tmp_path / "then.csv")
    shown = capsys.readouterr().out
    assert "against then.csv (500 samples)" in shown
    assert shown.endswith("from those of then.csv, and what was found with it stands.\n")
    run("info", tmp_path / "now.csv", "--against", "sharegpt", "--truncate", "8k")
    shown = capsys.readouterr().out
    assert "Further apart than chance makes them: mean, p50, p90, p99, shares. What was found with sharegpt" in shown
    run("info", tmp_path / "now.csv", "--against", tmp_path / "then.csv", "--json")
    against = json.loads(capsys.readouterr().out)["against"]
    assert (against["name"], against["count"], against["apart"]) == ("then.csv", 500, [])
    assert set(against["figures"]) == {"mean", "p50", "p90", "p99"}

"""`odcsim trace`, as typed."""

import io
import json
import sys

import pytest
from texts import UNMARKED, tokenizer_in

from odcsim.cli import Parser
from odcsim.cli import trace as command
from odcsim.errors import InputError
from odcsim.reading import load
from odcsim.trace import COLUMNS


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


MADE_OF = {
    "lengths": ("a.csv", "my_tokens\n5\n900\n70\n", ["--column", "my_tokens"]),
    "rollouts": ("a.csv", "prompt_id,step,prompt,response\n7,1,5,6\n7,1,5,9\n3,2,8,1\n", []),
    "counts": ("a.csv", "length,count,loss\n5,3,2\n9,100000000000,9\n", []),
    "limited": ("a.csv", "length\n5\n900\n70\n", ["--truncate", "80"]),
    "bad": ("a.csv", "length\n5\n\n70\n", ["--skip-bad"]),
    "texts": ("a.jsonl", '{"messages": [{"role": "user", "content": "Who waits?"}]}\n' * 3, ["--tokenizer", "tok"]),
    "pair": ("a.jsonl", '{"prompt": "Who waits?", "completion": "All."}\n' * 3, ["--tokenizer", "tok"]),
}


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "npy", "parquet"])
@pytest.mark.parametrize("form", MADE_OF)
def test_make_of_a_file_writes_all_that_is_known_of_its_lengths(tmp_path, monkeypatch, capsys, suffix, form):
    """So that they can be sent without the data: what is read of one is what is read of the other."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    tokenizer_in(tmp_path / "tok", UNMARKED)
    name, content, flags = MADE_OF[form]
    (tmp_path / name).write_text(content)
    run("make", name, *flags, "-o", f"sent.{suffix}")
    shown = capsys.readouterr()
    read = {flag[2:].replace("-", "_"): value for flag, value in zip(flags[::2], [*flags[1::2], True], strict=False)}
    trace, sent = load(name, **read | ({"truncate": 80} if form == "limited" else {})), load(f"sent.{suffix}")
    for column in COLUMNS:
        one, other = getattr(trace, column), getattr(sent, column)
        assert (one is None and other is None) or one.tolist() == other.tolist(), column
    assert shown.out.startswith(f"wrote lengths of {trace.in_words} to sent.{suffix} (")
    assert trace.origin in shown.out
    assert (trace.left_out in shown.err) == (form == "bad" or not trace.left_out)


def test_make_draws_where_somebody_says_how_many(tmp_path, capsys):
    (tmp_path / "a.csv").write_text("length,other\n1,5\n2,6\n,7\n")
    draws = [("--samples", 8), ("--seed", 3)]
    sizes = []
    for draw in draws:
        run("make", tmp_path / "a.csv", "--column", "other", *draw, "-o", tmp_path / "b.npy")
        sizes.append(load(tmp_path / "b.npy").size)
    assert sizes == [8, 10_000]
    run("make", tmp_path / "a.csv", "--skip-bad", "--samples", 4, "-o", tmp_path / "b.npy")
    assert sorted(load(tmp_path / "b.npy").lengths.tolist()) == [1, 1, 2, 2]
    assert "1 of 3 rows left out: line 4" in capsys.readouterr().err


def test_make_of_a_spec_has_no_columns(tmp_path):
    with pytest.raises(InputError, match="has no columns to choose from; leave out --column"):
        run("make", "fixed:length=5", "--column", "a", "-o", tmp_path / "a.csv")

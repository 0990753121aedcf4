"""What commands write is what they, Python and others read again."""

import csv
import gzip
import io
import json
import sys
from dataclasses import replace
from itertools import product

import pytest
from texts import UNMARKED, tokenizer_in

from odcsim import timeline as timelines
from odcsim.cli import main
from odcsim.reading import load
from odcsim.trace import COLUMNS

SUFFIXES = ["csv", "jsonl", "npy", "parquet"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


HERE = pytest.mark.usefixtures("folder")


def run(*argv):
    assert main(list(map(str, argv))) == 0


def told(capsys, *argv):
    capsys.readouterr()
    run("trace", "info", *argv, "--json")
    return json.loads(capsys.readouterr().out)


MADE_OF = {  # a file's name and content, flags, and words of Python
    "lengths": ("a.csv", "my_tokens\n5\n900\n70\n", {"column": "my_tokens"}),
    "rollouts": ("a.csv", "prompt_id,step,prompt,response\n7,1,5,6\n7,1,5,9\n3,2,8,1\n", {}),
    "counts": ("a.csv", "length,count,loss\n5,3,2\n9,100000000000,9\n", {}),
    "limited": ("a.csv", "length\n5\n900\n70\n", {"truncate": 80}),
    "bad": ("a.csv", "length\n5\n\n70\n", {"skip_bad": True}),
    "texts": ("a.jsonl", '{"messages": [{"role": "user", "content": "Who waits?"}]}\n' * 3, {"tokenizer": "tok"}),
    "pair": ("a.jsonl", '{"prompt": "Who waits?", "completion": "All."}\n' * 3, {"tokenizer": "tok"}),
}


@pytest.mark.parametrize("form", MADE_OF)
def test_trace_make_writes_all_that_is_known_of_a_files_lengths(form, folder, capsys):
    """So that they can be sent without the data: what is read of one is what is read of the other."""
    tokenizer_in(folder / "tok", UNMARKED)
    name, content, words = MADE_OF[form]
    (folder / name).write_text(content)
    flags = [word for name, value in words.items() for word in (f"--{name.replace('_', '-')}", value)]
    for suffix in SUFFIXES:
        run("trace", "make", name, *[word for word in flags if word is not True], "-o", f"sent.{suffix}")
        trace, sent = load(name, **words), load(f"sent.{suffix}")
        for column in COLUMNS:
            one, other = getattr(trace, column), getattr(sent, column)
            assert (one is None and other is None) or one.tolist() == other.tolist(), column
        shown = capsys.readouterr()
        assert trace.origin in shown.out
        assert (trace.left_out in shown.err) == (form == "bad" or not trace.left_out)


@HERE
def test_trace_make_draws_where_somebody_says_how_many_and_the_same_again(folder):
    for spec, suffix in product(("swe-smith", "uniform:min=1,max=99,samples=5,seed=9"), SUFFIXES):
        for name in ("a", "b"):
            run("trace", "make", spec, "--samples", 50, "--seed", 3, "--force", "-o", f"{name}.{suffix}")
        assert load(f"a.{suffix}").size == 50
        assert load(f"a.{suffix}").lengths.tolist() == load(f"b.{suffix}").lengths.tolist()
    (folder / "c.csv").write_text("length,other\n1,5\n2,6\n,7\n")
    for draw, size in ((("--samples", 8), 8), (("--seed", 3), 10_000)):
        run("trace", "make", "c.csv", "--column", "other", *draw, "--force", "-o", "b.npy")
        assert load("b.npy").size == size
    run("trace", "make", "c.csv", "--skip-bad", "--samples", 4, "--force", "-o", "b.npy")
    assert sorted(load("b.npy").lengths.tolist()) == [1, 1, 2, 2]
    run("trace", "make", "uniform:min=1,max=2", "--samples", "1k", "--drop-over", 1, "--force", "-o", "a.npy")
    assert load("a.npy").longest == 1
    assert 0 < load("a.npy").size < 1000


def test_a_failed_write_leaves_the_old_file_alone(folder, monkeypatch):
    (folder / "a.parquet").write_bytes(b"old")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert main(["trace", "make", "longalign", "-o", "a.parquet", "--force"]) == 2
    assert [path.read_bytes() for path in folder.iterdir()] == [b"old"]


def test_trace_info_says_what_numpy_says(folder, capsys):
    """And whether lengths are still those of another trace."""
    (folder / "rl.csv").write_text("step,prompt_id,prompt,response\n1,a,10,30\n1,a,10,90\n2,b,20,40\n2,b,20,180\n")
    cut, whole = told(capsys, "rl.csv", "--cutoff", 100, "--column", "response"), told(capsys, "rl.csv")
    assert (cut["count"], cut["max"], cut["p50"], cut["p99.9"]) == (4, 180, 65, pytest.approx(179.73))
    assert cut["cutoff"] == {"at": 100, "samples": 1, "tokens_if_cut": 80, "tokens_if_dropped": 180}
    assert whole["loss_share"] == pytest.approx(0.85)
    for name, seed in (("then", 1), ("now", 2)):
        run("trace", "make", "longalign", "--samples", 500, "--seed", seed, "-o", f"{name}.csv")
    for against, apart in (("then.csv", False), ("sharegpt", True)):
        found = told(capsys, "now.csv", "--against", against)["against"]
        assert bool(found["apart"]) == apart
        assert set(found["figures"]) == {"mean", "p50", "p90", "p99"}


@pytest.mark.parametrize(("encoding", "bar", "other"), [("utf-8", "█", "#"), ("ascii", "#", "█")])
def test_bars_suit_the_terminal(monkeypatch, encoding, bar, other):
    out = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    monkeypatch.setattr(sys, "stdout", out)
    run("trace", "info", "longalign")
    out.flush()
    shown = out.buffer.getvalue().decode(encoding)
    assert bar in shown
    assert other not in shown


READ = {
    "compare": "--model qwen3-0.6b --devices 2 --gpu a100 --minibatch 2 --minibatches 2",
    "balance": "--model qwen3-0.6b --devices 2 --gpu a100 --minibatch 2 --minibatches 2 --balancer lb-mini -o s.jsonl",
    "advise": "--model qwen3-0.6b --devices 2 --gpus a100 --global-batch 4",
    "trace make": "--samples 40 -o b.csv",
    "trace info": "",
}


def test_every_command_that_reads_lengths_tells_what_a_cutoff_loses(folder, capsys):
    (folder / "a.csv").write_text("length\n" + "10\n" * 30 + "100\n" * 10)
    for command, words in READ.items():
        run(*command.split(), "a.csv", *words.split(), "--cutoff", 40)
        shown = capsys.readouterr()
        for loss in ("10 samples (25.00%)", "1,000 tokens (76.92% of all)"):
            assert loss in (shown.out if command == "trace info" else shown.err), command


def test_a_timeline_is_written_as_steps_and_as_the_minibatches_asked_for(timeline, folder):
    timelines.write(timeline, folder / "t.npz")
    run("report", "t.npz", "t.npz", "--steps", "s.csv")
    lines = list(csv.DictReader((folder / "s.csv").read_text().splitlines()))
    assert [line["step"] for line in lines] == 2 * [f"{n}" for n in range(6)]
    assert len({line["run"] for line in lines}) == 1
    run("trace-json", "t.npz", "-o", "t.json.gz", "--minibatches", "1-2")
    events = json.loads(gzip.decompress((folder / "t.json.gz").read_bytes()))["traceEvents"]
    assert {e["name"] for e in events if e.get("cat") == "minibatch"} == {"minibatch 1", "minibatch 2"}
    run("trace-json", "t.npz", "--per-device", "traces")
    assert len(list((folder / "traces").iterdir())) == timeline.about.devices


@HERE
def test_validate_measures_an_error_and_a_tolerance_makes_it_fail(timeline, capsys):
    """Of a measurement whose seconds are 4 % longer."""
    blocks = tuple(replace(b, asked=1.04 * b.asked, had=1.04 * b.had) for b in timeline.blocks)
    real = replace(timeline, blocks=blocks, about=replace(timeline.about, executor="engine", emulated=False))
    other = replace(real, about=replace(real.about, digest="0123"))
    for name, line in (("t.npz", timeline), ("m.npz", real), ("o.npz", other)):
        timelines.write(line, name)
    assert [main(["validate", "t.npz", "m.npz", "--tolerance", at]) for at in ("0.03", "0.05")] == [1, 0]
    assert main(["validate", "t.npz", "o.npz", "--html", "v.html"]) == 2
    capsys.readouterr()
    run("validate", "t.npz", "m.npz", "m.npz", "--json")
    content = json.loads(capsys.readouterr().out)
    assert content["makespan_error_median"] == pytest.approx(0.04 / 1.04)
    assert (content["runs"], content["noise_worst"]) == (2, 0)


@HERE
def test_where_nothing_fits_a_table_is_not_all(capsys):
    line = "compare uniform:min=5000,max=9000,samples=8 --model qwen3-14b --gpu a100 --devices 1 --minibatch 1"
    run(*line.split(), "--minibatches", "1", "--csv")
    assert capsys.readouterr().err.count("\n") == 1

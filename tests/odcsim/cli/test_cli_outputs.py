"""What is written never takes the place of what is read, and what is quoted never steers the terminal."""

import argparse
import gzip
import os
import re

import pytest

from odcsim import schedule
from odcsim.cli import build_parser, main
from odcsim.support.outputs import INPUTS
from odcsim.timeline import write

SETTING = "--model r1-distill-qwen-1.5b --gpu a100 --devices 2 --minibatch 2".split()
OVER = {
    "balance": ["balance", "IN", *SETTING, "--balancer", "native", "-o", "IN"],
    "compare": ["compare", "IN", *SETTING, "--html", "IN"],
    "make": ["trace", "make", "IN", "-o", "IN"],
    "simulate": ["simulate", "IN", "--sync", "on-demand", "--gpu", "a100", "-o", "IN"],
    "fit": ["fit", "other.csv", "IN", "--lengths", "x.csv", "-o", "IN"],
    "lengths of traces": ["fit", "other.csv", "--lengths", "IN", "-o", "IN"],
    "validate": ["validate", "other.csv", "other.csv", "IN", "--html", "IN"],
    "report": ["report", "other.csv", "IN", "--html", "IN"],
    "trace-json": ["trace-json", "IN", "-o", "IN"],
    "a profile": ["compare", "other.csv", *SETTING, "--profile", "IN", "--html", "IN"],
    "a cluster": ["compare", "other.csv", *SETTING, "--cluster", "IN", "--html", "IN"],
}


@pytest.mark.parametrize("link", ["same", "./same", "symbolic", "hard"])
@pytest.mark.parametrize("argv", OVER.values(), ids=OVER)
def test_no_command_writes_over_what_it_reads(argv, link, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("in.html", "other.csv"):
        (tmp_path / name).write_text("length\n5\n6\n7\n8\n")
    output = {"same": "in.html", "./same": "./in.html"}.get(link, "link.html")
    if link in ("symbolic", "hard"):
        (os.symlink if link == "symbolic" else os.link)("in.html", "link.html")
    *start, last = argv
    assert last == "IN"
    assert main([*("in.html" if word == "IN" else word for word in start), output]) == 2
    assert capsys.readouterr().err == (
        f"odcsim: error: {output.removeprefix('./')}: is what this command reads; write to another file\n"
    )
    assert (tmp_path / "in.html").read_text() == "length\n5\n6\n7\n8\n"


TWO = {
    "html svg": ["report", "t.npz", "--html", "ONE", "--svg", "TWO"],
    "svg steps": ["report", "t.npz", "--svg", "ONE", "--steps", "TWO"],
    "steps html": ["report", "t.npz", "--steps", "ONE", "--html", "TWO"],
}


@pytest.fixture
def folder(tmp_path, monkeypatch, timeline):
    """With a timeline in it."""
    monkeypatch.chdir(tmp_path)
    write(timeline, tmp_path / "t.npz")
    return tmp_path


@pytest.mark.parametrize("link", ["same", "./same", "symbolic", "to nothing yet", "folder", "hard"])
@pytest.mark.parametrize("argv", TWO.values(), ids=TWO)
def test_no_command_writes_two_things_to_one_file(argv, link, folder, capsys):
    one, two = "one", {"same": "one", "./same": "./one", "folder": "link/one"}.get(link, "two")
    if link == "folder":
        (folder / "link").symlink_to(".")
    if link in ("symbolic", "hard"):
        (folder / "one").write_text("")
    if link in ("symbolic", "to nothing yet", "hard"):
        (os.link if link == "hard" else os.symlink)("one", "two")
    before = sorted(path.name for path in folder.iterdir())
    assert main([{"ONE": one, "TWO": two}.get(word, word) for word in argv]) == 2
    assert "is written to twice, as" in capsys.readouterr().err
    assert sorted(path.name for path in folder.iterdir()) == before


@pytest.mark.usefixtures("folder")
def test_what_keeps_nothing_may_be_written_to_twice(capsys):
    assert main(["report", "t.npz", "--html", os.devnull, "--svg", os.devnull, "--force"]) == 0
    assert capsys.readouterr().out.count(os.devnull) == 2


WRITE = {
    "schedule": (["balance", "l.csv", *SETTING, "--balancer", "native", "-o"], ".jsonl"),
    "timeline": (["simulate", "s.jsonl", "--sync", "on-demand", "--gpu", "a100", "-o"], ".npz"),
    "profile": (["fit", "other.csv", "-o"], ".json"),
    "events": (["trace-json", "t.npz", "-o"], ".json"),
    "picture": (["report", "t.npz", "--svg"], ".svg"),
    "steps": (["report", "t.npz", "--steps"], ".csv"),
    "page": (["report", "t.npz", "--html"], ".html"),
    "lengths": (["trace", "make", "l.csv", "-o"], ".csv"),
    "sweep": (["sweep", "g.toml", "-o"], ".csv"),
    "merged": (["merge", "a.points", "-o"], ".csv"),
}


@pytest.mark.parametrize("kind", WRITE)
def test_a_name_that_says_another_kind_of_file_is_refused(kind, folder, capsys):
    argv, own = WRITE[kind]
    (folder / "l.csv").write_text("length\n5\n6\n7\n8\n")
    (folder / "g.toml").write_text('trace = "l.csv"\nmodel = "qwen3-0.6b"\ngpu = "a100"\ndevices = 2\nminibatch = 2\n')
    before = sorted(path.name for path in folder.iterdir())
    near = {"schedule": {".json"}, "events": {".gz"}, "lengths": {".jsonl", ".npy", ".parquet"}}.get(kind, set())
    near |= {".parquet", ".jsonl"} if kind in ("sweep", "merged") else set()
    near |= {".txt", ".tsv"} if kind == "steps" else set()
    for ending in (
        {".html", ".json", ".jsonl", ".npz", ".svg", ".csv", ".parquet", ".npy", ".PDF", ".toml"} - {own} - near
    ):
        assert main([*argv, f"m{ending}"]) == 2, ending
        (told,) = capsys.readouterr().err.splitlines()
        assert f"m{ending}" in told
    assert sorted(path.name for path in folder.iterdir()) == before


def test_a_name_that_says_nothing_is_fine(folder):
    for name in ("m", "m.mine", "m.json.gz", "m.JSON"):
        assert main(["trace-json", "t.npz", "-o", name]) == 0
        assert (folder / name).exists()


NAMED = {
    "a trace": ["trace", "info", ""],
    "against": ["trace", "info", "longalign", "--against", ""],
    "make": ["trace", "make", "", "-o", "a.csv"],
    "a plan": ["check", ""],
    "lengths": ["check", "p.json", "--lengths", ""],
    "timelines": ["report", "t.npz", "", "--html", "a.html"],
    "a page": ["report", "t.npz", "--html", ""],
    "a schedule": ["simulate", "", "--sync", "on-demand", "-o", "t"],
    "a profile": ["compare", "longalign", *SETTING, "--profile", ""],
    "a cluster": ["compare", "longalign", *SETTING, "--cluster", ""],
    "a tokenizer": ["trace", "info", "a.jsonl", "--tokenizer", ""],
    "devices": ["trace-json", "t.npz", "--per-device", ""],
    "a grid": ["sweep", "", "-o", "a.csv"],
    "points": ["merge", "", "-o", "a.csv"],
}


@pytest.mark.parametrize("argv", NAMED.values(), ids=NAMED)
def test_an_empty_name_is_no_folder(argv, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.csv").write_text("length\n5\n")
    assert main(argv) == 2
    assert re.search("the name for .* is empty; give one", capsys.readouterr().err)


def test_no_command_writes_over_its_recipe(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "r").write_text('sharding = "full"\n')
    argv = ["balance", "longalign", *SETTING, "--recipe", "r", "--balancer", "native", "-o", "r", "--force"]
    assert main(argv) == 2
    assert "is what this command reads" in capsys.readouterr().err


def positionals(parser):
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                if getattr(command, "_fill", None):
                    command._fill(command)
                yield from positionals(command)
        elif not action.option_strings and not action.choices:  # one of a few words is no file
            yield action.dest


def test_every_argument_without_a_flag_is_known_as_an_input():
    assert set(positionals(build_parser())) <= set(INPUTS)


@pytest.mark.parametrize("name", ["a.pdf", "a.csv", "a.png"])
def test_a_page_is_named_as_one(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["compare", "longalign", *SETTING, "--html", name]) == 2
    assert f"{name}: is no name of a page; pages are HTML: name it FILE.html" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.csv", "\x1b[31mid,\x07text\n1,2\n"), ("a.csv", "length\n\x1b]0;title\x07\n"), ("a.json", '{"\\u009b2J": [1]}'),
     ("a.jsonl", '{"\\u202etxt": 1}\n')],
)  # fmt: skip
def test_what_a_file_holds_does_not_steer_the_terminal(name, content, tmp_path, capsys):
    (tmp_path / name).write_text(content)
    assert main(["trace", "info", str(tmp_path / name)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.isprintable()


GRID = 'trace = "l.csv"\nmodel = "qwen3-0.6b"\ngpu = "a100"\ndevices = 2\nminibatch = 2\nminibatches = 1\n'
AGAIN = {
    "schedule": (["balance", "l.csv", *SETTING, "--minibatches", "1", "--balancer", "native", "-o"], ["o.jsonl", "o"]),
    "timeline": (["simulate", "s.jsonl", "--sync", "on-demand", "--gpu", "a100", "-o"], ["o.npz"]),
    "profile": (["fit", "m.csv", *SETTING[:4], "-o"], ["o.json"]),
    "events": (["trace-json", "t.npz", "-o"], ["o.json", "o.json.gz", "o"]),
    "picture": (["report", "t.npz", "--svg"], ["o.svg"]),
    "steps": (["report", "t.npz", "--steps"], ["o.csv"]),
    "page": (["report", "t.npz", "--html"], ["o.html"]),
    "sweep": (["sweep", "g.toml", "-o"], ["o.csv", "o.jsonl", "o.parquet"]),
}
THEIRS = {
    "page": b"<!DOCTYPE html>\n<html lang='en'>", "archive": b"PK\x03\x04", "array": b"\x93NUMPY", "Parquet": b"PAR1",
    "JSON": b' {"traceEvents": [', "table": b"length\n5\n", "data": b"\x7fELF\x00", "gzip": gzip.compress(b'{"a": 1}'),
    "torn": b"\x1f\x8b", "picture": b'<svg xmlns="http://www.w3.org/2000/svg"><title>A</title></svg>', "text": b"me\n",
}  # fmt: skip


@pytest.mark.parametrize("kind", AGAIN)
def test_over_what_odcsim_wrote_it_writes_again_and_over_nothing_else_unless_told_to(kind, folder, schedules, capsys):
    argv, names = AGAIN[kind]
    (folder / "l.csv").write_text("length\n5\n6\n7\n8\n")
    (folder / "g.toml").write_text(GRID)
    if kind == "timeline":
        schedule.write(schedules, folder / "s.jsonl")
    if kind == "profile":
        (folder / "m.csv").write_text("lengths,seconds\n" + "".join(f"{n},{n / 1e4}\n" for n in range(512, 9000, 512)))
    for name in names:
        for theirs in THEIRS.values():
            (folder / name).write_bytes(theirs)
            assert main([*argv, name]) == 2
            (line,) = capsys.readouterr().err.splitlines()
            assert re.search(rf"{name}: is there, and is not .* that odcsim wrote; name another file, or give --", line)
            assert (folder / name).read_bytes() == theirs
        (folder / name).unlink()
        assert main([*argv, name]) == 0
        written = (folder / name).read_bytes()
        assert main([*argv, name]) == 0
        (folder / name).write_bytes(THEIRS["text"])
        assert main([*argv, name, "--force"]) == 0
        assert len((folder / name).read_bytes()) == len(written)
    capsys.readouterr()


@pytest.mark.parametrize("output", ["data/more.csv", "data/deep/more.csv", "link/more.csv"])
def test_nothing_is_written_into_a_folder_that_is_read(output, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data" / "deep").mkdir(parents=True)
    (tmp_path / "data" / "a.csv").write_text("length\n5\n")
    (tmp_path / "link").symlink_to("data")
    assert main(["trace", "make", "data", "--samples", "1", "-o", output]) == 2
    assert f"{output}: is inside data, which this command reads" in capsys.readouterr().err


def test_where_nothing_fits_somebody_is_told(capsys):
    line = "compare uniform:min=5000,max=9000,samples=8 --model qwen3-14b --gpu a100 --devices 1 --minibatch 1"
    assert main([*line.split(), "--minibatches", "1", "--csv"]) == 0
    printed = capsys.readouterr()
    assert re.fullmatch(r"odcsim compare: nothing fits: .*, which needs least, needs \d+ GB of \d+ GB\n", printed.err)

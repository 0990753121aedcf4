"""What is written never takes the place of what is read, of what is not ours, or of another thing that is written."""

import gzip
import os

import pytest
from every_command import commands, line, main, name_of, takes_text

from odcsim import schedule
from odcsim.cli import main as odcsim
from odcsim.support.outputs import INPUTS
from odcsim.timeline import write

WRITES = {"-o", "--output", "--html", "--svg", "--steps", "--per-device", "--write"}
READS = {
    "trace", "source", "sources", "plan", "schedule", "timeline", "timelines", "predicted", "measured", "name", "rows",
    "grid", "--trace", "--lengths", "--against", "--recipe", "--model", "--gpu", "--gpus", "--profile", "--cluster",
    "--tokenizer", "--script", "config", "--log", "--hang",
}  # fmt: skip
WORDS = {"--column", "--images", "--balancer", "--trainer", "--sweep-max-tokens", "--dask", "--minibatches", "--price"}
COMMANDS = commands()
TEXTS = [(command, name_of(a)) for command, parser in COMMANDS.items() for a in parser._actions if takes_text(a)]
OUTPUTS = [(command, name) for command, name in TEXTS if name in WRITES]
ENDINGS = "csv json jsonl html svg npz npy parquet json.gz txt pdf toml".split()
MINE = "# mine\n"
LENGTHS = "length\n5\n6\n7\n8\n"
SETTING = "--model r1-distill-qwen-1.5b --gpu a100 --devices 2 --minibatch 2".split()


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch, timeline):
    """With a timeline in it."""
    monkeypatch.chdir(tmp_path)
    write(timeline, tmp_path / "t.npz")
    return tmp_path


def refused(argv, capsys, call=main):
    """In one line on stderr, and nothing else."""
    assert call(argv) == 2, argv
    told = capsys.readouterr()
    assert (told.out, len(told.err.splitlines())) == ("", 1), argv
    assert told.err.rstrip("\n").isprintable()
    return told.err


def test_it_is_known_of_every_option_whether_it_writes():
    known = {name for _, name in TEXTS}
    assert known == WRITES | READS | WORDS
    assert len(known) == len(WRITES) + len(READS) + len(WORDS)
    files = {a.dest for parser in COMMANDS.values() for a in parser._actions if not (a.option_strings or a.choices)}
    assert files - {"script"} <= {*INPUTS, "trainer"}


@pytest.mark.parametrize(("command", "output"), OUTPUTS, ids=map(" ".join, OUTPUTS))
def test_nothing_is_written_over_what_is_anothers_or_is_read_or_cannot_be(command, output, folder, capsys):
    """Nor is anything else looked at before, none of which is there."""
    parser = COMMANDS[command]
    for name in ("mine", *(f"mine.{ending}" for ending in ENDINGS)):
        (folder / name).write_text(MINE)
        assert name in refused(line(command, parser, {output: [name]}), capsys)
    more = ["--force"] if "--force" in parser._option_string_actions else []
    for name in [name for one, name in TEXTS if one == command and name in READS]:
        refused([*line(command, parser, {output: ["mine"], name: ["mine"]}), *more], capsys)
    refused(line(command, parser, {output: ["nowhere/out.html"]}), capsys)
    assert {path.read_text() for path in folder.glob("mine*")} == {MINE}


OVER = [
    ["balance", "IN", *SETTING, "--balancer", "native", "-o"], ["compare", "IN", *SETTING, "--html"],
    ["simulate", "IN", "--sync", "on-demand", "--gpu", "a100", "-o"],
    ["validate", "other.csv", "other.csv", "IN", "--html"],
    ["compare", "other.csv", *SETTING, "--cluster", "IN", "--html"],
    ["compare", "other.csv", *SETTING, "--profile", "IN", "--html"],
]  # fmt: skip


@pytest.mark.parametrize("link", ["same", "./same", "symbolic", "hard"])
def test_an_input_is_known_by_whatever_name(link, folder, capsys):
    for name in ("in.html", "other.csv"):
        (folder / name).write_text(LENGTHS)
    output = {"same": "in.html", "./same": "./in.html"}.get(link, "link.html")
    if link in ("symbolic", "hard"):
        (os.symlink if link == "symbolic" else os.link)("in.html", "link.html")
    for argv in OVER:
        refused([*("in.html" if word == "IN" else word for word in argv), output], capsys, odcsim)
    assert (folder / "in.html").read_text() == LENGTHS


@pytest.mark.parametrize("output", ["data/more.csv", "data/deep/more.csv", "link/more.csv"])
def test_nothing_is_written_into_a_folder_that_is_read(output, folder, capsys):
    (folder / "data" / "deep").mkdir(parents=True)
    (folder / "data" / "a.csv").write_text("length\n5\n")
    (folder / "link").symlink_to("data")
    refused(["trace", "make", "data", "--samples", "1", "-o", output], capsys, odcsim)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "config.json"):
        (path := folder / name).write_text(MINE)
        for option in ("--tokenizer", "--model"):
            argv = line("odcsim balance", COMMANDS["odcsim balance"], {"-o": [name], option: ["."]})
            refused([*argv, "--force"], capsys)
            assert path.read_text() == MINE


@pytest.mark.parametrize("link", ["same", "./same", "symbolic", "to nothing yet", "folder", "hard"])
def test_no_command_writes_two_things_to_one_file(link, folder, capsys):
    one, two = "one", {"same": "one", "./same": "./one", "folder": "link/one"}.get(link, "two")
    (folder / "link").symlink_to(".")
    if link in ("symbolic", "hard"):
        (folder / "one").write_text("")
    if two == "two":
        (os.link if link == "hard" else os.symlink)("one", "two")
    before = sorted(path.name for path in folder.iterdir())
    for first, second in (("--html", "--svg"), ("--svg", "--steps"), ("--steps", "--html")):
        refused(["report", "t.npz", first, one, second, two], capsys, odcsim)
    assert sorted(path.name for path in folder.iterdir()) == before
    assert odcsim(["report", "t.npz", "--html", os.devnull, "--svg", os.devnull, "--force"]) == 0


WRITE = {  # what each writes, and the endings that say so
    "schedule": (["balance", "l.csv", *SETTING, "--minibatches", "1", "--balancer", "native", "-o"], ".jsonl .json"),
    "timeline": (["simulate", "s.jsonl", "--sync", "on-demand", "--gpu", "a100", "-o"], ".npz"),
    "profile": (["fit", "m.csv", *SETTING[:4], "-o"], ".json"),
    "events": (["trace-json", "t.npz", "-o"], ".json .json.gz"),
    "picture": (["report", "t.npz", "--svg"], ".svg"),
    "steps": (["report", "t.npz", "--steps"], ".csv .txt .tsv"),
    "page": (["report", "t.npz", "--html"], ".html"),
    "sweep": (["sweep", "g.toml", "-o"], ".csv .jsonl .parquet"),
}
GRID = 'trace = "l.csv"\nmodel = "qwen3-0.6b"\ngpu = "a100"\ndevices = 2\nminibatch = 2\nminibatches = 1\n'
THEIRS = {
    "page": b"<!DOCTYPE html>\n<html lang='en'>", "archive": b"PK\x03\x04", "array": b"\x93NUMPY", "Parquet": b"PAR1",
    "JSON": b' {"traceEvents": [', "table": b"length\n5\n", "data": b"\x7fELF\x00", "gzip": gzip.compress(b'{"a": 1}'),
    "torn": b"\x1f\x8b", "picture": b'<svg xmlns="http://www.w3.org/2000/svg"><title>A</title></svg>', "text": b"me\n",
}  # fmt: skip


@pytest.mark.parametrize("kind", WRITE)
def test_a_command_writes_again_over_its_own_and_over_nothing_else_unless_told_to(kind, folder, schedules, capsys):
    argv, endings = WRITE[kind]
    (folder / "l.csv").write_text(LENGTHS)
    (folder / "g.toml").write_text(GRID)
    (folder / "m.csv").write_text("lengths,seconds\n" + "".join(f"{n},{n / 1e4}\n" for n in range(512, 9000, 512)))
    schedule.write(schedules, folder / "s.jsonl")
    for ending in {*".html .json .jsonl .npz .svg .csv .parquet .PDF .toml".split()} - set(endings.split()):
        refused([*argv, f"other{ending}"], capsys, odcsim)
    assert not list(folder.glob("other*"))
    for name in (f"o{ending}" for ending in endings.split() if ending not in (".txt", ".tsv")):
        for theirs in THEIRS.values():
            (folder / name).write_bytes(theirs)
            refused([*argv, name], capsys, odcsim)
            assert (folder / name).read_bytes() == theirs
        (folder / name).unlink()
        assert odcsim([*argv, name]) == 0
        written = (folder / name).read_bytes()
        assert odcsim([*argv, name]) == 0
        (folder / name).write_bytes(THEIRS["text"])
        assert odcsim([*argv, name, "--force"]) == 0
        assert len((folder / name).read_bytes()) == len(written)
        capsys.readouterr()


def test_no_command_writes_over_its_recipe_and_the_page_of_the_demo_takes_nobodys_place(folder, capsys):
    balance = ["balance", "longalign", *SETTING, "--recipe", "r", "--balancer", "native", "-o", "r", "--force"]
    for name, argv in (("r", ["odcsim", *balance]), ("report.html", ["odcsim", "demo"])):
        (folder / name).write_text(text := 'sharding = "full"\n')
        refused(argv, capsys)
        assert (folder / name).read_text() == text

"""Where results are printed to somebody who leaves, to a full disk, in ASCII or to nobody: one line or none."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from odcsim import schedule
from odcsim import timeline as timelines
from odcsim.cli import main
from odcsim.support import command
from odcsim.support.printing import PlainText

SETTING = "--model tiny --gpu a100 --devices 2 --minibatch 2 --minibatches 1"
COMPARE = f"odcsim compare a.csv {SETTING}"
FULL = "odcsim: error: No space left on device; see what this machine has left"
ENDS = {  # of a shell's line: what its last words are, and on stderr
    "a reader that leaves": (f"{COMPARE} | head -1; echo ${{PIPESTATUS[0]}}", "0", ""),
    "help to one that leaves": ("odcsim --help | head -1; echo ${PIPESTATUS[0]}", "0", ""),
    "a full disk": ("odcsim trace info a.csv > /dev/full; echo $?", "1", FULL),
    "nobody": ("odcsim trace info a.csv >&-; echo $?", "0", ""),
    "ASCII": (f"PYTHONIOENCODING=ascii {COMPARE} | grep -c lb-mini", "1", ""),
}
for words in ("--help", "compare --help", "compare --help-all", "trace --help", "--version", "completion bash"):
    ENDS[f"{words} to a full disk"] = (f"odcsim {words} > /dev/full; echo $?", "1", FULL)
for words in ("--help", "run --help", "doctor --help-all"):
    line = f"odc_engine {words} > /dev/full; echo $?"
    ENDS[f"{words} of the engine to a full disk"] = (line, "1", FULL.replace("odcsim", "odc_engine"))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("end", ENDS)
def test_whoever_reads_is_told_in_one_line(end, tmp_path):
    line, last, told = ENDS[end]
    (tmp_path / "a.csv").write_text("length\n512\n2048\n77\n900\n")
    line = re.sub(r"(odcsim|odc_engine)", rf"{sys.executable} -m \1", line, count=1)
    done = subprocess.run(["bash", "-c", line], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.stdout.splitlines()[-1], done.stderr.strip()) == (last, told)


def test_a_name_does_not_steer_the_terminal(tmp_path, monkeypatch, capsys):
    """Of a file: in the trace's name, in its origin and in a table's cells."""
    monkeypatch.chdir(tmp_path)
    Path("\x1b[31m[bold]\u202e.csv").write_text("length\n5\n6\n")
    for argv in (["trace", "info"], ["compare"]):
        rest = SETTING.replace("--devices 2", "--devices 1").split() if argv == ["compare"] else []
        assert main([*argv, "\x1b[31m[bold]\u202e.csv", *rest]) == 0
        printed = capsys.readouterr().out
        assert "\\x1b[31m[bold]\\u202e.csv" in printed
        assert all(line.isprintable() for line in printed.split("\n"))


def test_colours_reach_the_terminal_and_nothing_else_does(capsys):
    PlainText(sys.stdout, steers=True).write("\x1b[1mbold")
    PlainText(sys.stdout).write("\x1b[1mbold\n")
    assert capsys.readouterr().out == "\x1b[1mbold\\x1b[1mbold\n"


LEFT = [
    (MemoryError(), 1, "too little memory (none is left); give it more, or ask for less"),
    (OSError(24, "Too many open files"), 1, "Too many open files; see what this machine has left"),
    (OSError(30, "Read-only file system", "a/b"), 2, "a/b: Read-only file system; check the path"),
    (ImportError("lib\nlong", name="numpy"), 1, "numpy cannot be loaded (lib); install it anew, or free memory"),
]


def test_what_a_machine_has_none_left_of_is_one_line_and_a_defect_of_ours_is_not_hidden(capsys):
    for error, code, told in LEFT:
        assert command.status("odcsim", Mock(side_effect=error)) == code
        assert capsys.readouterr().err == f"odcsim: error: {told}\n"
    with pytest.raises(OSError, match="odd"):
        command.status("odcsim", Mock(side_effect=OSError(999, "odd")))


# A file's name may hold bytes that are no text: every command reads it, says it, and writes it where it quotes it

SMALL = "--model tiny --gpu a100 --devices 2".split()
BATCH = [*SMALL, *"--minibatch 2 --minibatches 2 --max-tokens 16".split()]
RL = [*SMALL, *"--prompts 2 --rollouts 2 --steps 2".split()]
ADVISE = "--model tiny --gpus a100 --devices 2 --global-batch 4 --minibatches 2".split()
ODD = os.fsdecode(b"odd\xff")
READS = {
    "info": ["trace", "info", "ODD.csv", "--against", "ODD.csv"],
    "texts": ["trace", "info", "ODD.jsonl", "--tokenizer", "ODD"],
    "make": ["trace", "make", "ODD.csv", "-o", "OUT.csv"],
    "compare": ["compare", "ODD.csv", *BATCH, "--html", "OUT.html"],
    "compare csv": ["compare", "ODD.csv", *BATCH, "--csv"],
    "advise": ["advise", "ODD.csv", *ADVISE, "--html", "OUT.html"],
    "break-even": ["break-even", "ODD.csv", *BATCH[:-4], "--html", "OUT.html"],
    "rl": ["rl", "ODD.csv", *RL],
    "balance": ["balance", "ODD.csv", *BATCH, "--balancer", "native", "-o", "OUT.jsonl"],
    "check": ["check", "ODD.plan"],
    "simulate": ["simulate", "ODD.plan", "--sync", "on-demand", "--gpu", "a100", "-o", "OUT.npz"],
    "report": ["report", "ODD.npz", "ODD.npz", "--html", "OUT.html", "--svg", "OUT.svg", "--steps", "OUT.csv"],
    "trace-json": ["trace-json", "ODD.npz", "-o", "OUT.json"],
    "per device": ["trace-json", "ODD.npz", "--per-device", "OUT"],
    "validate": ["validate", "ODD.npz", "ODD.npz", "--html", "OUT.html"],
    "sweep": ["sweep", "ODD.toml", "-o", "OUT.csv"],
}
JSON = {name for name in READS if name in ("info", "compare", "advise", "rl", "check", "validate")}
GRID = 'trace = "longalign"\nmodel = "tiny"\ngpu = "a100"\ndevices = 2\nminibatch = 2\nminibatches = 1\n'
WORDS = {"type": "WordLevel", "vocab": {"a": 0, "u": 1}, "unk_token": "u"}


@pytest.fixture
def folder(tmp_path, monkeypatch, schedules, timeline):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / f"{ODD}.csv").write_text("length\n5\n6\n7\n8\n")
    (tmp_path / f"{ODD}.jsonl").write_text('{"text": "a a"}\n')
    (tmp_path / f"{ODD}.toml").write_text(GRID)
    (tmp_path / ODD).mkdir()
    (tmp_path / ODD / "tokenizer.json").write_text(json.dumps({"version": "1.0", "added_tokens": [], "model": WORDS}))
    schedule.write(schedules, tmp_path / f"{ODD}.plan")
    timelines.write(timeline, tmp_path / f"{ODD}.npz")
    return tmp_path


@pytest.mark.parametrize("name", READS)
def test_a_name_that_is_no_text_is_as_good_as_any(name, folder, capfd):
    out = os.fsdecode(b"out\xff")
    argv = [word.replace("ODD", ODD).replace("OUT", out) for word in READS[name]]
    assert main(argv) == 0
    for path in folder.glob("out*"):
        if path.suffix in (".html", ".csv", ".svg", ".json", ".jsonl"):
            path.read_text(encoding="utf-8")
    printed = capfd.readouterr()
    assert "Traceback" not in printed.err
    if name in JSON:
        assert main([*(word for word in argv if not word.startswith(out) and word != "--html"), "--json"]) == 0
        assert json.loads(capfd.readouterr().out)


@pytest.mark.usefixtures("folder")
def test_a_page_with_links_refuses_it_in_a_line(capfd):
    pytest.importorskip("dash", reason="pip install 'odcsim[explore]'")
    assert main(["explore", f"{ODD}.csv", "--no-open"]) == 2
    assert len(capfd.readouterr().err.splitlines()) == 1

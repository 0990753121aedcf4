"""Where results are printed to somebody who leaves, to a full disk, in ASCII or to nobody: one line or none."""

import re
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from odcsim.cli import main
from odcsim.support import command
from odcsim.support.printing import Printed

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
    Printed(sys.stdout, steers=True).write("\x1b[1mbold")
    Printed(sys.stdout).write("\x1b[1mbold\n")
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

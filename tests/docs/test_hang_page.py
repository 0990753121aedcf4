"""The program of the page on hangs does hang, and what is said of its dumps is what the page shows."""

import re

import pytest
from jobs import torchrun
from programs import program
from scripts import ROOT

from odcsim.observed.hang import why

pytestmark = pytest.mark.slow

PAGE = "howto/hang.md"


def test_the_program_hangs_as_the_page_says(tmp_path):
    for name in ("dumps.py", "hang.py"):
        (tmp_path / name).write_text(program(PAGE, name), encoding="utf-8")
    ran = torchrun(tmp_path, "--nproc-per-node", "2", "--monitor-interval", "1", "hang.py")
    assert ran.returncode != 0, "it did not hang"
    text = (ROOT / "docs" / PAGE).read_text(encoding="utf-8")
    [shown] = re.findall(r"^```text\n(.*?)\n```$", text, re.MULTILINE | re.DOTALL)
    assert " ".join(why([tmp_path / "dumps"]).sentences()) == " ".join(shown.split()), ran.stderr

"""The program of the page on ranks without images: stock ends it, on demand it trains as one process does."""

import re

import pytest
from jobs import torchrun
from programs import program
from scripts import ROOT

pytestmark = pytest.mark.slow

NAME, PAGE = "missing_images.py", "missing-images.md"
TEXT = (ROOT / "docs" / PAGE).read_text(encoding="utf-8")
SHOWN = re.findall(rf"{NAME}[^\n]*\n```\n\n```text\n(.*?)\n```", TEXT, re.DOTALL)


@pytest.mark.parametrize("options", [[], ["--on-demand"]], ids=["stock", "on-demand"])
def test_a_rank_without_images_ends_stock_and_not_on_demand(tmp_path, options):
    (tmp_path / NAME).write_text(program(PAGE, NAME), encoding="utf-8")
    done = torchrun(tmp_path, "--nproc-per-node", "2", NAME, *options)
    stock, on_demand = SHOWN
    assert ((done.returncode == 0), done.stdout.strip()) == ((True, on_demand) if options else (False, "")), done.stderr
    assert (stock in done.stderr) == (not options)

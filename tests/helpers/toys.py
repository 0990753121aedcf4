"""A recipe or a question with one field more, as CONTRIBUTING.md says to add it: one line, and no other edit."""

import re
import subprocess
import sys
from pathlib import Path

from scripts import ROOT

PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
[LINE] = re.findall(r"^ +(toy: str = _choice.*)$", PAGE, re.MULTILINE)
[ASKED] = re.findall(r"^ +(toy: int = option.*)$", PAGE, re.MULTILINE)
LINES = {"recipe": LINE, "question": ASKED}
BEHIND = "    def __post_init__"  # the first one: that of a question's terms
START = """
import sys
from importlib.util import module_from_spec, spec_from_file_location
import odcsim
spec = spec_from_file_location("odcsim.{0}", "with_toy.py")
sys.modules["odcsim.{0}"] = odcsim.{0} = module_from_spec(spec)
spec.loader.exec_module(odcsim.{0})
"""


def run(code: str, folder: Path, noun: str = "recipe") -> str:
    """What the code prints, in a process whose recipe or question has the field `toy`."""
    source = (ROOT / f"odcsim/{noun}.py").read_text(encoding="utf-8")
    before, behind = source.split(BEHIND, 1)
    (folder / "with_toy.py").write_text(f"{before}    {LINES[noun]}\n\n{BEHIND}{behind}", encoding="utf-8")
    command = [sys.executable, "-W", "error", "-c", START.format(noun) + code]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout

"""A recipe with one field more, as CONTRIBUTING.md says to add it: a line of odcsim/recipe.py, and no other edit."""

import re
import subprocess
import sys
from pathlib import Path

from scripts import ROOT

PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
[LINE] = re.findall(r"^ +(toy: str = _chosen.*)$", PAGE, re.MULTILINE)
FIELD = f"    {LINE}\n\n"
BEHIND = "    def __post_init__"
START = """
import sys
from importlib.util import module_from_spec, spec_from_file_location
import odcsim
spec = spec_from_file_location("odcsim.recipe", "with_toy.py")
sys.modules["odcsim.recipe"] = odcsim.recipe = module_from_spec(spec)
spec.loader.exec_module(odcsim.recipe)
"""


def run(code: str, folder: Path) -> str:
    """What the code prints, in a process whose recipe has the field `toy`."""
    source = (ROOT / "odcsim/recipe.py").read_text(encoding="utf-8")
    assert source.count(BEHIND) == 1
    (folder / "with_toy.py").write_text(source.replace(BEHIND, FIELD + BEHIND), encoding="utf-8")
    command = [sys.executable, "-W", "error", "-c", START + code]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout

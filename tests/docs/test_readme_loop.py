"""The README's loop on a real machine: measured, planned, predicted, run, compared."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from scripts import ROOT


@pytest.mark.slow
def test_the_loop_runs_as_the_readme_writes_it(tmp_path):
    section = (ROOT / "README.md").read_text(encoding="utf-8").partition("## Calibrate\n")[2]
    commands = re.search(r"^```sh\n(.*?)^```$", section, re.MULTILINE | re.DOTALL).group(1)
    assert commands.splitlines()[-1].startswith("odcsim validate predicted.npz measured.npz")
    here = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    script = f"set -e\n{commands}odcsim validate predicted.npz measured.npz --json > errors.json\n"
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, env=here, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    # How large the errors are depends on who else uses the machine, not so what is compared.
    errors = json.loads((tmp_path / "errors.json").read_text(encoding="utf-8"))
    assert len(errors["minibatches"]) == 5
    assert {"forward", "backward", "gather", "push", "meeting"} <= {kind["kind"] for kind in errors["kinds"]}

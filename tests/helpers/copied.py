"""A copy of odcsim, to be changed as a page says, with its commands called there."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from scripts import ROOT


class House:
    """A copy of odcsim, with the commands of both packages as they are there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        shutil.copytree(ROOT / "odcsim", folder / "odcsim", ignore=shutil.ignore_patterns("__pycache__"))

    def add(self, room: str, name: str, text: str, *, among: str) -> None:
        """A module, and in the room's list its line: the last of `among`, whose first lines are there."""
        home = self.folder / room
        (home / f"{name}.py").write_text(text)
        before = "".join(among.splitlines(keepends=True)[:-1])
        init = (home / "__init__.py").read_text()
        assert before in init
        init = init.replace(before, among, 1)
        place = room.replace("/", ".")
        (home / "__init__.py").write_text(init.replace(f"from {place} import ", f"from {place} import {name}, ", 1))

    def run(self, *command: str) -> str:
        env = os.environ | {"PYTHONPATH": f"{self.folder}{os.pathsep}{ROOT}", "COLUMNS": "400"}
        how = {"cwd": self.folder, "env": env, "capture_output": True, "text": True, "timeout": 120}
        done = subprocess.run([sys.executable, *command], check=False, **how)
        assert done.returncode == 0, done.stderr
        return done.stdout

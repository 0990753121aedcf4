"""NVIDIA's driver without a GPU, `fake_driver.c`, under what asks the real one: in processes of their own, which find
it first. What it was given comes back."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

SOURCE = Path(__file__).with_name("fake_driver.c")
LIBRARIES = ("libcuda.so.1", "libnvidia-ml.so.1")
COMMAND = (
    "import importlib, json, sys; module, name, given = json.loads(sys.argv[1]); "
    "print(json.dumps(getattr(importlib.import_module(module), name)(*given)))"
)


@dataclass(frozen=True)
class Answered:
    value: Any  # as JSON has it
    calls: list[dict[str, Any]]  # of the driver, those that it keeps

    def of(self, call: str) -> list[dict[str, Any]]:
        return [each for each in self.calls if each["call"] == call]


@dataclass(frozen=True)
class FakeLibraries:
    folder: Path

    def ask(self, function: Callable[..., Any], *given: Any, **machine: Any) -> Answered:
        """What a function of a module says in a process with this driver. `machine`: see `fake_driver.c`; `devices=2`
        is FAKE_CUDA_DEVICES."""
        log = self.folder / "calls.jsonl"
        log.unlink(missing_ok=True)
        told = json.dumps([function.__module__, function.__name__, given])
        how = {"capture_output": True, "text": True, "timeout": 120, "check": False}
        env = self.environment(FAKE_CUDA_LOG=str(log), **machine)
        run = subprocess.run([sys.executable, "-c", COMMAND, told], env=env, **how)
        assert run.returncode == 0, run.stderr
        lines = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
        return Answered(json.loads(run.stdout.splitlines()[-1]), [json.loads(line) for line in lines])

    def environment(self, **machine: Any) -> dict[str, str]:
        """Of a process that finds it. Names without capitals are short for FAKE_CUDA_..."""
        usual = {k: v for k, v in os.environ.items() if not k.startswith(("FAKE_CUDA_", "CUDA_VISIBLE_DEVICES"))}
        told = {name if name.isupper() else f"FAKE_CUDA_{name.upper()}": str(value) for name, value in machine.items()}
        paths = {"LD_LIBRARY_PATH": str(self.folder), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        return usual | paths | told


def built(folder: Path) -> FakeLibraries:
    if (compiler := shutil.which("cc")) is None:
        pytest.fail("no C compiler (cc) builds the driver without a GPU, tests/helpers/fake_driver.c: install gcc")
    flags = ("-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", f"-Wl,-soname,{LIBRARIES[0]}")
    subprocess.run([compiler, *flags, "-o", str(folder / LIBRARIES[0]), str(SOURCE)], check=True)
    (folder / LIBRARIES[1]).symlink_to(LIBRARIES[0])
    return FakeLibraries(folder)

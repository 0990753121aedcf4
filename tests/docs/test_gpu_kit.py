"""The kit for a GPU without a network: what is in it, and that a bare Python runs it."""

import os
import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import version
from pathlib import Path

import gpu_kit
import own_process
import pytest
from sources import Source

from odcsim.errors import InputError

BARE = os.environ.get("ODC_BARE_PYTHON", "")
ALONE = ["unshare", "--net", "--map-root-user"]


def wheel(folder, name, *files):
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / f"{name}.whl", "w") as archive:
        for file in files:
            archive.writestr(file, "VALUE = 1\n")


@pytest.fixture
def kit(tmp_path, monkeypatch):
    """A kit of packages that are made up."""
    asked = []

    def pip(*words):
        asked.append(words)
        folder = Path(words[words.index("-w" if words[0] == "wheel" else "-d") + 1])
        if words[0] == "wheel":
            wheel(folder, "odcsim", "odcsim/__init__.py", "odc_engine/__init__.py")
            return
        name = words[-1].partition("==")[0]
        module = (gpu_kit.PURE | gpu_kit.COMPILED)[name].replace(".", "/")
        wheel(folder, name, f"{module}/__init__.py", f"{module}/source.cpp", f"{name}.dist-info/METADATA")

    monkeypatch.setattr(gpu_kit, "pip", pip)
    assert gpu_kit.main(["-o", str(tmp_path / "kit")]) == 0
    return tmp_path / "kit", asked


def path_of(kit, *options, there=""):
    """PYTHONPATH as the kit has it, for this Python without its site."""
    command = [sys.executable, "-S", *options, str(kit / "path.py")]
    done = subprocess.run(command, env={"PYTHONPATH": there}, capture_output=True, text=True, check=True)
    return [place.removeprefix(f"{kit}/") for place in done.stdout.strip().split(os.pathsep)]


def test_every_package_is_there_for_every_python_without_its_sources(kit):
    folder, asked = kit
    assert (folder / "lib/odc_engine/__init__.py").exists()
    for name in gpu_kit.PURE:
        assert (folder / "any" / name / f"{name}.dist-info/METADATA").exists()
    for tag in ("py311", "py312"):
        assert {path.name for path in (folder / tag).iterdir()} == set(gpu_kit.COMPILED)
    assert not list(folder.rglob("*.cpp"))
    pythons = {words[words.index("--python-version") + 1] for words in asked if words[0] == "download"}
    assert pythons == {"3.11", "3.12"}


def test_packages_are_those_of_this_environment_where_it_has_them():
    assert gpu_kit.pinned("simpy") == f"simpy=={version('simpy')}"
    assert gpu_kit.pinned("no-such-package") == "no-such-package"


def test_a_python_that_lacks_all_is_given_all_of_its_own_version_and_what_is_there_counts(kit, tmp_path):
    tag = f"py{sys.version_info.major}{sys.version_info.minor}"
    compiled = [f"{tag}/{name}" for name in gpu_kit.COMPILED] if tag in ("py311", "py312") else []
    pure = [f"any/{name}" for name in gpu_kit.PURE]
    assert path_of(kit[0], "-E") == ["lib", "docs/studies", *pure, *compiled]
    (tmp_path / "there/simpy").mkdir(parents=True)
    (tmp_path / "there/simpy/__init__.py").write_text("")
    places = path_of(kit[0], there=str(tmp_path / "there"))
    assert "any/simpy" not in places
    assert places[-1] == str(tmp_path / "there")  # what was told stays told


def test_a_kit_that_is_too_large_or_a_registry_that_does_not_answer_is_told(tmp_path, monkeypatch, capsys):
    with monkeypatch.context() as patched:
        patched.setattr(gpu_kit, "build", lambda kit: (kit.mkdir(), (kit / "much").write_bytes(b"x" * 2048)))
        patched.setattr(gpu_kit, "LARGEST", 1024)
        assert gpu_kit.main(["-o", str(tmp_path / "kit")]) == 1
    assert "more than" in capsys.readouterr().err
    monkeypatch.setattr(gpu_kit.subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 1))
    with pytest.raises(InputError):
        gpu_kit.pip("download", "simpy")
    assert gpu_kit.main(["-o", str(tmp_path / "other")]) == 2
    assert capsys.readouterr().err.startswith("gpu-kit: pip wheel")


def test_programs_of_the_kit_need_no_other(kit):
    """What they and the tests import of each other is there."""
    programs, helpers = (kit[0] / folder for folder in ("docs/studies", "tests/helpers"))
    there = {path.stem for folder in (programs, helpers) for path in folder.glob("*.py")}
    every = {path.stem for folder in (gpu_kit.ours.HERE, gpu_kit.ours.HELPERS) for path in folder.glob("*.py")}
    for path in kit[0].rglob("*.py"):
        names = {name.partition(".")[0] for _, name in Source(path.name, path.read_text()).imports}
        assert names & every <= there, path


@pytest.mark.slow
def test_its_tests_are_found_by_its_own_settings(kit):
    """Without what the checkout's tests load."""
    folder = kit[0]
    shutil.rmtree(folder / "lib")
    options = ["-c", str(folder / "pytest.ini"), "--collect-only", "-q", "-p", "no:dash", str(folder / "tests/gpu")]
    env = os.environ | {"PYTHONPATH": str(gpu_kit.ours.ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
    assert "tests/gpu/test_gpu_kernels.py::test_rates" in done.stdout


@pytest.mark.slow
@pytest.mark.skipif(not BARE, reason="ODC_BARE_PYTHON names no Python with torch for CUDA and nothing of ours")
def test_a_bare_python_climbs_the_ladder_without_a_network(tmp_path):
    """On a CPU that stands in, from the real kit."""
    folder = tmp_path / "kit"
    assert gpu_kit.main(["-o", str(folder)]) == 0
    assert gpu_kit.size(folder) <= 64 << 20
    alone = ALONE if shutil.which("unshare") and not subprocess.run([*ALONE, "true"], check=False).returncode else []
    env = {"PATH": os.environ["PATH"], "PYTHON": BARE, "https_proxy": "http://127.0.0.1:9", "HOME": str(tmp_path)}
    up = "ip link set lo up 2>/dev/null; " if alone else ""
    command = [*alone, "sh", "-c", f"{up} exec {folder}/run --cpu --out home"]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    outcomes = [line["outcome"] for line in own_process.recorded(tmp_path / "home").values()]
    assert outcomes.count("passed") >= 20

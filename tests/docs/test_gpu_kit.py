"""The kit for a GPU without a network: what is in it, that a bare Python runs it, and what comes home from it."""

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import version
from itertools import product
from pathlib import Path

import gpu_kit
import gpu_record as record
import own_process
import pytest
from gpu_record import BEGIN, END, WHOLE
from own_process import RECORD
from scripts import ROOT
from sources import Source

from odcsim import measurements, profile
from odcsim.errors import InputError
from odcsim.measurements import Compute, Measurements

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
    assert gpu_kit.pinned("simpy") == f"simpy=={version('simpy')}"
    pythons = {words[words.index("--python-version") + 1] for words in asked if words[0] == "download"}
    assert pythons == {"3.11", "3.12"}


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
    command = [sys.executable, "-m", "pytest", *options]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
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


# What came home from it, as a page, as docs/gpu.md's record and as a profile. The record's lines are made up.

MODEL = "qwen2.5-0.5b"
TIMES = "threads: times of steps"


def line(place, case, outcome="passed", device="cuda", **more):
    told = {"test": f"tests/gpu/test_gpu_{place}.py::test_{case}", "outcome": outcome, "device": device}
    told |= {"date": "2026-11-22 10:00:00", "seconds": 12.0, "clocks": ["345 MHz", "1980 MHz"], "figures": {}}
    return told | more


def home(folder, *lines):
    folder.mkdir()
    (folder / RECORD).write_text("\n".join(map(json.dumps, lines)))
    return folder


def of(*lines):
    return {each["test"]: each for each in lines}


def test_every_test_asks_a_question_of_its_own_which_the_page_of_gpus_has():
    asked = record.questions()
    assert len(set(asked.values())) == len(asked) >= 25
    assert all(text.endswith(("?", ".")) for text in asked.values())
    kept = (ROOT / "docs/gpu.md").read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    assert dict(re.findall(r"^\| (.+?) \| (.+?) \| ", kept, re.MULTILINE)[2:]) == asked


def test_a_page_has_every_test_and_what_failed_with_its_last_words():
    threads = "threads", "times_of_steps[collective]"
    lines = [
        line("machine", "what_is_here", figures={"gpu": "NVIDIA H200"}),
        line("threads", "times_of_steps[on-demand]"),
        line(*threads, "failed", why="assert 1 == 2", said="Traceback\nKeyError: 7"),
        line("kernels", "sanitizer[memcheck]", "skipped", why="compute-sanitizer is not installed"),
    ]
    page = record.page(of(*lines))
    told = {"machine: what is here": "passed | 12 s", "kernels: sanitizer": "cannot run there | 12 s"}
    told[TIMES] = "**1 of 2 failed** | 24 s"
    for name, question in record.questions().items():
        assert f"| {name} | {question} | {told.get(name, 'not run | ')} |" in page
    assert f"## {TIMES}" in page
    assert "## kernels: rates" not in page
    for words in ('gpu: "NVIDIA H200"', "KeyError: 7", "assert 1 == 2", "before: 345 MHz; after: 1980 MHz"):
        assert words in page


def test_the_command_writes_page_record_and_profile(tmp_path):
    """Of several folders the later ones count; the measurements are of a whole GPU, not fitted there."""
    every = product(("forward", "backward", "head"), (1000, 2000, 4000, 8000, 16000))
    rows = [Compute(k, n, float(n * n), 1e-7 * n + 1e-12 * n**2 + 1e-3, samples=1) for k, n in every]
    case, hardware = "times_of_steps[deferred]", "all SMs of NVIDIA H200"
    first = home(tmp_path / "first", line("threads", case, "failed"), line("peers", "gloo"))
    folder = home(tmp_path / "home", line("threads", case))
    measured = Measurements(MODEL, "h200", tuple(rows), hardware=hardware, dtype="bfloat16")
    measurements.write(measured, folder / WHOLE)
    page, gpu_page = tmp_path / "page.md", tmp_path / "gpu.md"
    gpu_page.write_text(f"before\n\n{BEGIN}\nstale\n{END}\n\nafter\n")
    where = ["-o", str(page), "--gpu-page", str(gpu_page), "--profiles", str(tmp_path)]
    assert record.main([str(first), str(folder), *where]) == 0
    told = gpu_page.read_text()
    assert re.fullmatch(r"before\n\n(?!.*stale).*\n\nafter\n", told, re.DOTALL)
    assert f"| {TIMES} | {record.questions()[TIMES]} | passed, 2026-11-22 |" in told
    assert told.count("not yet") == len(record.questions()) - 2
    known = profile.read(tmp_path / f"{MODEL}-h200.json")
    assert (known.gpu, known.fidelity) == ("h200", "calibrated")
    assert f"## {TIMES}" in page.read_text()


def test_a_cpu_that_stood_in_is_no_run_on_a_gpu_and_without_a_record_pages_stay_as_they_are(tmp_path, capsys):
    told = record.with_record(f"{BEGIN}{END}", of(line("threads", "times_of_steps[deferred]", device="cpu")))
    assert told.count("not yet") == len(record.questions())
    assert record.main([str(tmp_path), "-o", str(tmp_path / "page.md")]) == 2
    assert not (tmp_path / "page.md").exists()
    assert "no record" in capsys.readouterr().err
    with pytest.raises(InputError):
        record.with_record("text", {})

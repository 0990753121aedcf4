"""What came home from a GPU, as a page, as docs/gpu.md's record and as a profile. The record's lines are made up."""

import json
import re

import gpu_record as record
import pytest
from gpu_record import BEGIN, END, WHOLE
from own_process import RECORD
from scripts import ROOT

from odcsim import profile
from odcsim.errors import InputError
from odcsim.fitting import measurements
from odcsim.fitting.measurements import Compute, Measurements

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
    told = {
        "machine: what is here": "passed | 12 s",
        TIMES: "**1 of 2 failed** | 24 s",
        "kernels: sanitizer": "cannot run there | 12 s",
    }
    for name, question in record.questions().items():
        assert f"| {name} | {question} | {told.get(name, 'not run | ')} |" in page
    assert f"## {TIMES}" in page
    assert "## kernels: rates" not in page
    for words in ('gpu: "NVIDIA H200"', "KeyError: 7", "assert 1 == 2", "before: 345 MHz; after: 1980 MHz"):
        assert words in page


def test_the_command_writes_page_record_and_profile(tmp_path):
    """Of several folders the later ones count; the measurements are of a whole GPU, not fitted there."""
    rows = [
        Compute(kind, tokens, float(tokens * tokens), 1e-7 * tokens + 1e-12 * tokens**2 + 1e-3, samples=1)
        for kind in ("forward", "backward", "head")
        for tokens in (1000, 2000, 4000, 8000, 16000)
    ]
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

"""What came home of a ladder, as a page, as docs/gpu.md's record and as a profile. Probes' answers are made up."""

import json

import gpu_record as record
import pytest
from gpu_record import BEGIN, END
from ladder import pack

from odc_engine.doctor.probes.base import ABSENT, FAILED, OK
from odc_engine.doctor.probes.every import PROBES
from odc_engine.measuring.probes import MEASURED, MODEL, WHOLE
from odcsim import profile
from odcsim.errors import InputError
from odcsim.fitting import measurements
from odcsim.fitting.measurements import Compute, Measurements


def entry(name, status=OK, device="cuda", again=None, **data):
    probe = next(probe for probe in PROBES if probe.name == name)
    told = {"name": name, "rung": probe.rung, "asks": probe.asks, "status": status, "found": f"{name} was asked"}
    clocks = {"before": {"sm_mhz": 345.0}, "after": {"sm_mhz": 1980.0}}
    told |= {"date": "2026-11-22 10:00:00", "seconds": 12.0, "clocks": clocks, "xids": [], "data": data}
    return told | {"device": device} | ({"again": again} if again else {})


@pytest.fixture
def files(tmp_path):
    """What probes leave."""
    (tmp_path / "profile.json").write_text("{}")
    return tmp_path


def home(folder, files, *entries):
    """As a ladder brings it."""
    folder.mkdir()
    for rung in {entry["rung"] for entry in entries}:
        mine = [entry for entry in entries if entry["rung"] == rung]
        told = {"schema": 1, "rung": rung, "device": mine[0]["device"], "left_out": [], "answers": mine}
        (folder / f"answers-{rung}.json").write_text(json.dumps(told))
    pack([path for path in files.iterdir() if path.is_file()], files, folder / "logs-2.tar.gz")
    return folder


def test_a_page_has_every_probe_and_what_failed_with_its_last_words(files):
    answers = {
        "versions": entry("versions", smi="NVIDIA H200, 580"),
        "kernels": entry("kernels", reached=False),
        "times": entry(
            "times", FAILED, said="Traceback\nKeyError: 7", again={"status": OK, "found": "fine when waited for"}
        ),
        "beside": entry("beside", ABSENT),
        "whole": entry("whole", lines=["seconds of a layer"]),
    }
    page = record.page(answers, files)
    for probe in PROBES:
        told = {"kernels": "**not reached**", "times": "**not reached**", "beside": "cannot be asked there"}
        told |= dict.fromkeys(("versions", "whole"), "reached")
        assert f"| `{probe.name}` | {probe.asks} | {told.get(probe.name, 'not asked')} |" in page
    assert "NVIDIA H200, 580" in page
    assert "KeyError: 7" in page
    assert "Again, with every kernel waited for: ok, fine when waited for" in page
    assert "sm_mhz 345; after sm_mhz 1980" in page
    assert "seconds of a layer" in page


def test_a_probe_that_was_under_way_is_no_passed_one(files):
    told = {"name": "times", "rung": 1, "asks": "?", "status": "under way", "date": "today", "data": {}}
    page = record.page({"times": told | {"device": "cuda"}}, files)
    assert "## times" in page
    assert f"| `times` | {next(p.asks for p in PROBES if p.name == 'times')} | not asked |" in page


def test_of_several_folders_the_later_ones_count(tmp_path, files):
    one = home(tmp_path / "one", files, entry("times", FAILED), entry("kernels"))
    other = home(tmp_path / "other", files, entry("times"))
    into = tmp_path / "into"
    into.mkdir()
    answers = record.home([one, other], into)
    assert {name: told["status"] for name, told in answers.items()} == {"times": OK, "kernels": OK}
    assert (into / "profile.json").exists()


@pytest.fixture
def measured(files):
    """Of a whole GPU, not fitted there."""
    rows = [
        Compute(kind, tokens, float(tokens * tokens), 1e-7 * tokens + 1e-12 * tokens**2 + 1e-3, samples=1)
        for kind in ("forward", "backward", "head")
        for tokens in (1000, 2000, 4000, 8000, 16000)
    ]
    found = Measurements(MODEL, "h200", tuple(rows), hardware="all SMs of NVIDIA H200", dtype="bfloat16")
    measurements.write(found, files / (WHOLE + MEASURED))
    return files


def test_the_command_writes_page_record_and_profile(tmp_path, measured):
    folder = home(tmp_path / "home", measured, entry("times"), entry("whole"))
    page, gpu_page = tmp_path / "page.md", tmp_path / "gpu.md"
    gpu_page.write_text(f"before\n\n{BEGIN}\nstale\n{END}\n\nafter\n")
    asked = [str(folder), "-o", str(page), "--gpu-page", str(gpu_page), "--profiles", str(tmp_path)]
    assert record.main(asked) == 0
    told = gpu_page.read_text()
    assert told.startswith("before")
    assert told.endswith("after\n")
    assert "stale" not in told
    assert f"| `times` | {next(p.asks for p in PROBES if p.name == 'times')} | reached, 2026-11-22 |" in told
    assert told.count("not yet") == len(PROBES) - 2
    known = profile.read(tmp_path / f"{MODEL}-h200.json")
    assert (known.gpu, known.fidelity) == ("h200", "calibrated")
    assert "## times" in page.read_text()


def test_a_rehearsal_on_a_cpu_is_no_run_on_a_gpu(tmp_path, files):
    folder = home(tmp_path / "home", files, entry("times", device="cpu"))
    into = tmp_path / "into"
    into.mkdir()
    assert "not yet" in record.lines(record.home([folder], into))
    assert "reached" not in record.lines(record.home([folder], into))


def test_folders_without_answers_leave_the_pages_as_they_are(tmp_path, capsys):
    assert record.main([str(tmp_path), "-o", str(tmp_path / "page.md")]) == 2
    assert not (tmp_path / "page.md").exists()
    assert "no answers" in capsys.readouterr().err


def test_a_page_without_a_place_for_it_is_refused():
    with pytest.raises(InputError, match="no place for the record"):
        record.with_record("text", {})


def test_rates_of_kernels_stand_beside_the_copys():
    rates = {"copy": 4e12, "gather": 3.2e12, "write": 4e12, "add": 1e12}
    [told] = record._kernels({"data": {"bytes_per_second_of_16_MB": rates, "right": {}}}, None)
    assert "| 16 MB | 4000 (100%) | 3200 (80%) | 4000 (100%) | 1000 (25%) |" in told


def test_what_multiplications_and_transfers_cost_each_other_is_told():
    way = {"gemms": 1.25, "moves": 3.0}
    text = record._beside({"data": {"copy": {"same priority": way, "higher priority": way, "hidden": 0.9}}}, None)[0]
    assert text.count("| 1.25 | 3.00 |") == 2

"""`odc_engine doctor --gpu-selftest`, and the list of probes that it, `pytest -m gpu` and the ladder ask."""

import importlib
import json
from dataclasses import replace

import pytest

from odc_engine.cli import main
from odc_engine.doctor.probes import driver, selftest
from odc_engine.doctor.probes.__main__ import main as one
from odc_engine.doctor.probes.asking import Result
from odc_engine.doctor.probes.base import ABSENT, FAILED, OK, Answer
from odc_engine.doctor.probes.every import HOLDING, PROBES
from odc_engine.doctor.probes.needs import NEEDS
from odc_engine.doctor.probes.selftest import gpu, status

no_gpu = pytest.mark.skipif(bool(gpu()[0]), reason="there is a GPU here")
CONTRACT = "versions kernels symmetric legacy-ipc nvshmem-host gloo nccl".split()


@no_gpu
def test_without_a_gpu_every_probe_says_so_in_a_line(capsys):
    assert main(["doctor", "--gpu-selftest"]) == selftest.NO_GPU == 3
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines] == [["--", probe.name] for probe in HOLDING]
    assert all("no GPU: " in line for line in lines)


@no_gpu
def test_json_tells_the_same(capsys):
    assert selftest.selftest(True, HOLDING[:2]) == 3
    printed = json.loads(capsys.readouterr().out)
    assert (printed["schema"], printed["gpu"]) == (1, None)
    assert [each["name"] for each in printed["probes"]] == [probe.name for probe in HOLDING[:2]]
    for each in printed["probes"]:
        assert set(each) == {"name", "asks", "seconds", "status", "found", "data"}
        assert each["status"] == ABSENT


def test_probes_have_a_name_a_function_and_needs_that_can_be_looked_for():
    assert len({probe.name for probe in PROBES}) == len(PROBES)
    assert {probe.name for probe in HOLDING} >= set(CONTRACT)
    for probe in PROBES:
        module, _, function = probe.call.partition(":")
        assert callable(getattr(importlib.import_module(module), function))
        assert set(probe.needs) <= set(NEEDS)
        assert probe.needs[0] == "a GPU"  # first what is told without loading anything


class Library:
    """NVIDIA's driver, which keeps what it found in its environment when it was started."""

    def __getattr__(self, name):
        return lambda *_: 100 if name == "cuInit" and self.started() else 0

    def started(self):
        import os

        self.found = os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS")
        return True


def test_queues_are_settled_before_the_driver_starts(monkeypatch):
    library = Library()
    monkeypatch.delenv("CUDA_DEVICE_MAX_CONNECTIONS", raising=False)
    monkeypatch.setattr(driver.ctypes, "CDLL", lambda _: library)
    assert gpu() == (None, "no GPU: the driver sees none")
    assert library.found == "32"


@pytest.mark.parametrize(
    ("answers", "gpu", "code"),
    [
        ([OK, OK], "a GPU", 0),
        ([OK, ABSENT], "a GPU", 0),
        ([OK, FAILED, ABSENT], "a GPU", 1),
        ([ABSENT, ABSENT], None, 3),
        ([ABSENT, FAILED], None, 1),
    ],
)
def test_the_exit_status_tells_how_it_went(answers, gpu, code):
    assert status([Result(PROBES[0], Answer(each, ""), 0.0) for each in answers], gpu) == code


def test_a_single_probe_runs_by_itself(capsys):
    with pytest.raises(SystemExit) as left:
        one(["--help"])
    assert left.value.code == 0
    usage = capsys.readouterr().out
    assert all(probe.name in usage and probe.asks in usage for probe in PROBES)
    assert one(["versions"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["status"] in (OK, ABSENT)
    with pytest.raises(SystemExit):
        one(["nothing"])
    assert "no probe is called 'nothing'" in capsys.readouterr().err


def test_a_cpu_stands_in_where_it_can(capsys):
    assert one(["versions", "--device", "cpu"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["status"] == OK
    assert not next(probe for probe in PROBES if probe.name == "nccl").stands_in
    assert one(["nccl", "--device", "cpu"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["status"] == ABSENT


def test_what_a_failed_probe_has_said_is_told_with_its_answer():
    said = "\n".join(str(i) for i in range(50))
    result = Result(replace(PROBES[0]), Answer(FAILED, "?", {"said": said}), 0.0)
    assert selftest.words(result) == [f"    {i}" for i in range(38, 50)]

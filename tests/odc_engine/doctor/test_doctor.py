"""What `odc_engine doctor` says of this machine, and of one that lacks something."""

import importlib.metadata
import json
import os
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
from torch.distributed.fsdp import FSDPModule

import odc_engine
from odc_engine.cli import main
from odc_engine.doctor import abilities as doctor
from odc_engine.doctor import connections
from odc_engine.doctor.environment import LIBRARIES, MEANS
from odc_engine.doctor.finding import Finding
from odc_engine.fsdp import inside
from odc_engine.fsdp.before_213 import SETTER


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch):
    """Whatever is set where the tests run."""
    for name in [name for name in os.environ if name in MEANS or name.startswith(LIBRARIES)]:
        monkeypatch.delenv(name)


def found(name: str) -> doctor.Finding:
    return next(f for f in doctor.examine() if f.name == name)


def test_everything_has_a_name_of_its_own_and_advice_where_it_can_be_helped():
    findings = doctor.examine()
    assert len({(f.area, f.name) for f in findings}) == len(findings)
    assert {"machine", "package", "ability"} <= {f.area for f in findings}
    for finding in findings:
        assert finding.found
        assert not (finding.ok and finding.advice)
        assert finding.ok or finding.advice or finding.area == "package"
    every = {f.name: f for f in findings}
    assert all(every[name].found == importlib.metadata.version(name) for name in ("numpy", "odcsim"))
    assert every["FSDP2 hooks"].ok
    if sys.platform == "linux":
        assert all(every[name].ok for name in ("memfd", "OFD locks", "pidfd"))
        assert "C compiler" not in every


def test_no_descriptor_is_left_open():
    opened = Path("/proc/self/fd")
    if not opened.exists():
        pytest.skip("needs /proc")
    doctor.examine()  # whatever is imported keeps its own files open
    before = len(list(opened.iterdir()))
    doctor.examine()
    assert len(list(opened.iterdir())) == before


def test_without_torch_it_says_how_to_get_it(monkeypatch, capsys):
    for name in [name for name in sys.modules if name.partition(".")[0] == "torch"]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, "torch", None)
    assert main(["doctor"]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if "FSDP2 hooks" in line)
    assert line.split()[0] == "no"
    assert line.endswith("-> pip install 'odcsim[engine]' -c constraints.txt")


def test_a_torch_that_lacks_a_setter_is_named(monkeypatch):
    monkeypatch.setattr(inside, "HOOKS", (*inside.HOOKS, "set_something_of_tomorrow"))
    finding = found("FSDP2 hooks")
    assert not finding.ok
    assert "has no attribute 'set_something_of_tomorrow'" in finding.found
    assert finding.advice == "pip install 'torch>=2.11,<2.16'"


def test_every_setter_that_is_used_is_looked_for():
    """What the engine calls on a unit is what doctor looks for, but for the one that it can do without."""
    text = "".join(path.read_text() for path in Path(odc_engine.__file__).parent.glob("**/*.py"))
    setters = [name for name in dir(FSDPModule) if name.startswith("set_")]
    used = {name for name in setters if f"fsdp.{name}(" in text} - {SETTER}
    assert used == set(inside.HOOKS)


@pytest.mark.parametrize(("missing", "name"), [("memfd_create", "memfd"), ("pidfd_open", "pidfd")])
def test_another_system_lacks_abilities(monkeypatch, missing, name):
    monkeypatch.delattr(os, missing, raising=False)
    assert not found(name).ok
    assert found(name).advice


def test_json_and_text_tell_the_same(capsys):
    assert main(["doctor", "--json"]) == main(["doctor"]) == 0
    out, err = capsys.readouterr()
    printed, end = json.JSONDecoder().raw_decode(out)
    assert printed["schema"] == 1
    assert all(finding["name"] in out[end:] for finding in printed["findings"])
    assert not err


def line_of(text: str, name: str) -> str:
    return next(line for line in text.splitlines() if line.split()[1:2] == [name])


def test_what_shall_run_and_cannot_is_an_exit_status(capsys):
    assert main(["doctor", "--backend", "shm"]) == 0
    assert main(["doctor", "--backend", "nvshmem"]) == main(["doctor", "--backend", "torch", "--device", "cuda"]) == 1
    assert line_of(capsys.readouterr().out, "nvshmem").split()[0] == "no"
    assert main(["doctor", "--device", "cuda"]) == 2


@pytest.mark.parametrize("name", ["NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME"])
def test_an_interface_that_is_not_there_is_one(monkeypatch, capsys, name):
    monkeypatch.setenv(name, "eth77")
    assert main(["doctor"]) == 1
    assert line_of(capsys.readouterr().out, name).split()[0] == "no"
    monkeypatch.setenv(name, "lo")
    assert main(["doctor"]) == 0


def with_gpus(monkeypatch, count, each=85_000_000_000, links=(), cards=True):
    """A machine that has so many, as torch and the driver would say."""
    monkeypatch.setattr(doctor, "gpus", lambda: (["H100"] * count, each))
    monkeypatch.setattr(connections, "between_gpus", lambda _gpus: list(links))
    has = Finding("network", connections.CARDS, "something", cards, "" if cards else "load")
    monkeypatch.setattr(connections, "between_machines", lambda: [has])
    monkeypatch.setattr(doctor, "_own_address", lambda: "10.0.0.7")
    for row in [row for row in doctor.backends.ROWS if row.device == "cuda"]:
        monkeypatch.setattr(type(row), "lacks", lambda _row: "")


def test_what_triton_needs_is_looked_for_where_there_is_a_gpu(monkeypatch):
    with_gpus(monkeypatch, 1)
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(doctor.shutil, "which", lambda _: None)
    monkeypatch.setattr(doctor.sysconfig, "get_paths", lambda _: {"include": "/nowhere"})
    assert "/nowhere/Python.h" in found("C compiler").advice


def test_a_model_that_fits_in_no_way_or_gpus_that_lack_a_way_are_one(monkeypatch, capsys):
    """More devices than GPUs mean several machines."""

    def told(words):
        code = main(["doctor", *words.split()])
        return code, capsys.readouterr().out

    code, out = told("--devices 16 --model qwen3-8b")  # told of though nothing is set
    assert code == 0
    memory = out.partition("memory:")[2]
    assert [line_of(memory, name).split()[0] for name in ("locked", "slots", "hybrid")] == ["ok"] * 3
    for cards in (True, False):
        with_gpus(monkeypatch, 8, cards=cards)
        code, out = told("--backend nvshmem --devices 8")
        assert (code, "InfiniBand" in out) == (0, False)
        code, out = told("--backend nvshmem --devices 16")
        assert (code, "InfiniBand" in out) == (not cards, True)
    assert [told(f"--devices 16 --model {name}")[0] for name in ("qwen3-8b", "qwen3-32b")] == [0, 1]
    torn = Finding("link", connections.REACH, "2 of 2 ways lack it", False, "use NCCL")
    with_gpus(monkeypatch, 2, links=[torn])
    code, out = told("--backend cuda_ipc")
    assert code == 1
    assert torn.found in line_of(out, "cuda_ipc")
    assert told("--backend nvshmem")[0] == told("--backend torch --device cuda")[0] == 0


def test_a_machine_s_name_may_mean_an_address_of_either_kind(monkeypatch):
    for known in (("fd00::7", 0, 0, 0), ("10.0.0.7", 0)):
        monkeypatch.setattr(doctor.socket, "getaddrinfo", lambda *_, known=known: [(None, None, None, "", known)])
        assert doctor._own_address() == known[0]
    monkeypatch.setattr(doctor.socket, "getaddrinfo", Mock(side_effect=doctor.socket.gaierror))
    assert doctor._own_address() == ""

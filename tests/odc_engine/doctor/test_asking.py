"""A probe in a process of its own, whatever it does to that process, and whatever becomes of who asks."""

import ctypes
import os
import signal
import subprocess
import sys
import time

import probing
import pytest
from probing import gone, probe

from odc_engine.doctor.probes import machine
from odc_engine.doctor.probes.asking import SLOWLY, ask
from odc_engine.doctor.probes.base import ABSENT, CPU, FAILED, OK, Answer, Hearing, noted


@pytest.fixture
def folder(tmp_path, monkeypatch):
    probing.written(tmp_path, monkeypatch)
    return tmp_path


def test_an_answer_comes_with_the_figures_that_were_noted(folder):
    result = ask(probe("good"), folder, CPU)
    assert result.answer == Answer(OK, "fine", {"rate": 1.5, "device": CPU})
    assert {path.name for path in folder.glob("good.*")} == {"good.answer", "good.figures", "good.log"}
    assert "{'rate': 1.5}" in (folder / "good.log").read_text()


def test_what_is_missing_is_no_failure(folder):
    assert ask(probe("absent"), folder).answer == Answer(ABSENT, "nothing to ask")
    answer = ask(probe("good", stands_in=False), folder, CPU).answer
    assert (answer.status, answer.found) == (ABSENT, "no GPU: a CPU cannot stand in for it here")


def test_what_a_failed_probe_has_said_is_told_with_its_answer(folder):
    answer = ask(probe("wrong"), folder).answer
    assert (answer.status, answer.found) == (FAILED, "ValueError: first second")
    assert answer.data["said"].rstrip().endswith("ValueError: first\n  second")


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("exits", "ended with exit status 255 and no answer; its last words: nvshmem: no transport"),
        ("crashes", "ended by SIGSEGV and no answer, in crashes (written_probes.py:"),
    ],
)
def test_a_probe_that_ends_its_process_is_a_failure_with_its_last_words(folder, how, told, tmp_path, monkeypatch):
    (temporary := tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    assert ask(probe(how), folder).answer.found.startswith(told)
    assert not list(temporary.iterdir())  # and nothing is left of it


@pytest.mark.parametrize("how", ["hangs", pytest.param("hangs_deaf", marks=pytest.mark.slow)])
def test_a_hang_leaves_where_it_was_and_nothing_else(folder, how):
    start = time.monotonic()
    result = ask(probe(how), folder, seconds=6.0)  # Python takes two to start on a busy machine
    assert time.monotonic() - start < 30
    assert result.answer.found.startswith(f"no answer within 6 s, in {how} (written_probes.py:")
    log = (folder / f"{how}.log").read_text()
    assert "Timeout (0:00:0" in log  # before time is up
    assert "Fatal Python error: Aborted" in log  # and when it is
    assert 'written_probes.py", line ' in log
    assert f" in {how}" in log
    if how == "hangs":
        assert result.answer.data["half"] == [1, 2]
        assert gone(int(next(line for line in log.splitlines() if line.isdecimal())))


def test_nothing_of_a_probe_is_left_behind(folder):
    assert gone(int(ask(probe("leaves"), folder).answer.found))


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux: the guard is told of its parent's end")
def test_who_asks_is_killed_and_its_probe_with_all_it_started_goes_along(folder):
    code = f"""
import sys
from pathlib import Path
sys.path.insert(0, {os.path.dirname(probing.__file__)!r})
from probing import probe
from odc_engine.doctor.probes.asking import ask
ask(probe("hangs"), Path({str(folder)!r}))
"""  # noqa: PTH120
    asker = subprocess.Popen([sys.executable, "-c", code])
    log, pids = folder / "hangs.log", []
    while not pids:
        assert asker.poll() is None
        time.sleep(0.02)
        pids = [line for line in log.read_text().splitlines() if line.isdecimal()] if log.exists() else []
    asker.send_signal(signal.SIGKILL)
    asker.wait()
    assert gone(int(pids[0]))


def test_a_probe_finds_what_must_be_set_before_cuda_is_asked(folder, monkeypatch):
    monkeypatch.delenv("CUDA_DEVICE_MAX_CONNECTIONS", raising=False)
    (folder / "written_probes.py").write_text(
        "import os\nfrom odc_engine.doctor.probes.base import Answer\n"
        "def good(hearing): return Answer('ok', os.environ['CUDA_DEVICE_MAX_CONNECTIONS'])\n"
    )
    assert ask(probe("good"), folder).answer.found == "32"


def test_slowly_every_kernel_is_waited_for(folder):
    assert ask(probe("blocking"), folder).answer.status == FAILED
    again = ask(probe("blocking"), folder, env=SLOWLY, name="blocking-again")
    assert again.answer.status == OK
    assert (folder / "blocking-again.log").exists()


def test_a_line_of_figures_that_was_cut_off_takes_no_other_along(tmp_path):
    hearing = Hearing(tmp_path, name="x")
    hearing.note(one=1)
    hearing.note(two=2)
    with (tmp_path / "x.figures").open("a") as file:
        file.write('{"three": ')
    assert noted(tmp_path, "x") == {"one": 1, "two": 2}


def test_errors_of_a_gpu_are_found_in_the_kernel_s_log(tmp_path):
    log = tmp_path / "kmsg"
    log.write_text("6,1,0,-;eth0 up\n3,2,5,-;NVRM: Xid (PCI:0000:00:05): 31, pid=7, MMU Fault\n")
    assert machine.xids(log) == ["3,2,5,-;NVRM: Xid (PCI:0000:00:05): 31, pid=7, MMU Fault"]
    assert machine.xids(tmp_path / "nothing") is None


class Nvml:
    """A GPU at 1980 MHz that draws 300 W, and does not tell its temperature."""

    def __getattr__(self, name):
        return {"nvmlDeviceGetClockInfo": self.clock, "nvmlDeviceGetPowerUsage": self.power}.get(
            name, lambda *_: int(name == "nvmlDeviceGetTemperature")
        )

    def clock(self, _gpu, kind, value):
        ctypes.cast(value, ctypes.POINTER(ctypes.c_uint))[0] = 1980 if kind == 1 else 3201
        return 0

    def power(self, _gpu, value):
        ctypes.cast(value, ctypes.POINTER(ctypes.c_uint))[0] = 300_000
        return 0


def test_clocks_are_told_as_they_are_found(monkeypatch):
    machine._nvml.cache_clear()
    monkeypatch.setattr(machine.ctypes, "CDLL", lambda _: Nvml())
    told = machine.clocks()
    machine._nvml.cache_clear()
    assert told == {"sm_mhz": 1980, "memory_mhz": 3201, "watts": 300.0, "held_back": 0}

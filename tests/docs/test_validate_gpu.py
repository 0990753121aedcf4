"""The ladder, of probes that answer, fail and hang: what is asked in which order, and what comes home of it."""

import json
import subprocess
import sys
import tarfile
import time
from dataclasses import replace
from pathlib import Path

import ladder
import ours
import probing
import pytest
import validate_gpu
from ladder import Ladder, pack
from probing import probe
from scripts import ROOT

from odc_engine.doctor.probes.asking import Result
from odc_engine.doctor.probes.base import ABSENT, CPU, FAILED, OK, Absent, Answer
from odc_engine.doctor.probes.driver import Gpu
from odc_engine.doctor.probes.every import PROBES


@pytest.fixture
def folder(tmp_path, monkeypatch):
    probing.written(tmp_path, monkeypatch)
    for name in ("keep", "out"):
        (tmp_path / name).mkdir()
    return tmp_path


def ladder_of(folder, *probes, **more):
    heard = []
    return Ladder(folder / "keep", folder / "out", probes, CPU, say=heard.append, **more), heard


def answers(folder, rung=1):
    told = json.loads((folder / "out" / f"answers-{rung}.json").read_text())
    return {entry["name"]: entry for entry in told["answers"]}


@pytest.mark.slow
def test_probes_that_fail_or_hang_stop_no_other_and_all_comes_home(folder):
    wrong, hangs, exits = probe("wrong"), probe("hangs", 2.0), probe("exits")
    climber, heard = ladder_of(folder, wrong, hangs, exits, probe("absent"), probe("good"))
    climber.climb(1)
    home = answers(folder)
    assert {name: entry["status"] for name, entry in home.items()} == {
        "wrong": FAILED,
        "hangs": FAILED,
        "exits": FAILED,
        "absent": ABSENT,
        "good": OK,
    }
    assert home["hangs"]["data"]["half"] == [1, 2]
    assert "Fatal Python error: Aborted" in home["hangs"]["data"]["said"]
    assert [line.split()[:2] for line in heard[:5]] == [
        ["NO", "wrong"],
        ["NO", "hangs"],
        ["NO", "exits"],
        ["--", "absent"],
        ["ok", "good"],
    ]
    assert sorted(path.name for path in (folder / "out").iterdir()) == ["answers-1.json", "logs-1.tar.gz"]
    with tarfile.open(folder / "out" / "logs-1.tar.gz") as archive:
        names = archive.getnames()
    assert {"wrong.log", "hangs.log", "hangs.figures", "wrong-again.log", "good.answer"} <= set(names)
    assert not climber.good()


def test_what_failed_is_asked_again_slowly_after_all_others(folder):
    climber, heard = ladder_of(folder, probe("blocking"), probe("good"))
    climber.climb(1)
    assert ["blocking" in heard[0], "good" in heard[1], "again, slowly: ok" in heard[2]] == [True] * 3
    entry = answers(folder)["blocking"]
    assert (entry["status"], entry["again"]["status"]) == (FAILED, OK)
    assert not climber.good()


def test_the_same_command_goes_on_with_what_is_missing_then_with_what_failed(folder):
    probes = [probe("wrong"), probe("good"), probe("absent"), probe("leaves", name="last")]
    first, _ = ladder_of(folder, *probes[:3])
    first.climb(1)
    second, heard = ladder_of(folder, *probes)
    second.climb(1)
    assert [line.split()[1] for line in heard] == ["last", "absent", "wrong", "slowly:"][: len(heard)]
    assert [line.split()[0] for line in heard[:3]] == ["ok", "--", "NO"]


def test_a_rung_is_asked_alone_and_keeps_its_own_files(folder):
    climber, heard = ladder_of(folder, probe("good"), probe("leaves", rung=3))
    climber.climb(3)
    assert [line.split()[1] for line in heard] == ["leaves"]
    (folder / "keep" / "measured.npz").write_text("of the second rung")
    climber.climb(1)
    assert list(answers(folder)) == ["good"]
    with tarfile.open(folder / "out" / "logs-1.tar.gz") as archive:
        assert set(archive.getnames()) == {"good.answer", "good.figures", "good.log"}
    assert climber._files(2) == [folder / "keep" / "measured.npz"]


def test_what_is_too_long_for_the_time_that_is_left_waits_for_the_next_time(folder, monkeypatch):
    monkeypatch.setattr(ladder, "BUDGET", 30.0)
    climber, heard = ladder_of(folder, probe("good", 100.0, "long"), probe("good", 50.0, "shorter"), probe("good"))
    climber.climb(1)
    assert [line.split()[1] for line in heard] == ["long", "shorter", "good"]
    assert list(answers(folder)) == ["shorter", "good"]  # half of what it may take is enough to begin
    assert answers(folder)["shorter"]["limit"] <= 28.0


def killed(folder, *, after):
    """The ladder's process is killed once this is in the answers that have come home."""
    code = f"""
import sys
from pathlib import Path
sys.path[:0] = {[str(ROOT / "docs/studies"), str(ROOT / "tests/helpers")]!r}
from odc_engine.doctor.probes import apart
apart.BEAT = 0.1
from ladder import Ladder
from probing import probe
Ladder(Path({str(folder / "keep")!r}), Path({str(folder / "out")!r}), [probe("good"), probe("hangs")], "cpu").climb(1)
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL)
    path = folder / "out" / "answers-1.json"
    while not (path.exists() and after in path.read_text()):
        assert process.poll() is None
        time.sleep(0.02)
    process.kill()
    process.wait()


def test_a_ladder_that_is_killed_has_brought_home_what_was_known_and_leaves_no_probe(folder):
    killed(folder, after='"half"')
    home = answers(folder)
    assert home["good"]["status"] == OK
    assert (home["hangs"]["status"], home["hangs"]["data"]) == (ladder.UNDER_WAY, {"half": [1, 2]})
    pid = next(line for line in (folder / "keep/hangs.log").read_text().splitlines() if line.isdecimal())
    assert probing.gone(int(pid))
    climber, heard = ladder_of(folder, probe("good"), probe("hangs", 1.0))
    climber.climb(1)
    assert [line.split()[:2] for line in heard[:1]] == [["NO", "hangs"]]


def test_one_probe_is_asked_anew_whatever_is_known(folder):
    climber, heard = ladder_of(folder, probe("good"))
    climber.climb(1)
    climber.climb(1)
    climber.one(probe("good"))
    assert len(heard) == 2
    assert climber.good()


def test_a_bound_that_is_not_reached_is_not_asked_again_slowly(folder, monkeypatch):
    def ask(probe, *_, **__):
        asked.append(probe.name)
        return Result(probe, Answer(OK, "too slow", {"reached": False}), 1.0)

    asked = []
    monkeypatch.setattr(ladder.asking, "ask", ask)
    climber, _ = ladder_of(folder, probe("good", measures=True))
    climber.climb(1)
    assert asked == ["good"]
    assert not climber.good()


def test_what_comes_home_fits_whatever_was_left(tmp_path, monkeypatch):
    import numpy as np

    monkeypatch.setattr(ladder, "LARGEST", 3 << 20)
    (tmp_path / "small").write_text("words")
    for name in ("one", "two", "three"):
        (tmp_path / name).write_bytes(np.random.default_rng(0).bytes(1_200_000))
    left_out = pack([tmp_path / name for name in ("one", "two", "three", "small")], tmp_path, tmp_path / "all.tar.gz")
    assert len(left_out) >= 1
    assert "small" not in left_out
    assert (tmp_path / "all.tar.gz").stat().st_size < 3 << 20


def test_limits_of_a_rung_leave_its_command_under_nine_minutes():
    for rung in (rungs := {each.rung for each in PROBES}):
        mine = [each.seconds + ladder.OVERHEAD for each in PROBES if each.rung == rung]
        assert sum(mine) <= ladder.BUDGET == 540
    assert 2 * len(rungs) <= 8  # files that come home


@pytest.fixture
def here(monkeypatch, tmp_path):
    """A machine with a GPU, where every probe passes but one that cannot be asked."""
    asked = []

    def ask(probe, *_, **__):
        asked.append(probe.name)
        return Result(probe, Answer(ABSENT if probe.name == "nvshmem" else OK, ""), 1.0)

    monkeypatch.setattr(validate_gpu, "first_gpu", lambda: Gpu("a GPU", 132, (9, 0), (13, 0), 1))
    monkeypatch.setattr(ladder.asking, "ask", ask)
    monkeypatch.chdir(tmp_path)
    return asked, tmp_path / "out"


def names(*rungs):
    return [probe.name for probe in PROBES if probe.rung in rungs]


@pytest.mark.parametrize(("rungs", "asked"), [((), (1, 2, 3)), ((2,), (2,)), ((1, 3), (1, 3))])
def test_the_command_asks_the_rungs_that_it_is_told(here, rungs, asked):
    assert validate_gpu.main([*map(str, rungs), "--out", str(here[1])]) == 0
    assert here[0] == names(*asked)
    assert Path("validation-gpu.partial/entries.json").exists()
    assert len(list(here[1].iterdir())) == 2 * len(asked)


def test_several_gpus_are_asked_more(here, monkeypatch):
    monkeypatch.setattr(validate_gpu, "first_gpu", lambda: Gpu("a GPU", 132, (9, 0), (13, 0), 8))
    assert validate_gpu.main(["--out", str(here[1])]) == 0
    assert here[0] == names(1, 2, 3, 4)


def test_one_probe_alone(here):
    assert validate_gpu.main(["--only", "times", "--out", str(here[1])]) == 0
    assert here[0] == ["times"]


def test_without_a_gpu_it_says_so_in_a_line_and_leaves_nothing(monkeypatch, tmp_path, capsys):
    def nothing():
        raise Absent("no GPU: the driver sees none")

    monkeypatch.setattr(validate_gpu, "first_gpu", nothing)
    assert validate_gpu.main(["--out", str(tmp_path / "out")]) == 3
    assert capsys.readouterr().err == "validate-gpu: no GPU: the driver sees none\n"
    assert not list(tmp_path.iterdir())


def test_it_finds_what_it_needs_from_any_folder(tmp_path):
    """And so do the processes of its probes."""
    script, out = Path(validate_gpu.__file__), tmp_path / "out"
    bare = sys._base_executable  # where nothing of ours is installed
    command = [bare, script, "--cpu", "--only", "versions", "--out", out]
    packages = str(Path(__import__("numpy").__file__).parents[1])
    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": packages}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "stands in" in done.stdout


def test_places_are_named_once():
    assert len(ours.PLACES) == len(set(ours.PLACES)) == 2


@pytest.mark.slow
def test_a_probe_of_another_pace_has_as_much_less_time(folder):
    climber, heard = ladder_of(folder, probe("hangs", 20.0), pace=0.1)
    start = time.monotonic()
    climber.climb(1)
    assert time.monotonic() - start < 15
    assert "no answer within 2 s" in heard[0]


def test_entries_say_what_a_reader_needs():
    result = Result(replace(PROBES[0]), Answer(OK, "x", {}), 1.0, 30.0, "2026-11-22 10:00:00", ({"sm_mhz": 1.0}, {}))
    assert set(ladder.as_entry(result)) == {
        "name",
        "asks",
        "seconds",
        "status",
        "found",
        "data",
        "rung",
        "limit",
        "date",
        "clocks",
        "xids",
    }

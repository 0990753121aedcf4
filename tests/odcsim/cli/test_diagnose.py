"""`odcsim diagnose`: of files that the other commands wrote, what it prints, writes and refuses."""

import json
import shutil
from pathlib import Path

import pytest

import odcsim
from odcsim.cli import main

FIXTURES = Path(__file__).parents[1] / "doors" / "fixtures"
RUN = ("timeline-lb-micro-collective.npz", "schedules-lb-micro.jsonl")
OF_LOG = {"trace": "lengths.csv", "model": "qwen2.5-1.5b", "gpu": "a100", "devices": 4, "minibatch": 2}
LOGGED = "".join(f"{step},{2 + step % 5 / 10},{9_900 + 300 * (step % 5)}\n" for step in range(1, 30))


NOTHING = (b"", b"{", b"\x00\xff" * 40, b'{"traceEvents": []}', b"[]", b'{"format": "odcsim watch"}')
HERE = pytest.mark.usefixtures("folder")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """With the run of a schedule, a log of steps and lengths."""
    for name in (*RUN, "lengths.csv"):
        shutil.copy(FIXTURES / name, tmp_path / name)
    (tmp_path / "log.csv").write_text(f"step,seconds,tokens\n{LOGGED}")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def flags(words):
    return [word for name, value in words.items() for word in (f"--{name}", str(value))]


def printed(capsys, *words):
    assert main(["diagnose", *words]) == 0
    return capsys.readouterr().out


def refused(capsys, *words):
    assert main(["diagnose", *words]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    [line] = told.err.splitlines()
    return line


@HERE
def test_python_says_what_the_command_says(capsys):
    words = {"model": "r1-distill-qwen-1.5b", "gpu": "a100", "price": 1.3, "trainer": "trl"}
    told = json.loads(printed(capsys, *RUN, *flags(words), "--json"))
    found = odcsim.diagnose(RUN, **words)
    assert json.loads(json.dumps(found.as_json())) == told
    lines = printed(capsys, *RUN, *flags(words)).splitlines()
    assert [line for line in found.sentences()[:2] if line not in lines] == []
    assert repr(found).startswith("<Diagnosis: a simulated run")


@HERE
@pytest.mark.parametrize(
    "words",
    [{"balancer": "native"}, {"trainer": "trl", "price": 2.0}, {"sync": "deferred", "balancer": "sorted-slice"}],
)
def test_a_log_of_steps_needs_the_flags_of_its_run(capsys, words):
    told = json.loads(printed(capsys, "log.csv", *flags(OF_LOG | words), "--json"))
    assert json.loads(json.dumps(odcsim.diagnose("log.csv", **OF_LOG | words).as_json())) == told
    assert told["run"]["seen"] == []
    assert sum(part["seconds"] for part in told["parts"]) == pytest.approx(told["seconds"])
    assert any("simulated" in line for line in told["cannot"])


def test_a_folder_is_as_good_as_its_files(folder, capsys):
    (folder / "run").mkdir()
    for name in RUN:
        (folder / name).rename(folder / "run" / name)
    by_folder = json.loads(printed(capsys, "run", "--json"))
    by_files = json.loads(printed(capsys, *(f"run/{name}" for name in RUN), "--json"))
    assert by_folder.pop("inputs") != by_files.pop("inputs")
    assert by_folder == by_files


@HERE
def test_parts_sum_to_the_step(capsys):
    told = json.loads(printed(capsys, *RUN, "--json"))
    assert sum(part["seconds"] for part in told["parts"]) == pytest.approx(told["seconds"])
    assert sum(part["share"] for part in told["parts"]) == pytest.approx(1)
    assert told["schema"] == 1


def test_flags_takes_its_rows(folder, capsys):
    words = ["--model", "r1-distill-qwen-1.5b", "--gpu", "a100", "--trainer", "trl"]
    (folder / "answer.json").write_text(printed(capsys, *RUN, *words, "--json"))
    told = json.loads((folder / "answer.json").read_text())
    for way in told["ways"]:
        assert main(["flags", "trl", "answer.json", "--row", str(way["row"])]) in (0, 2)
        said = capsys.readouterr()
        assert "--" in said.out or "trl does not run" in said.err
    own = [way for way in told["ways"] if way["setting"]]
    for way in own:
        assert main(["flags", "trl", "answer.json", "--row", str(way["row"])]) == 0
        lines = [line for line in capsys.readouterr().out.splitlines() if not line.startswith("#")]
        assert way["setting"].split() == " ".join(lines).split()


@HERE
def test_a_run_ships_by_its_name(capsys):
    """Four ranks of uneven lengths: that is what it says, from any folder."""
    told = json.loads(printed(capsys, "slow-step", "--json"))
    assert (told["inputs"]["sources"], told["run"]["ranks"]) == (["slow-step"], 4)
    waiting = {part["name"]: part["share"] for part in told["parts"] if part["name"] not in ("compute", "transfer")}
    assert max(waiting, key=waiting.get) == "lengths"
    assert told["ways"][-1]["gain"] > 1.5
    Path("slow-step").mkdir()
    assert "slow-step: nothing that tells of a run" in refused(capsys, "slow-step")


def test_python_takes_a_diagnosis_for_its_flags():
    told = odcsim.diagnose("slow-step", trainer="trl", model="qwen2.5-1.5b", gpu="h100")
    [number] = [n for n, one in enumerate(told.changes.ways, 1) if one.sync == "on-demand"]
    assert odcsim.flags("trl", told, row=number).settings["--max_length"] == 8192


def test_a_page_is_written_and_nothing_of_the_users(folder, capsys):
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert "page with pictures: page.html" in printed(capsys, *RUN, "--html", "page.html")
    assert (folder / "page.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert "is what this command reads" in refused(capsys, *RUN, "--html", RUN[0])
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "page.html"} == before
    (folder / "run").mkdir()
    assert "is inside run" in refused(capsys, "run", "--html", "run/page.html")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["none.json"], "none.json: no such file"),
        ([RUN[0]], f"{RUN[0]}: needs the schedule file that it ran"),
        ([*RUN, "--devices", "4"], "--devices given for timeline-lb-micro-collective.npz; leave it out"),
        ([*RUN, "--trace", "longalign"], "--trace given for"),
        ([*RUN, "--model", "qwen9"], "unknown model 'qwen9'"),
        ([*RUN, "--trainer", "trel"], "unknown trainer 'trel'"),
        ([*RUN, "--sync", "deferred"], "--sync given for"),
        (
            ["log.csv"],
            "log.csv: a log of steps, which does not say what a step held; add --trace, --model, --gpu, --devices",
        ),
        (["log.csv", "--lengths", "lengths.csv"], "log.csv: --lengths given for a log of steps"),
        ([*RUN, "log.csv"], "a timeline (timeline-lb-micro-collective.npz) and a log of steps (log.csv)"),
    ],
)
@HERE
def test_bad_input_is_one_line(capsys, words, line):
    assert line in refused(capsys, *words)


@pytest.mark.parametrize("content", NOTHING)
@pytest.mark.parametrize("name", ["odd.json", "odd.jsonl", "odd.npz", "odd.parquet"])
def test_a_file_that_is_nothing_is_one_line(folder, capsys, content, name):
    (folder / name).write_bytes(content)
    assert name in refused(capsys, name)


def test_a_step_that_took_no_time_is_one_line(folder, capsys):
    about = '{"format": "odcsim watch", "version": 1, "rank": 0, "ranks": 1}'
    held = '{"lengths": [5], "begin": 0, "seconds": 0, "waited": 0}'
    step = f'{{"step": 1, "begin": 0, "seconds": 0, "microbatches": [{held}]}}'
    (folder / "watch-rank0.jsonl").write_text(f"{about}\n{step}\n")
    assert "watch-rank0.jsonl:2: seconds is 0; expected a number from 1e-09" in refused(capsys, "watch-rank0.jsonl")


def test_a_truncated_timeline_is_one_line(folder, capsys):
    whole = (folder / RUN[0]).read_bytes()
    (folder / RUN[0]).write_bytes(whole[: len(whole) // 2])
    assert RUN[0] in refused(capsys, *RUN)


@HERE
def test_progress_is_for_terminals_and_results_for_pipes(capsys):
    assert main(["diagnose", *RUN]) == 0
    assert capsys.readouterr().err == ""


@HERE
def test_python_refuses_what_it_does_not_know():
    with pytest.raises(
        TypeError, match=r"diagnose\(\) got an unexpected keyword argument 'pric': did you mean 'price'"
    ):
        odcsim.diagnose(RUN, pric=2)
    with pytest.raises(TypeError, match="it decides that itself, or has no use for it"):
        odcsim.diagnose(RUN, epochs=2)
    with pytest.raises(odcsim.InputError, match="sources holds 3"):
        odcsim.diagnose([3])
    with pytest.raises(odcsim.InputError, match="nothing to diagnose"):
        odcsim.diagnose([])

"""`odcsim diagnose`: the command, Python, a folder and `flags` agree; nothing else is read as a run."""

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
OF_RUN = {"model": "r1-distill-qwen-1.5b", "gpu": "a100", "price": 1.3, "trainer": "trl"}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """With the run of a schedule, a log of steps and lengths."""
    for name in (*RUN, "lengths.csv"):
        shutil.copy(FIXTURES / name, tmp_path / name)
    (tmp_path / "log.csv").write_text(f"step,seconds,tokens\n{LOGGED}")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def flags(words):
    return [word for name, value in words.items() for word in (f"--{name}", str(value))]


def told(capsys, *words):
    capsys.readouterr()
    assert main(["diagnose", *words, "--json"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return json.loads(out)


def refused(capsys, *words):
    assert main(["diagnose", *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    [line] = err.splitlines()
    return line


@pytest.mark.parametrize(
    ("sources", "words"),
    [(RUN, OF_RUN), (("log.csv",), OF_LOG | {"balancer": "native"}),
     (("log.csv",), OF_LOG | {"trainer": "trl", "price": 2.0}),
     (("log.csv",), OF_LOG | {"sync": "deferred", "balancer": "sorted-slice"})],
)  # fmt: skip
def test_python_says_what_the_command_says_and_parts_sum_to_the_step(sources, words, capsys):
    found = told(capsys, *sources, *flags(words))
    assert json.loads(json.dumps(odcsim.diagnose(sources, **words).as_json())) == found
    assert sum(part["seconds"] for part in found["parts"]) == pytest.approx(found["seconds"])
    assert sum(part["share"] for part in found["parts"]) == pytest.approx(1)
    assert (found["run"]["seen"] == []) == (sources == ("log.csv",))


def test_a_folder_is_as_good_as_its_files(folder, capsys):
    (folder / "run").mkdir()
    for name in RUN:
        (folder / name).rename(folder / "run" / name)
    by_folder, by_files = told(capsys, "run"), told(capsys, *(f"run/{name}" for name in RUN))
    assert by_folder.pop("inputs") != by_files.pop("inputs")
    assert by_folder == by_files
    assert "is inside run" in refused(capsys, "run", "--html", "run/page.html")


def test_flags_takes_its_rows(folder, capsys):
    (folder / "answer.json").write_text(json.dumps(found := told(capsys, *RUN, *flags(OF_RUN))))
    for way in found["ways"]:
        capsys.readouterr()
        assert main(["flags", "trl", "answer.json", "--row", str(way["row"])]) == (0 if way["setting"] else 2)
        if way["setting"]:
            lines = [line for line in capsys.readouterr().out.splitlines() if not line.startswith("#")]
            assert way["setting"].split() == " ".join(lines).split()
    answer = odcsim.diagnose("slow-step", trainer="trl", model="qwen2.5-1.5b", gpu="h100")
    [number] = [n for n, one in enumerate(answer.changes.ways, 1) if one.sync == "on-demand"]
    assert odcsim.flags("trl", answer, row=number).settings["--max_length"] == 8192


def test_a_run_ships_by_its_name(capsys):
    """Four ranks of uneven lengths, from any folder."""
    found = told(capsys, "slow-step")
    waiting = {part["name"]: part["share"] for part in found["parts"] if part["name"] not in ("compute", "transfer")}
    assert max(waiting, key=waiting.get) == "lengths"
    assert found["run"]["ranks"] == 4
    assert found["ways"][-1]["gain"] > 1.5
    Path("slow-step").mkdir()
    refused(capsys, "slow-step")


WRONG = [
    "none.json", "timeline-lb-micro-collective.npz", "RUN --devices 4", "RUN --trace longalign", "RUN --model qwen9",
    "RUN --trainer trel", "RUN --sync deferred", "RUN --html schedules-lb-micro.jsonl", "RUN log.csv", "log.csv",
    "log.csv --lengths lengths.csv",
]  # fmt: skip
ODD = [b"", b"{", b"\x00\xff" * 40, b'{"traceEvents": []}', b"[]", b'{"format": "odcsim watch"}']


def test_bad_input_is_one_line_and_nothing_is_written(folder, capsys):
    """Also of a file that is nothing, and of a step that took no time."""
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    for words in WRONG:
        refused(capsys, *words.replace("RUN", " ".join(RUN)).split())
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    for name in ("odd.json", "odd.jsonl", "odd.npz", "odd.parquet"):
        for content in (*ODD, before[RUN[0]][: len(before[RUN[0]]) // 2]):
            (folder / name).write_bytes(content)
            assert name in refused(capsys, name)
    about = '{"format": "odcsim watch", "version": 1, "rank": 0, "ranks": 1}'
    held = '{"lengths": [5], "begin": 0, "seconds": 0, "waited": 0}'
    step = f'{{"step": 1, "begin": 0, "seconds": 0, "microbatches": [{held}]}}'
    (folder / "watch-rank0.jsonl").write_text(f"{about}\n{step}\n")
    assert "watch-rank0.jsonl:2" in refused(capsys, "watch-rank0.jsonl")


def test_python_refuses_what_it_does_not_know():
    for wrong in ({"pric": 2}, {"epochs": 2}):
        with pytest.raises(TypeError):
            odcsim.diagnose(RUN, **wrong)
    for sources in ([3], []):
        with pytest.raises(odcsim.InputError):
            odcsim.diagnose(sources)

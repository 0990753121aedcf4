"""Which reader a file gets is told by what is in it, whatever it is called."""

import gzip
import json
import shutil
from pathlib import Path

import pipelines
import pytest
from watches import ran, step, wrote

from odcsim import schedule
from odcsim import timeline as timelines
from odcsim.errors import InputError
from odcsim.observed import run_files
from odcsim.observed.run_files import read, sources_of

pytest.importorskip("pyarrow")
FIXTURES = Path(__file__).with_name("fixtures")
TRACE = {"schemaVersion": 1, "traceEvents": [{"ph": "X", "cat": "kernel", "name": "gemm", "ts": 1, "dur": 2}]}
STEPS = {"log_history": [{"step": 1, "train_runtime": 1.0}]}
SECONDS = "step,seconds,tokens\n1,2.5,100\n"


@pytest.fixture
def folder(tmp_path):
    """One of each kind, under names that tell nothing."""
    pipelines.write(tmp_path / "a", pipelines.made(steps=1).rows())
    (tmp_path / "b").write_text(json.dumps(TRACE))
    (tmp_path / "c").write_bytes(gzip.compress(json.dumps(TRACE, indent=1).encode()))
    (tmp_path / "d.json").write_text(json.dumps(STEPS))
    (tmp_path / "e").write_text(SECONDS)
    wrote(tmp_path, [[step(0, [ran(0, 1, [5])])]])[0].rename(tmp_path / "f")
    header = schedule.Header("lb-mini", "m", "w", 8, 1)
    schedule.write(schedule.ScheduleFile(header, (schedule.Schedule.of((5,), (((0,),),)),)), tmp_path / "g")
    return tmp_path


KINDS = [("a", run_files.OPERATIONS), ("b", run_files.TRACES), ("bc", run_files.TRACES), (["d.json"], run_files.STEPS)]
KINDS += [
    ("bcf", run_files.TRACES),
    ("e", run_files.STEPS),
    ("f", run_files.WATCHED),
]  # the watcher has the lengths of traces


def test_content_tells_what_files_are(folder):
    found = [(names, sources_of([str(folder / name) for name in names]).kind) for names, _ in KINDS]
    assert found == KINDS


REFUSED = [  # files, and those of them that the error names
    ("ab", "ab"), ("ef", "ef"), ("ea", "ea"), ("af", "af"),  # two kinds at once
    (["a", "again"], ["again"]),  # two files of what is one
    (["zz"], ["zz"]), (["none"], ["none"]), ("g", "g"), ("e", "e"), ([], []),
]  # fmt: skip


@pytest.mark.parametrize(("names", "words"), REFUSED)
def test_what_is_no_one_run_with_ranks_is_refused_by_name(folder, names, words):
    shutil.copy(folder / "a", folder / "again")
    (folder / "none").mkdir()
    with pytest.raises(InputError) as refused:
        read([str(folder / name) for name in names])
    assert all(str(folder / name) in str(refused.value) for name in words)


def test_what_is_cut_short_is_refused_in_one_line(tmp_path):
    path = tmp_path / "x.json"
    for content in (b"PAR1 and no more", gzip.compress(json.dumps(TRACE).encode() * 100, mtime=0)[:60]):
        path.write_bytes(content)
        with pytest.raises(InputError) as refused:
            read([str(path)])
        assert str(path) in str(refused.value)
        assert "\n" not in str(refused.value)
        assert refused.value.fix


def test_a_folder_has_its_files_and_those_one_below(tmp_path):
    (tmp_path / "here/below/deep").mkdir(parents=True)
    paths = wrote(tmp_path, [[step(0, [ran(0, 1, [5])])] for _ in range(3)])
    for path, place in zip(paths, ("here", "here/below", "here/below/deep"), strict=True):
        shutil.move(path, tmp_path / place)
    (tmp_path / "here/notes.md").write_text("a run\n")
    (tmp_path / "here/.hidden").write_text("x")
    run = read([str(tmp_path / "here")])
    assert run.seen == (0, 1)
    assert ["2" in lack for lack in run.lacks] == [True, False]
    assert "notes.md" in run.lacks[1]


def test_logs_of_steps_in_a_folder_give_way_to_what_tells_more(folder):
    (folder / "run").mkdir()
    shutil.copy(folder / "d.json", folder / "run")
    shutil.copy(folder / "e", folder / "run/README")
    assert sources_of([str(folder / "run")]).paths == (folder / "run/d.json",)
    shutil.copy(folder / "a", folder / "run")
    sources = sources_of([str(folder / "run")])
    assert (sources.kind, {path.name for path in sources.left}) == (run_files.OPERATIONS, {"README", "d.json"})


def test_lengths_are_a_table_or_what_the_watcher_wrote(folder, tmp_path):
    path, table, ranks = str(folder / "a"), tmp_path / "lengths.csv", pipelines.made(steps=1)
    rows = [f"{ranks.rank(replica, stage)},0,{m + 1}" for replica in range(8) for stage in (0, 1) for m in range(6)]
    table.write_text("\n".join(["device,step,lengths", *rows]))
    run = read([path], lengths=str(table))
    assert {m.lengths for m in run.steps[0].microbatches if m.number == 3} == {(4,)}
    assert run.rests == "lengths"
    (folder / "none").mkdir()
    for wrong in ("f", "none"):  # of one microbatch, and a folder without any
        with pytest.raises(InputError):
            read([path], lengths=str(folder / wrong))
    (folder / "seen").mkdir()
    wrote(folder / "seen", [[step(0, [ran(m, 1, [m + 1]) for m in range(6)])] for _ in range(run.ranks)])
    assert held_by(read([path], lengths=str(folder / "seen"))) == held_by(run)


def test_a_timeline_needs_the_schedule_that_it_ran(timeline, schedules, tmp_path):
    ran, plan = tmp_path / "ran", tmp_path / "plan"
    timelines.write(timeline, ran)
    with pytest.raises(InputError):
        read([str(ran)])
    schedule.write(schedules, plan)
    assert sources_of([str(plan), str(ran)]).kind == sources_of([str(tmp_path)]).kind == run_files.TIMELINE
    assert len(read([str(tmp_path)]).steps) == len(schedules.schedules)


def held_by(run):
    return {(m.rank, s.number, m.number): m.lengths for s in run.steps for m in s.microbatches}


def test_traces_get_their_lengths_from_a_table_or_from_the_watcher_beside_them(tmp_path, tmp_path_factory):
    """From the watcher where steps are the same; the traces tell no lengths."""
    for rank in (0, 1):
        shutil.copy(FIXTURES / f"lengths-rank{rank}.json.gz", tmp_path)
    bare = read([str(tmp_path)])
    ranks = json.loads((FIXTURES / "truth.json").read_text())["runs"]["lengths"]["ranks"]
    steps = [step.number for step in bare.steps]
    every = {(rank, n): held for rank, of in enumerate(ranks) for n, held in zip(steps, of["lengths"], strict=True)}
    table = tmp_path_factory.mktemp("beside") / "lengths.csv"
    rows = [f"{rank},{n},{length}" for (rank, n), held in every.items() for length in held]
    table.write_text("\n".join(["device,step,lengths", *rows]))
    known = read([str(tmp_path)], lengths=str(table))
    assert held_by(known) == {(rank, n, i): (one,) for (rank, n), held in every.items() for i, one in enumerate(held)}
    assert (bare.rests, known.rests, len(bare.lacks), len(known.lacks)) == ("seconds", "lengths", 2, 2)
    table.write_text("\n".join(["device,step,lengths", *rows[:-1]]))
    with pytest.raises(InputError):
        read([str(tmp_path)], lengths=str(table))
    watched = [[], []]
    for (rank, n), held in every.items():
        watched[rank].append(step(n, [ran(i, 1, [length]) for i, length in enumerate(held)]))
    wrote(tmp_path, watched)
    assert held_by(read([str(tmp_path)])) == held_by(known)
    wrote(tmp_path, [rows[1:] for rows in watched])
    run = read([str(tmp_path)])
    assert (run.rests, len(run.lacks)) == ("seconds", 3)

"""What people have from commit f87f5be is read as it was: files and links come to what they came to then.

Seconds that are estimated are today's, and so are intervals of a profile that is asked about other devices:
`figures.json` and `sweep.csv` hold those, in the places of those of then. `python test_old_files.py` writes
`figures.json` anew.
"""

import contextlib
import csv
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from math import isclose
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pytest
from ways_in import said, told

import odcsim
from odcsim.cli import main
from odcsim.show.explore.controls import read_link
from odcsim.show.explore.reply import reply

FIXTURES = Path(__file__).parent / "fixtures"
ASKED = "--model tiny --devices 4 --minibatch 2 --minibatches 2 --max-tokens 4096 --price 2 --epochs 3".split()
LINKS = {
    "usual": "",
    "whole": "?trace=aime-rl&model=qwen3-1.7b&gpu=h100&devices=4&minibatch=2&room=2.0&network=100&price=2.5"
    "&minibatches=4",
    "nodes": "?trace=longalign&model=qwen2.5-1.5b&gpu=a100&devices=16&minibatch=2&room=1.25&network=50&minibatches=4",
    "coarse": "?devices=2&minibatch=1&room=1.0&price=0&minibatches=4&gpu=l40s&model=qwen2.5-0.5b&trace=azure-chat",
    "chosen": "?devices=4&trace=deepcoder-rl&minibatches=8",
}
FULL = ("--sharding", "full")  # what was the default between nodes then
# Rows by what they are of, so that another order or one row more is not a difference of all.
OF = [("balancer", "sync"), ("sync + balancer",), ("row",), ("gpu", "devices"), ("label",), ("name",)]
KEPT = ("makespan_seconds", "idle", "speedup_low", "gpu_hours_high", "dollars", "memory_bytes")
TABLE = (
    "balancer", "sync", "devices", "minibatch", "global_batch", "max_tokens", "recompute", "selective", "seed",
    "fidelity", "makespan_seconds", "idle", "idle_parts.push", "speedup", "dollars_low", "memory_bytes", "run.steps",
    "run.seconds", "refused",
)  # fmt: skip

FITTED = ("steps.csv", "measurements.json")  # least squares, whose last digits a library's build and a processor decide
NOTHING = 1e-15  # seconds: what they give to what takes none; of what takes some a square takes least, 1e-8
# Of a whole run: they know now which minibatches were drawn, and not the uncertainty of the seconds alone.
RUN_BETWEEN = {f"run.{name}_{end}" for name in ("seconds", "gpu_hours", "dollars") for end in ("low", "high")}
COUNTED = ("memory_bytes", "memory_terms")  # an estimate of memory counts more, and otherwise, since
THEN = json.loads((FIXTURES / "figures.json").read_text(encoding="utf-8"))
LINES = "lengths.csv"  # of which lines were kept, as they were printed


def figures() -> dict[str, Any]:
    """By file; of those that are there. In the folder of the files, so that none names a path of a machine."""
    found = {p.name: read(p.name) for pattern, read in READERS for p in sorted(FIXTURES.glob(pattern))}
    return json.loads(json.dumps({**found, **{f"link {name}": of_link(link) for name, link in LINKS.items()}}))


def answer(argv: list[str]) -> dict[str, Any]:
    found = told(argv)
    assert not isinstance(found.get("refused"), str), (argv, found)
    return found


def written(argv: list[str], name: str) -> str:
    """What a command writes into a file."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, name)
        _, refused = said([*argv, str(out)])
        assert not refused, (argv, refused)
        return out.read_text(encoding="utf-8")


def rows(found: dict[str, Any]) -> dict[str, Any]:
    """Of each row the figures that decide, and of the whole run the first row's seconds."""
    few = {f"{row['balancer']} under {row['sync']}": {name: row.get(name) for name in KEPT} for row in found["rows"]}
    run = {row["row"]: row["seconds"] for row in found.get("run", {"rows": []})["rows"][:1]}
    return {"fidelity": found.get("fidelity"), "rows": few, "run": run}


def compared(*words: str) -> dict[str, Any]:
    return rows(answer(["compare", "lengths.csv", *ASKED, *FULL, *words]))


def of_schedules(name: str) -> Any:
    """Run under each sync that can."""
    free = any(balancer in name for balancer in ("lb-mini", "lb-robust", "pool"))
    with tempfile.TemporaryDirectory() as folder:
        out = str(Path(folder, "timeline.npz"))
        words = ["simulate", name, "--gpu", "a100", "-o", out, "--force"]
        syncs = ("on-demand",) if free else ("collective", "deferred", "on-demand")
        simulated = {sync: answer([*words, "--sync", sync]) for sync in syncs}
    names = ("makespan_seconds", "idle", "idle_parts", "minibatches")
    return {sync: {name: row[name] for name in names} for sync, row in simulated.items()}


def of_timeline(name: str) -> Any:
    """Its steps, and as the prediction of itself."""
    steps = list(csv.reader(written(["report", name, "--steps"], "steps.csv").splitlines()))
    held = answer(["validate", name, name])
    few = "digest sync balancer model devices recompute idle_predicted idle_measured queue_entries".split()
    return {"steps": steps, **{name: held[name] for name in few}}


def of_recipe(name: str) -> Any:
    then = () if "sharding" in (FIXTURES / name).read_text(encoding="utf-8") else FULL
    words = [*ASKED, *then, "--gpu", "a100", "--cluster", "cluster.toml", "--recipe", name]
    found = answer(["compare", "lengths.csv", *words])
    return {"inputs": {n: v for n, v in found["inputs"].items() if n not in ("trace_origin", "cost")}, **rows(found)}


def fitted(*words: str) -> Any:
    """The profile, and what it makes of lengths."""
    profile = json.loads(written(["fit", *words, "-o"], "fitted.json"))
    names = "forward backward head embed overhead microbatch timings".split()
    return {name: profile[name] for name in names if name in profile}


def of_lengths(name: str) -> Any:
    out, refused = said(["trace", "info", name])
    assert not refused, refused
    return by_label(out.splitlines())


def by_label(lines: list[str]) -> dict[str, str]:
    """Of lines of statistics the first figure, and of bars the share of samples."""
    parts = [re.split(r"\s{2,}|\s*[\u2588-\u258f]+\s*", line.strip()) for line in lines if line.strip()]
    return {label: rest[0] for label, *rest in parts if rest}


def of_link(search: str) -> Any:
    found = read_link(search)
    told = reply(found)
    few = rows({"rows": [row.as_json() for row in told.comparison.rows]})
    return {"link": found.search, "command": found.command, "verdict": told.verdict, **few}


def flat(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Each value by its path."""
    if isinstance(value, Mapping):
        for name, of in value.items():
            yield from flat(f"{path}/{name}", of)
    elif isinstance(value, list):
        for number, of in enumerate(value):
            known = of if isinstance(of, Mapping) else {}
            names = next((names for names in OF if all(name in known for name in names)), ())
            yield from flat(f"{path}/{' under '.join(str(known[name]) for name in names) or number}", of)
    else:
        yield path, value


def alike(one: Any, other: Any, far: float = 1e-12, nothing: float = 0.0) -> bool:
    """Numbers of CSV, too, which are texts. `nothing`: how far off a number that should be zero may be."""
    try:
        return isclose(float(one), float(other), rel_tol=far, abs_tol=nothing)
    except (TypeError, ValueError):
        return bool(one == other)


READERS = (
    ("schedules-*.jsonl", of_schedules), ("timeline-*.npz", of_timeline), ("recipe-*.toml", of_recipe),
    ("profile.json", lambda name: compared("--profile", name)),
    ("cluster*.toml", lambda name: compared("--gpu", "a100", "--cluster", name)),
    ("gpu*.toml", lambda name: compared("--gpu", name)),
    ("grid.toml", lambda name: [{n: row[n] for n in TABLE if n in row} for row in odcsim.sweep(name)]),
    ("steps.csv", lambda name: fitted(name, "--model", "r1-distill-qwen-1.5b", "--gpu", "a100")),
    ("measurements.json", fitted), ("lengths.csv", of_lengths),
)  # fmt: skip


@pytest.fixture(scope="module")
def now() -> dict:
    with contextlib.chdir(FIXTURES):
        return figures()


@pytest.mark.parametrize("name", THEN)
def test_it_comes_to_the_same_figures(name, now):
    assert set(now) == set(THEN)
    then = by_label(THEN[name]) if name == LINES else THEN[name]
    then, ours = (dict(flat(name, figures)) for figures in (then, now[name]))
    if f"{name}/verdict" in then:  # in other words, with all that it said and what to run
        ours_said, said = ours[f"{name}/verdict"], then.pop(f"{name}/verdict")
        assert ours_said.partition(":")[0] == said.partition(":")[0]
        assert set(re.findall(r"[\d.]*\d", said)) <= set(re.findall(r"[\d.]*\d", ours_said))
    assert set(then) <= set(ours)  # new figures may be told; none may be gone
    far = (1e-6, NOTHING) if name in FITTED else (1e-12,)
    then = {path: value for path, value in then.items() if not counted(path.split("/"))}
    assert not {p: (value, ours[p]) for p, value in then.items() if not alike(meant(p, value), meant(p, ours[p]), *far)}


def counted(parts):
    """Whether it is what an estimate of memory came to."""
    return any(part.partition(".")[0] in COUNTED for part in parts)


def meant(path, value):
    """A link says the same in any order, a refusal by the word of a grid or of a flag, a command how many epochs; and
    links and commands say the sharding that was usual then."""
    if path.endswith("/command"):
        return str(value).replace(" --epochs 1", "").replace(" --sharding full", "")
    if path.endswith("/link"):
        return sorted({*parse_qsl(str(value).removeprefix("?"))} - {("sharding", "full")})
    if path.endswith("/sharding"):  # of what cannot run nobody chose it
        return str(value).replace("usual", "full")
    return str(value).replace("--global-batch", "global_batch") if path.endswith("/refused") else value


def test_a_sweep_that_was_begun_then_ends_with_the_same_table(tmp_path, monkeypatch):
    """Points with keys of then are worked on again; what was kept of them is in nobody's way."""
    for name in ("grid.toml", "lengths.csv", "partial.points"):
        shutil.copy(FIXTURES / name, tmp_path)
    (tmp_path / "partial.points").rename(tmp_path / "sweep.csv.points")
    monkeypatch.chdir(tmp_path)
    assert main(["sweep", "grid.toml", "-o", "sweep.csv", "--jobs", "1"]) == 0
    then, now = (table(folder / "sweep.csv") for folder in (FIXTURES, tmp_path))
    assert len(then) == len(now)
    for old, new in zip(then, now, strict=True):
        kept = {name: value for name, value in old.items() if name not in RUN_BETWEEN and not counted([name])}
        then = {name: meant(f"/{name}", value) for name, value in kept.items()}
        assert not [(n, old[n], new[n]) for n, value in then.items() if not alike(value, meant(f"/{n}", new[n]))]


def table(path):
    """Without the points' keys, which are made otherwise now."""
    rows = csv.DictReader(path.read_text(encoding="utf-8").splitlines())
    return [{name: text for name, text in row.items() if name != "point"} for row in rows]


if __name__ == "__main__":
    os.chdir(FIXTURES)
    Path("figures.json").write_text(json.dumps(figures(), sort_keys=True), encoding="utf-8")

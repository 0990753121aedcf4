"""What the files in `fixtures` come to, figure by figure, by whichever odcsim reads them.

`python old_files.py` writes `figures.json` anew.
"""

import csv
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from math import isclose
from pathlib import Path
from typing import Any

from ways_in import said, told

import odcsim
from odcsim.show.explore.heard import linked
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
THEN = ("--sharding", "full")  # what was the default between nodes then
# Rows by what they are of, so that another order or one row more is not a difference of all.
OF = [("balancer", "sync"), ("dealt", "run"), ("sync + balancer",), ("row",), ("gpu", "devices"), ("label",), ("name",)]
KEPT = ("makespan_seconds", "idle", "speedup_low", "gpu_hours_high", "dollars", "memory_bytes")
TABLE = (
    "balancer", "sync", "devices", "minibatch", "global_batch", "max_tokens", "recompute", "selective", "seed",
    "fidelity", "makespan_seconds", "idle", "idle_parts.push", "speedup", "dollars_low", "memory_bytes", "run.steps",
    "run.seconds", "refused",
)  # fmt: skip


def figures() -> dict[str, Any]:
    """By file; of those that are there. In the folder of the files, so that none names a path of a machine."""
    found = {p.name: read(p.name) for pattern, read in READERS for p in sorted(FIXTURES.glob(pattern))}
    return json.loads(json.dumps({**found, **{f"link {name}": of_link(link) for name, link in LINKS.items()}}))


def answer(argv: list[str]) -> dict[str, Any]:
    found = told(argv)
    if isinstance(found.get("refused"), str):
        raise AssertionError(f"odcsim {' '.join(argv)}: {found['refused']}")
    return found


def rows(found: dict[str, Any]) -> dict[str, Any]:
    """Of each row the figures that decide, and of the whole run the first row's seconds."""
    few = {f"{row['balancer']} under {row['sync']}": {name: row.get(name) for name in KEPT} for row in found["rows"]}
    run = {row["row"]: row["seconds"] for row in found.get("run", {"rows": []})["rows"][:1]}
    return {"fidelity": found.get("fidelity"), "rows": few, "run": run}


def compared(*words: str) -> dict[str, Any]:
    return rows(answer(["compare", "lengths.csv", *ASKED, *THEN, *words]))


def of_schedules(name: str) -> Any:
    """Run under each sync that can."""
    free = any(balancer in name for balancer in ("lb-mini", "lb-robust", "pool"))
    with tempfile.TemporaryDirectory() as folder:
        out = str(Path(folder, "timeline.npz"))
        words = ["simulate", name, "--gpu", "a100", "-o", out, "--force"]
        syncs = ("on-demand",) if free else ("collective", "deferred", "on-demand")
        simulated = {sync: answer([*words, "--sync", sync]) for sync in syncs}
    return {
        sync: {n: row[n] for n in ("makespan_seconds", "idle", "idle_parts", "minibatches")}
        for sync, row in simulated.items()
    }


def of_timeline(name: str) -> Any:
    """Its steps, and as the prediction of itself."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "steps.csv")
        _, refused = said(["report", name, "--steps", str(out)])
        assert not refused, refused
        steps = list(csv.reader(out.read_text(encoding="utf-8").splitlines()))
    held = answer(["validate", name, name])
    few = "digest sync balancer model devices recompute idle_predicted idle_measured queue_entries".split()
    return {"steps": steps, **{name: held[name] for name in few}}


def of_recipe(name: str) -> Any:
    then = () if "sharding" in (FIXTURES / name).read_text(encoding="utf-8") else THEN
    words = [*ASKED, *then, "--gpu", "a100", "--cluster", "cluster.toml", "--recipe", name]
    found = answer(["compare", "lengths.csv", *words])
    return {"inputs": {n: v for n, v in found["inputs"].items() if n not in ("trace_origin", "cost")}, **rows(found)}


def of_grid(name: str) -> Any:
    return [{n: row[n] for n in TABLE if n in row} for row in odcsim.sweep(name)]


def fitted(*words: str) -> Any:
    """The profile, and what it makes of lengths."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "fitted.json")
        _, refused = said(["fit", *words, "-o", str(out)])
        assert not refused, refused
        profile = json.loads(out.read_text(encoding="utf-8"))
    names = "forward backward head embed overhead microbatch timings".split()
    return {name: profile[name] for name in names if name in profile}


def of_lengths(name: str) -> Any:
    out, refused = said(["trace", "info", name])
    assert not refused, refused
    return out.splitlines()


def of_link(search: str) -> Any:
    found = linked(search)
    told = reply(found)
    return {"link": found.search, "command": found.command, "verdict": told.verdict,
            **rows({"rows": [row.as_json() for row in told.comparison.rows]})}  # fmt: skip


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
    one, other = value_of(one), value_of(other)
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in (one, other))
    return isclose(one, other, rel_tol=far, abs_tol=nothing) if numbers else bool(one == other)


def value_of(value: Any) -> Any:
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


READERS = (
    ("schedules-*.jsonl", of_schedules),
    ("timeline-*.npz", of_timeline),
    ("profile.json", lambda name: compared("--profile", name)),
    ("recipe-*.toml", of_recipe),
    ("cluster*.toml", lambda name: compared("--gpu", "a100", "--cluster", name)),
    ("gpu*.toml", lambda name: compared("--gpu", name)),
    ("grid.toml", of_grid),
    ("steps.csv", lambda name: fitted(name, "--model", "r1-distill-qwen-1.5b", "--gpu", "a100")),
    ("measurements.json", lambda name: fitted(name)),
    ("lengths.csv", of_lengths),
)

if __name__ == "__main__":
    os.chdir(FIXTURES)
    Path("figures.json").write_text(json.dumps(figures(), sort_keys=True), encoding="utf-8")

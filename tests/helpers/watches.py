"""Files as odc_engine.watch writes them, of steps that are made up."""

import json


def header(rank, ranks):
    return {"format": "odcsim watch", "version": 1, "rank": rank, "ranks": ranks, "trainer": "trl", "device": "cpu",
            "torch": "2.13.0"}  # fmt: skip


def ran(begin, seconds, lengths, waited=0.0, computed=None):
    row = {"lengths": lengths, "computed": computed or sum(lengths), "begin": begin, "seconds": seconds}
    return row if waited is None else row | {"waited": waited}


def step(number, microbatches, late=0.0, *, seconds=4.0, loader=0.0, collector=0.0):
    begin = 1763990000.0 + seconds * number + late
    return {"step": number, "begin": begin, "seconds": seconds, "loader": loader, "collector": collector,
            "microbatches": microbatches}  # fmt: skip


def wrote(folder, ranks):
    """A file for each rank, of its steps."""
    paths = []
    for rank, steps in enumerate(ranks):
        path = folder / f"watch-rank{rank}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in [header(rank, len(ranks)), *steps]))
        paths.append(path)
    return paths

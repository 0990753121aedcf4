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


def met(lengths, *, slow=(), loader=0.0, collector=0.0, told=True):
    """Of `lengths` [step, rank, microbatch] what each rank writes down, which meets the others in each microbatch. A
    rank takes a second for 1,000 tokens, and `slow` times as long where that has it."""
    ranks = [[] for _ in lengths[0]]
    for number, held in enumerate(lengths):
        at, rows = loader + collector, [[] for _ in ranks]
        for m in range(len(held[0])):
            own = [held[r][m] / 1000 * dict(slow).get(r, 1.0) for r in range(len(ranks))]
            for r, seconds in enumerate(own):
                rows[r].append(ran(at, max(own), [held[r][m]], max(own) - seconds if told else None))
            at += max(own)
        for r, of in enumerate(rows):
            made = step(number, of, seconds=at, loader=loader, collector=collector)
            ranks[r].append(made | {"begin": 1e9 + 100 * number})
    return ranks

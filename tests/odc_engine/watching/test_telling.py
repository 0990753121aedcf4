"""The line on the last steps: who the others waited for."""

import json

import pytest

from odc_engine.watching.telling import Teller, cost, in_words


def step(number, microbatches, *, tail=0.0, loader=0.0):
    """Microbatches follow each other."""
    at = loader
    for m in microbatches:
        m["begin"], at = at, at + m["seconds"]
    seconds = at + tail
    return {"step": number, "seconds": seconds, "loader": loader, "collector": 0.0, "microbatches": microbatches}


def ran(lengths, seconds, **waited):
    return {"lengths": lengths, "computed": sum(lengths), "begin": 0.0, "seconds": seconds, **waited}


def met(*lengths, measured):
    """One microbatch of each rank, which all take as long as the longest."""
    costs = [cost(ran([n], 0.0)) for n in lengths]
    seconds = max(costs) * 1e-3
    waited = [{"waited": seconds - own * 1e-3} if measured else {} for own in costs]
    return [ran([n], seconds, **w) for n, w in zip(lengths, waited, strict=True)]


def window(rows, measured=True):
    steps = [met(*row, measured=measured) for row in rows]
    return {rank: [step(n, [ms[rank]]) for n, ms in enumerate(steps)] for rank in range(len(rows[0]))}


ROWS = [(1000, 4000, 1000), (1000, 4000, 1000), (4000, 1000, 1000), (1000, 4000, 1000)]
COSTS = [[cost(ran([n], 0.0)) for n in row] for row in ROWS]
SHARE = f"{100 * (1 - sum(map(sum, COSTS)) / sum(3 * max(row) for row in COSTS)):.0f} % waiting: rank 1 had 3 of the 4 "
EVEN = {rank: [step(0, [ran([100], 1.0), ran([100], 1.0)])] for rank in range(2)}
# What ranks do before and between microbatches: one generates texts for longer, and skips a microbatch that failed.
(APART,) = EVEN[1]
APART["microbatches"][0]["begin"], APART["microbatches"][1]["begin"], APART["seconds"] = 20.0, 26.0, 27.0
SHORT = {0: [step(0, [ran([1], 1.0)], tail=3.0)], 1: [step(0, [ran([1], 1.0), ran([3], 3.0)])]}
SAID = [
    (window(ROWS), 3, SHARE),
    (window(ROWS, measured=False), 3, SHARE),
    ({rank: [step(0, [ran([100], 1.0, waited=0.4)])] for rank in range(2)}, 2, "0 % waiting, "),
    ({r: [step(0, [ran([100], 1.0, waited=w)])] for r, w in enumerate((0.4, 0.1, 0.4))}, 3, "20 % waiting: rank 1 "),
    (SHORT, 2, "38 % waiting: rank 1 "),
    (EVEN, 2, "0 % waiting, "),
    ({0: [step(0, [ran([9], 0.9)], loader=0.1)]}, 1, "10 % loader; "),
    ({0: [step(0, [ran([9], 1.0, waited=0.97)])]}, 1, "97 % blocked "),
    ({0: [step(0, [ran([9], 1.0, waited=0.3)])]}, 4, "30 % waiting, "),
]


@pytest.mark.parametrize(("lines", "ranks", "said"), SAID, ids=range(len(SAID)))
def test_the_share_is_what_others_waited_and_who_they_waited_for_is_named(lines, ranks, said):
    assert in_words(lines, ranks).startswith(said)


def test_files_are_read_on_from_where_they_ended_and_half_a_line_waits(tmp_path):
    lines, said = window([(1000, 4000)] * 4), []
    files = {rank: tmp_path / f"watch-rank{rank}.jsonl" for rank in lines}
    for rank, file in files.items():
        head = [{"format": "odcsim watch"}, *lines[rank][:2]]
        file.write_text("".join(json.dumps(line) + "\n" for line in head))
    teller = Teller(tmp_path, 2, said.append)
    with files[1].open("a") as out:
        out.write(half := json.dumps(lines[1][2])[:40])
    teller.tell()
    with files[1].open("a") as out:
        out.write(json.dumps(lines[1][2])[len(half) :] + "\n")
    with files[0].open("a") as out:
        out.write(json.dumps(lines[0][2]) + "\n")
    teller.tell()
    teller.tell()  # nothing new
    assert all(f" {steps}: 38 %" in words for steps, words in zip(("0 to 1", "2"), said, strict=True))
    assert [line.split(" had ")[1].split(" of ")[0] for line in said] == ["2", "1"]


def test_a_line_that_a_full_disk_cut_is_left_out(tmp_path):
    said = []
    for rank, lines in window([(1000, 4000)] * 2).items():
        first, second = map(json.dumps, lines)
        (tmp_path / f"watch-rank{rank}.jsonl").write_text(f"{first}\n{second[:30]}\n3\n{second}\n")
    Teller(tmp_path, 2, said.append).tell()
    assert "steps 0 to 1: 38 %" in said[0]


def test_of_many_ranks_the_last_steps_are_looked_at(tmp_path):
    said = []
    for rank in range(128):
        file = tmp_path / f"watch-rank{rank}.jsonl"
        lines = [step(n, [ran([1000 if n == 9 else 1], 1.0, waited=0.0 if rank == 3 else 0.5)]) for n in range(10)]
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    Teller(tmp_path, 128, said.append).tell()
    assert "steps 7 to 9: 50 % waiting: rank 3 " in said[0]

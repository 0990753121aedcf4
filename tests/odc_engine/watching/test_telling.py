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


def window(rows, measured):
    steps = [met(*row, measured=measured) for row in rows]
    return {rank: [step(n, [ms[rank]]) for n, ms in enumerate(steps)] for rank in range(len(rows[0]))}


@pytest.mark.parametrize("measured", [True, False])
def test_who_had_the_longest_is_named_and_the_share_is_what_others_waited(measured):
    rows = [(1000, 4000, 1000), (1000, 4000, 1000), (4000, 1000, 1000), (1000, 4000, 1000)]
    costs = [[cost(ran([n], 0.0)) for n in row] for row in rows]
    share = 1 - sum(map(sum, costs)) / sum(3 * max(row) for row in costs)
    told = in_words(window(rows, measured), 3)
    assert told == f"{100 * share:.0f} % waiting: rank 1 had 3 of the 4 longest microbatches, 0 % loader"


def test_bytes_that_all_wait_for_are_no_waiting_for_others():
    lines = {rank: [step(0, [ran([100], 1.0, waited=0.4)])] for rank in range(2)}
    assert in_words(lines, 2) == "0 % waiting, 0 % loader"


def test_where_lengths_are_even_who_waited_least_is_named():
    lines = {rank: [step(0, [ran([100], 1.0, waited=waited)])] for rank, waited in enumerate((0.4, 0.1, 0.4))}
    assert in_words(lines, 3) == "20 % waiting: rank 1 waited least, 0 % loader"


def test_who_is_done_early_waits_behind_the_last_microbatch():
    """Devices that meet at the end of a step alone, as on demand."""
    lines = {0: [step(0, [ran([100], 1.0)], tail=3.0)], 1: [step(0, [ran([100], 1.0), ran([300], 3.0)])]}
    assert in_words(lines, 2) == "38 % waiting: rank 1 had 2 of the 3 longest microbatches, 0 % loader"


def test_what_ranks_do_before_and_between_microbatches_is_no_waiting():
    """One generates texts for longer, and skips a microbatch that failed."""
    lines = {rank: [step(0, [ran([100], 1.0), ran([100], 1.0)])] for rank in range(2)}
    first, second = lines[1][0]["microbatches"]
    first["begin"], second["begin"], lines[1][0]["seconds"] = 20.0, 26.0, 27.0
    assert in_words(lines, 2) == "0 % waiting, 0 % loader"


def test_a_rank_alone_says_what_it_can():
    assert in_words({0: [step(0, [ran([9], 0.9)], loader=0.1)]}, 1) == (
        "10 % loader; waiting of a single rank is not measured"
    )
    alone = in_words({0: [step(0, [ran([9], 1.0, waited=0.97)])]}, 1)
    assert alone == "97 % blocked (not by other ranks), 0 % loader"
    assert in_words({0: [step(0, [ran([9], 1.0, waited=0.3)])]}, 4) == "30 % waiting, 0 % loader (of 1 of 4 ranks)"


def test_files_are_read_on_from_where_they_ended_and_half_a_line_waits(tmp_path):
    rows, said = [(1000, 4000)] * 4, []
    lines = window(rows, measured=True)
    files = {rank: tmp_path / f"watch-rank{rank}.jsonl" for rank in lines}
    for rank, file in files.items():
        file.write_text(json.dumps({"format": "odcsim watch"}) + "\n")
        with file.open("a") as out:
            out.writelines(json.dumps(line) + "\n" for line in lines[rank][:2])
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
    assert [line.split(": rank")[0] for line in said] == [
        "odc_engine.watch: steps 0 to 1: 38 % waiting",
        "odc_engine.watch: step 2: 38 % waiting",
    ]
    assert [line.split(" had ")[1].split(" of ")[0] for line in said] == ["2", "1"]


def test_a_line_that_a_full_disk_cut_is_left_out(tmp_path):
    said = []
    for rank, lines in window([(1000, 4000)] * 2, measured=True).items():
        first, second = map(json.dumps, lines)
        (tmp_path / f"watch-rank{rank}.jsonl").write_text(f"{first}\n{second[:30]}\n3\n{second}\n")
    Teller(tmp_path, 2, said.append).tell()
    assert said[0].startswith("odc_engine.watch: steps 0 to 1: 38 % waiting")


def test_of_many_ranks_the_last_steps_are_looked_at(tmp_path):
    said = []
    for rank in range(128):
        file = tmp_path / f"watch-rank{rank}.jsonl"
        lines = [step(n, [ran([1000 if n == 9 else 1], 1.0, waited=0.0 if rank == 3 else 0.5)]) for n in range(10)]
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    Teller(tmp_path, 128, said.append).tell()
    assert said == ["odc_engine.watch: steps 7 to 9: 50 % waiting: rank 3 waited least, 0 % loader"]

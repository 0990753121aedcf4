"""Dumps of the Flight Recorder: whoever is left out is named, causes by their signs, and nothing is believed."""

import json
import pickle
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from odcsim import InputError
from odcsim.cli import main
from odcsim.observed.hang import CAUSES, why
from odcsim.say.hang_words import OUT, SHORT, named

TORCH = "/usr/lib/python3/site-packages/torch/distributed/"
HOOKS = {"forward": ("pre_forward",), "backward": ("pre_backward",), "reduce": ("post_backward",), "": ()}


def call(number, kind="all_reduce", at="train:10", role="", over=True, size=4, group="0", about="default_pg", **more):
    """An entry as NCCL's dumps have it. `at`: function and line of a program, the innermost first."""
    frames = [{"name": name, "filename": TORCH + "x.py", "line": 1} for name in (kind.strip("_"), *HOOKS[role])]
    for one in filter(None, at.split()):
        name, _, line = one.partition(":")
        frames.append({"name": name, "filename": "/job/run.py", "line": int(line)})
    return {
        "record_id": number, "pg_id": 0, "process_group": (group, about), "collective_seq_id": number, "p2p_seq_id": 0,
        "op_id": number, "profiling_name": f"nccl:{kind}", "time_created_ns": 10**18 + 1000 * number,
        "input_sizes": [[size]], "output_sizes": [[size]], "input_dtypes": ["Float"], "output_dtypes": ["Float"],
        "state": "completed" if over else "started", "time_discovered_started_ns": None, "retired": over,
        "time_discovered_completed_ns": None, "timeout_ms": 600000, "is_p2p": False, "frames": frames, **more,
    }  # fmt: skip


def dump(calls, ranks, groups=()):
    told = {"0": range(ranks)} | dict(groups)
    config = {name: {"name": name, "desc": "", "ranks": str(list(of))} for name, of in told.items()}
    return {"version": "2.10", "pg_config": config, "pg_status": {}, "entries": calls}


@pytest.fixture(scope="module")
def dumped(tmp_path_factory):
    """The hang of dumps, by rank."""

    def ask(dumps, form=pickle.dumps, name="rank_{}"):
        folder = tmp_path_factory.mktemp("dumps")
        for rank, content in dumps.items():
            data = form(content)
            (folder / name.format(rank)).write_bytes(data if isinstance(data, bytes) else data.encode())
        return why([folder])

    return ask


def missing(hang):
    return sorted(rank for camp in hang.others for rank in camp.ranks)


def stackless(content):
    entries = [{key: value for key, value in entry.items() if key != "frames"} for entry in content["entries"]]
    return json.dumps(content | {"entries": entries})


@given(data=st.data())
def test_whoever_is_left_out_is_named(dumped, data):
    """Of any number of ranks some stop at any place, and of these some without a dump; buffers begin anywhere."""
    ranks = data.draw(st.integers(2, 9), "ranks")
    stops = data.draw(st.sets(st.integers(0, ranks - 1), min_size=1, max_size=ranks - 1), "stops")
    gone = data.draw(st.sets(st.sampled_from(sorted(stops))), "gone")
    place = data.draw(st.integers(2, 12), "place")
    assume(ranks - len(gone) >= 2)
    dumps = {}
    for rank in set(range(ranks)) - gone:
        calls = [call(n) for n in range(1, place)] + ([] if rank in stops else [call(place, over=False)])
        begin = data.draw(st.integers(0, place - 2), "begin")
        dumps[rank] = dump(calls[begin:], ranks)
    hang = dumped(dumps)
    assert hang.call.number == place
    assert list(hang.waiting) == sorted(set(range(ranks)) - stops)
    assert missing(hang) == sorted(stops)
    assert hang.cause == ("dead" if gone == stops else "silent")
    words = hang.sentences()
    assert len(words) <= 5
    assert f"{named(hang.waiting).capitalize()} wait" in words[0]
    assert f"to which {named(stops)} did not come" in words[0]
    assert dumped(dumps, stackless, "trace_{}.json").cause == hang.cause


@given(
    ranks=st.integers(3, 9), odd=st.integers(0, 8), place=st.integers(1, 9),
    other=st.sampled_from([{"kind": "broadcast"}, {"size": 5}, {"output_dtypes": ["BFloat16"]}]),
)  # fmt: skip
def test_whoever_brings_something_else_is_named(dumped, ranks, odd, place, other):
    odd %= ranks
    dumps = {
        rank: dump(
            [*map(call, range(1, place)), call(place, over=False, **(other if rank == odd else {}))],
            ranks,
        )
        for rank in range(ranks)
    }
    hang = dumped(dumps)
    assert (hang.call.number, missing(hang), len(hang.waiting)) == (place, [odd], ranks - 1)
    assert hang.cause == ("unknown" if "kind" in other else "sizes")


def test_groups_that_share_a_name_are_told_apart(dumped):
    """As where a group of all ranks is split."""
    parts = {0: (0, 1), 1: (0, 1), 2: (2, 3), 3: (2, 3)}
    dumps = {
        rank: dump([call(1, group="7", about="tp"), *([call(2, group="7", about="tp", over=False)] * (rank == 2))], 4,
                   {"7": parts[rank]})
        for rank in parts
    }  # fmt: skip
    hang = dumped(dumps)
    assert (hang.waiting, missing(hang)) == ((2,), [3])
    assert "all_reduce 2 of group 7 (tp)" in hang.sentences()[0]


def test_who_waits_for_a_rank_that_waits_is_not_blamed(dumped):
    """Rank 3 waits in a group with rank 2, which is the one that did not come."""
    pair = {"group": "7", "about": "tp", "over": False}
    calls = {0: [call(2, over=False)], 1: [call(2, over=False)], 2: [], 3: [call(1, **pair)]}
    groups = {rank: {"7": (2, 3) if rank > 1 else (0, 1)} for rank in calls}
    hang = dumped({rank: dump([call(1), *mine], 4, groups[rank]) for rank, mine in calls.items()})
    assert missing(hang) == [2]


def microbatch(first, units=("see:3 forward:5", "forward:6"), over=True):
    """The calls of one: forward in these lines, and backward."""
    lines = [(f"{unit} train:10", "forward") for unit in units]
    lines += [("train:10", role) for _ in units for role in ("backward", "reduce")]
    kinds = {"forward": "_all_gather_base", "backward": "_all_gather_base", "reduce": "_reduce_scatter_base"}
    return [call(first + i, kinds[role], at, role, over) for i, (at, role) in enumerate(lines)]


def steps(*counts, units=("see:3 forward:5", "forward:6")):
    """Steps of so many microbatches, each ended by a norm."""
    calls = []
    for count in counts:
        for _ in range(count):
            calls += microbatch(len(calls) + 1, units)
        calls.append(call(len(calls) + 1, at="train:12"))
    return calls


def hung(calls, **more):
    return [*calls, call(len(calls) + 1, over=False, **more)]


GATHER = {"kind": "_all_gather_base", "role": "forward"}
BEFORE = steps(2)
HALF = [*BEFORE, *microbatch(len(BEFORE) + 1)]
ROOT = {**GATHER, "at": "see:3 forward:5 train:10"}
ASIDE = "forward:6 evaluate:30 train:14"
AHEAD = [*HALF, *microbatch(len(HALF) + 1)[:4]]  # a microbatch up to its first reduction
EVALUATED = [call(len(HALF) + n, **GATHER, at=ASIDE) for n in (1, 2, 3)]  # which pair with the gathers of that one
MADE = {
    "microbatches": (hung(HALF, **ROOT), hung(HALF, at="train:12")),
    "tower": (hung(HALF, **ROOT), hung(HALF, **GATHER, at="forward:6 train:10", size=9)),
    "evaluation": ([*AHEAD[:-1], AHEAD[-1] | {"state": "started"}], hung([*HALF, *EVALUATED], **GATHER, at=ASIDE)),
    "loader": (hung(HALF, **ROOT), hung(HALF, kind="broadcast", at="next_batch:40 train:8")),
    "order": (hung([call(1, "broadcast"), call(2, "all_reduce", "train:20")], kind="broadcast"),
              hung([call(1, "broadcast"), call(2, "all_reduce", "train:20")], at="train:20")),
    "sizes": (hung([call(1)], size=8), hung([call(1)], size=9)),
    "branch": (hung(HALF, **ROOT), hung(HALF, at="mean:51 train:50")),
    "silent": (hung(HALF, **ROOT), HALF),
    "link": (hung(BEFORE), hung(BEFORE)),
    "unknown": (hung([call(1)], kind="broadcast"), hung([call(1)])),
}  # fmt: skip


@pytest.mark.parametrize("cause", MADE)
@pytest.mark.parametrize("turned", [False, True], ids=["", "turned"])
def test_each_cause_is_told_by_its_sign(dumped, cause, turned):
    """Whichever side has more ranks; the other way round as well."""
    one, other = MADE[cause][::-1] if turned and cause != "silent" else MADE[cause]
    hang = dumped({0: dump(one, 3), 1: dump(other, 3), 2: dump(one, 3)})
    assert hang.cause == cause
    assert hang.waiting == ((0, 1, 2) if cause == "link" else (0, 2))
    words = hang.sentences()
    assert 2 <= len(words) <= 5
    few, many = ("ranks 0 and 2", "rank 1") if turned else ("rank 1", "ranks 0 and 2")
    if cause == "microbatches":
        assert hang.microbatches == ((1, 2) if turned else (2, 1))
        assert (
            f"{few} went on to all_reduce 20 of the default group (run.py:12 in train) after 1 microbatch" in words[1]
        )
        assert f"and {many} gather" in words[1]
    if cause == "tower":
        assert f"{few} left a unit out" in words[1]
    if cause == "evaluation":
        assert f"of {few} is called in 'evaluate' (run.py:30)" in words[1]


def test_a_unit_left_out_is_told_where_ranks_went_on_to_pair(dumped):
    """Units of one size pair until one rank is in backward: stacks tell where programs parted."""
    both = ("see:3 forward:5", "see:3 forward:5", "forward:6", "forward:6")
    one, other = steps(1, units=both), steps(1, units=both)
    one += microbatch(len(one) + 1, both)[:5]
    other += microbatch(len(other) + 1, both[2:])[:3]
    other[-1] |= {"state": "started"}
    hang = dumped({0: dump(one, 2), 1: dump(other, 2)})
    assert (hang.cause, hang.ahead) == ("tower", (1,))
    assert hang.parted[0].number == len(steps(1, units=both)) + 1
    assert hang.parted[0].line.function == "see"


def test_a_function_around_all_that_a_rank_calls_is_no_part_of_its_own(dumped):
    """As of a profiler, which one rank alone runs."""
    around = [one | {"frames": [*one["frames"], {"name": "profiled", "filename": "run.py", "line": 9}]} for one in HALF]
    hang = dumped({0: dump(hung(HALF, **ROOT), 2), 1: dump(around, 2)})
    assert (hang.cause, missing(hang)) == ("silent", [1])


def test_several_that_are_called_as_one_are_over_with_one_of_them(dumped):
    """As NCCL tells of what is coalesced; a microbatch is counted where such were."""
    pair = [call(1, over=False), call(1, over=False), call(1)]
    calls = [*pair, *({**one, "collective_seq_id": one["collective_seq_id"] + 1} for one in HALF)]
    one, other = ([*calls, call(len(HALF) + 2, over=False, **last)] for last in (ROOT, {"at": "train:12"}))
    one[-2] = one[-2] | {"state": "scheduled"}  # and so is what comes before what is over
    other[-2] = other[-2] | {"state": "scheduled"}
    other[-1] = other[-1] | {"state": "completed"}
    hang = dumped({0: dump(one, 2), 1: dump(other, 2)})
    assert (hang.cause, hang.call.number, hang.microbatches) == ("microbatches", len(HALF) + 2, (2, 1))


def test_nothing_hangs_where_all_came_to_all(dumped):
    hang = dumped({rank: dump(steps(2), 2) for rank in range(2)})
    assert (hang.call, hang.waiting) == (None, ())
    assert hang.sentences()[0].startswith("No rank waits")


def test_sends_and_receives_are_named_and_not_compared(dumped):
    """Where a rank receives instead of coming to a collective, and where all that waits receives."""
    receive = call(1, "recv 1<-0", "stage:60", is_p2p=True, over=False)
    hang = dumped({0: dump(hung(HALF, **ROOT), 2), 1: dump([*HALF, receive], 2)})
    assert (hang.cause, missing(hang)) == ("peers", [1])
    assert "rank 1 waits in recv 1<-0 (run.py:60 in stage)" in " ".join(hang.sentences())
    hang = dumped({0: dump(HALF, 2), 1: dump([*HALF, receive], 2)})
    assert (hang.cause, hang.waiting) == ("peers", (1,))
    assert hang.sentences()[0].startswith("Rank 1 waits in recv 1<-0 (run.py:60 in stage): sends")


def test_a_first_step_s_end_may_look_like_a_branch(dumped):
    """Nothing tells there that all ranks come to it: both are said."""
    one, other = hung(microbatch(1), **ROOT), hung(microbatch(1), at="log:70 train:12")
    hang = dumped({0: dump(one, 2), 1: dump(other, 2)})
    assert hang.cause == "evaluation"
    assert "unequal numbers of microbatches" in hang.sentences()[-1]


def test_a_group_is_as_large_as_its_gathers_show(dumped):
    """Gloo's dumps do not tell who is in a group: the last rank has no dump."""
    gather = call(1, "all_gather", output_sizes=[[3, 4]], profiling_name="gloo:all_gather", state="scheduled")
    entries = [gather, call(2, profiling_name="gloo:all_reduce", state="scheduled")]
    config = {"": {"name": "", "desc": "", "ranks": "[]"}}
    hang = dumped({rank: dump(entries, 3) | {"pg_config": config} for rank in range(2)})
    assert (hang.ranks, hang.cause, hang.waiting, missing(hang)) == (3, "dead", (0, 1), [2])


def test_every_cause_has_words():
    assert set(CAUSES) == set(SHORT) == set(OUT) == {"dead", "peers", *MADE}


@pytest.mark.parametrize(
    ("ranks", "words"),
    [((2,), "rank 2"), ((1, 0), "ranks 0 and 1"), (range(7), "ranks 0 to 6"), ((0, 1, 3), "ranks 0, 1 and 3"),
     ((0, 1, 2, 3, 8), "ranks 0 to 3 and 8"), (range(0, 20, 2), "ranks 0, 2, 4, 6 and 6 more")],
)  # fmt: skip
def test_ranks_are_listed_as_people_say_them(ranks, words):
    assert named(ranks) == words


class Evil:
    def __reduce__(self):
        return Path.unlink, (Path("/nowhere"),)


def bomb():
    inner = []
    for _ in range(12):
        inner = [inner] * 100
    return inner


def looped():
    one = []
    one.append(one)
    return one


GOOD = dump([call(1)], 2)
BAD = {
    "class": (pickle.dumps({**GOOD, "entries": [Evil()]}), "it names pathlib.Path"),
    "function": (pickle.dumps({**GOOD, "version": print}), "it names builtins.print"),
    "cut": (pickle.dumps(GOOD)[:200], "cannot be read"),
    "two": (pickle.dumps(GOOD) * 2, "something follows the dump"),
    "bomb": (pickle.dumps(bomb()), "too many values"),
    "loop": (pickle.dumps(looped()), "too many values"),
    "bytes": (pickle.dumps({**GOOD, "entries": b"1"}), "it holds a bytes"),
    "list": (pickle.dumps([1]), "expected an object"),
    "version": (pickle.dumps({**GOOD, "version": 2}), "version is 2"),
    "ranks": (pickle.dumps({**GOOD, "pg_config": {"0": {"ranks": "exit()"}}}), "expected a list of ranks"),
    "number": (pickle.dumps(dump([call(-1)], 2)), "entries[0].collective_seq_id is -1"),
    "sizes": (pickle.dumps(dump([call(1, size="4")], 2)), "input_sizes[0][0] is '4'"),
    "state": (pickle.dumps(dump([call(1, state="gone")], 2)), "one of scheduled, started, completed"),
    "group": (pickle.dumps(dump([call(1, process_group=("0",))], 2)), "a name and what the group is for"),
    "frame": (pickle.dumps(dump([call(1, frames=[{"name": "f"}])], 2)), "frames[0].filename is None"),
    "json": (json.dumps(GOOD)[:-9].encode(), "cannot be read"),
    "empty": (b"", "neither a pickle nor JSON"),
    "text": (b"hello", "neither a pickle nor JSON"),
}


@pytest.mark.parametrize(("content", "problem"), BAD.values(), ids=BAD)
def test_what_is_no_dump_is_refused_in_one_line(tmp_path, content, problem):
    files = tmp_path / "rank_0", tmp_path / "rank_1"
    files[0].write_bytes(pickle.dumps(GOOD))
    files[1].write_bytes(content)
    with pytest.raises(InputError) as caught:
        why(files)
    line = str(caught.value)
    assert problem in line
    assert str(files[1]) in line
    assert len(line.splitlines()) == 1


def test_which_files_are_dumps_is_told_by_their_names_and_beginnings(tmp_path):
    def refused(*paths):
        with pytest.raises(InputError) as caught:
            why(paths or [tmp_path])
        return str(caught.value)

    assert "no dump in it" in refused()
    assert "no such file" in refused(tmp_path / "rank_0", tmp_path / "rank_1")
    (tmp_path / "notes_1").write_text("not a dump")
    (tmp_path / "readme.txt").write_text("{}")
    assert "no dump in it" in refused()
    assert "no rank in its name" in refused(tmp_path / "readme.txt")
    (tmp_path / "rank_0").write_bytes(pickle.dumps(GOOD))
    assert "one rank alone" in refused()
    (tmp_path / "rank_1").write_bytes(pickle.dumps(GOOD))
    assert why([tmp_path]).call is None
    (tmp_path / "old_rank_1.json").write_text(stackless(GOOD))
    assert f"a dump of rank 1, as {tmp_path / 'old_rank_1.json'} is" in refused()


@pytest.mark.parametrize("hangs", [True, False])
def test_the_command_ends_with_one_where_somebody_waits(tmp_path, capsys, hangs):
    for rank in range(3):
        last = [] if hangs and rank == 1 else [call(2, over=not hangs)]
        (tmp_path / f"rank_{rank}").write_bytes(pickle.dumps(dump([call(1), *last], 3)))
    assert main(["audit", "--hang", str(tmp_path), "--json"]) == hangs
    found = json.loads(capsys.readouterr().out)
    assert found["runs"] is not hangs
    assert [camp["ranks"] for camp in found["others"]] == ([[1]] if hangs else [])
    assert main(["audit", "--hang", str(tmp_path)]) == hangs
    assert ("did not come" in capsys.readouterr().out) == hangs

"""Programs of FSDP whose ranks part somewhere, run as collectives pair: what parted them is named."""

import pickle
from itertools import count

from hypothesis import event, given
from hypothesis import strategies as st

from odcsim.observed.hang import why
from odcsim.support.numbers import counted

HOOK = {"forward": "pre_forward", "backward": "pre_backward", "reduce": "post_backward", "": "norm"}
KIND = {
    "forward": "_all_gather_base",
    "backward": "_all_gather_base",
    "reduce": "_reduce_scatter_base",
    "": "all_reduce",
}
FILES = {True: "/lib/site-packages/torch/x.py", False: "run.py"}


class Model:
    """Units of a tower and of a text, by their line and size, beneath a root that is gathered once. On a GPU the thread
    of backward has no line of the program."""

    def __init__(self, tower, text, gpu):
        self.root, self.tower, self.text = ("train:10", 3), tower, text
        self.behind = "" if gpu else "train:10"

    def forward(self, image, above="train:10"):
        units = [*([(f"see:3 forward:4 {above}", size) for size in self.tower] if image else ())]
        units += [(f"forward:6 {above}", size) for size in self.text]
        return [("forward", above, self.root[1]), *(("forward", *unit) for unit in units)]

    def backward(self, image):
        for size in (*reversed(self.text), *(reversed(self.tower) if image else ())):
            yield from (("backward", self.behind, size), ("reduce", self.behind, size))
        yield "reduce", self.behind, self.root[1]


def paired(programs, further):
    """What each rank called until nobody goes on, and how many of these are not over: calls of one number in one group
    pair where kinds and sizes agree. Hosts call so many further ones, which their devices do not begin."""
    ran = {rank: [] for rank in programs}
    waits = dict.fromkeys(programs, False)
    numbers = {rank: {} for rank in programs}
    while True:
        for rank, program in programs.items():
            if not waits[rank] and len(ran[rank]) < len(program):
                group, *call = program[len(ran[rank])]
                number = numbers[rank][group] = numbers[rank].get(group, 0) + 1
                ran[rank].append((group, number, *call))
                waits[rank] = True
        lasts = {rank: ran[rank][-1] for rank in ran if waits[rank]}
        met = {
            one[:2]
            for one in lasts.values()
            if len({(o[:2], KIND[o[2]], o[4]) for o in lasts.values() if o[:2] == one[:2]}) == 1
            and sum(o[:2] == one[:2] for o in lasts.values()) == len(programs)
        }
        if not met:
            break
        waits = {rank: waits[rank] and ran[rank][-1][:2] not in met for rank in ran}
    for rank in lasts:
        for group, *call in programs[rank][len(ran[rank]) :][: further[rank]]:
            number = numbers[rank][group] = numbers[rank].get(group, 0) + 1
            ran[rank].append((group, number, *call))
            waits[rank] += 1
    return ran, waits


def dump_of(calls, waits, ranks, clock):
    entries = []
    for record, (group, number, role, at, size) in enumerate(calls):
        lines = [(HOOK[role], 1, True)]
        lines += [(name, int(line), False) for name, _, line in (one.partition(":") for one in at.split())]
        over = record < len(calls) - waits
        entries.append(
            {
                "record_id": record, "process_group": (group, "default_pg" if group == "0" else "beside"),
                "collective_seq_id": number, "profiling_name": f"nccl:{KIND[role]}", "time_created_ns": next(clock),
                "input_sizes": [[size]], "output_sizes": [[size]], "input_dtypes": ["Float"], "is_p2p": False,
                "output_dtypes": ["Float"], "state": "completed" if over else "started", "retired": over,
                "frames": [{"name": name, "filename": FILES[own], "line": line} for name, line, own in lines],
            }
        )  # fmt: skip
    config = {group: {"ranks": str(list(range(ranks)))} for group in ("0", "1")}
    return {"version": "2.10", "pg_config": config, "entries": entries}


@given(data=st.data())
def test_what_parted_ranks_is_named_wherever_they_stop(tmp_path_factory, data):
    ranks = data.draw(st.integers(2, 5), "ranks")
    odd = data.draw(st.integers(0, ranks - 1), "odd")
    cause = data.draw(st.sampled_from(["microbatches", "tower", "evaluation"]), "cause")
    sizes = st.integers(4, 5)
    model = Model(
        data.draw(st.lists(sizes, min_size=1, max_size=3), "tower"),
        data.draw(st.lists(sizes, min_size=1, max_size=3), "text"),
        data.draw(st.booleans(), "gpu"),
    )
    further = data.draw(st.lists(st.integers(0, 4), min_size=ranks, max_size=ranks), "further")
    microbatches, steps = data.draw(st.integers(2, 3), "microbatches"), data.draw(st.integers(2, 3), "steps")
    end = data.draw(st.sampled_from(["0", "1"]), "group of what ends a step")
    here = data.draw(st.integers(1, steps - 1), "step")
    at = data.draw(st.integers(0, microbatches - 1), "microbatch")
    programs = {}
    for rank in range(ranks):
        program = []
        for step in range(steps + 1):
            parts = rank == odd and step == here
            for m in range(microbatches - (parts and cause == "microbatches")):
                image = not (parts and cause == "tower" and m == at)
                program += [("0", *call) for call in (*model.forward(image), *model.backward(image))]
            program.append((end, "", "train:12", 1))
            if parts and cause == "evaluation":
                program += [("0", *call) for call in model.forward(True, "evaluate:20 train:14")]
        programs[rank] = program
    ran, waits = paired(programs, further)
    clock = count(10**18)
    folder = tmp_path_factory.mktemp("dumps")
    for rank in range(ranks):
        content = pickle.dumps(dump_of(ran[rank], waits[rank], ranks, clock))
        (folder / f"rank_{rank}").write_bytes(content)
    hang = why([folder])
    event(cause)
    assert hang.cause == cause
    missing = [rank for camp in hang.others for rank in camp.ranks]
    assert odd in (*hang.waiting, *missing)
    assert (list(hang.waiting) == [odd]) != (missing == [odd]) or ranks == 2
    if cause != "evaluation":
        assert hang.ahead == (odd,)
    if cause == "microbatches":
        assert sorted(hang.microbatches) == [microbatches - 1, microbatches]
        assert f"after {counted(microbatches - 1, 'microbatch')}" in hang.sentences()[1]

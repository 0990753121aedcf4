"""The engine runs the recipe that is asked for, and a field that nobody knows reaches its devices and its timeline."""

import pytest
import toys
from jobs import file_of, written
from teams import job_for, minibatch, on_threads, recorded, shm_records, worst

from odc_engine.devices.run_device import as_block
from odc_engine.job import job_of
from odc_engine.runs.verify import BOUND
from odcsim.errors import InputError
from odcsim.recipe import Recipe


def test_a_job_is_by_the_recipe_that_is_asked_for_and_a_choice_that_there_is_not_is_refused():
    file = file_of((1, 1))
    asked = {"sync": "collective", "accumulate": "slots", "dtype": "bfloat16", "recompute": "none", "prefetch": "none"}
    assert job_of(file, **asked).recipe == Recipe(**asked, sharding="full")
    assert job_of(file).recipe == Recipe(sharding="full")
    hybrid = job_of(file, sharding="hybrid", devices_per_node=2)
    assert (hybrid.cost.recipe.sharding, hybrid.recipe.sharding) == ("hybrid", "full")
    for choice in ({"sync": "colective"}, {"dtype": "float16"}):
        with pytest.raises(InputError):
            job_of(file, **choice)


@pytest.mark.slow
def test_a_new_field_is_asked_for_runs_and_is_written_without_another_edit(tmp_path):
    written(tmp_path, (1, 1))
    out = toys.run(
        """
from odc_engine.cli import main
from odc_engine.devices.thread import ThreadDevice
from odcsim import timeline
told, before = [], ThreadDevice.minibatch
def minibatch(self, number):
    told.append(self.job.recipe.toy)
    return before(self, number)
ThreadDevice.minibatch = minibatch
how = "--sync on-demand --backend threads --emulate-compute --profile profile.json"
for name, words in (("usual", ""), ("asked", "--toy fancy --accumulate slots")):
    assert not main(f"run schedule.jsonl {how} {words} -o {name}.npz".split())
    header = timeline.read(f"{name}.npz").about.header()
    print(told, header["toy"], header.get("accumulate"))
print("verified", main("verify schedule.jsonl --sync deferred --backend threads --toy fancy".split()))
""",
        tmp_path,
    )
    lines = out.splitlines()
    assert "['plain', 'plain'] plain None" in lines
    assert "['plain', 'plain', 'fancy', 'fancy'] fancy slots" in lines
    assert lines[-1] == "verified 0"


@pytest.mark.parametrize(
    "choices", [{}, {"recompute": False}, {"sync": "collective"}, {"emulate": True, "gpu": "a100"}]
)
def test_layers_that_stay_whole_are_gathered_once_and_give_the_same_gradients(choices):
    job = job_for(*[minibatch([2, 2, 2])] * 2, reshard=False, **choices)
    if "emulate" not in choices:
        assert worst(job) <= BOUND
    for every in zip(*on_threads(job, recorded), strict=True):
        asked, had = as_block(list(every))
        gathers = [i for i, step in enumerate(job.program(2).steps) if step.kind == "gather"]
        assert len(gathers) == 2 * (1 + job.cost.model.layers)
        assert (had[gathers] > asked[gathers]).all()


@pytest.mark.slow
@pytest.mark.parametrize("sync", ["on-demand", "collective"])
def test_fsdp2_keeps_them_too(pools, sync):
    job = job_of(file_of((2, 2), (2, 2)), sync=sync, reshard=False, timeout=30.0)
    for every in zip(*pools(2).run(shm_records, job), strict=True):
        asked, had = as_block(list(every))
        steps = job.program(2).steps
        for i, step in enumerate(steps):
            assert step.kind not in ("gather", "push") or (had[i] > asked[i]).all()  # each happened, and no other
            assert all((asked[i] >= had[need] - 1e-4).all() for need in step.after), (i, step)

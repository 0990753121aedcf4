"""Laws of a fixed schedule: whatever is asked, these hold of who runs what, when nobody may deal anew.

Questions are 500, drawn from a seed: models, GPUs, devices, lengths, recipes and syncs.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from random import Random

import numpy as np
import pytest

from odcsim import catalog
from odcsim.catalog import fits
from odcsim.cost import Cost, Load
from odcsim.decide.evaluate import costed
from odcsim.decide.setting import cost_of
from odcsim.errors import InputError
from odcsim.executors.simulation import carried, usage
from odcsim.profile import Profile
from odcsim.program import SYNCS
from odcsim.recipe import USUAL, Recipe
from odcsim.results.metrics import PARTS, Usage
from odcsim.schedule import Assignment, Schedule

NEIGHBOURS = 1.05
EXACT = 1e-9
CHOICES = {
    "recompute": ("full", "none", "operators", "layers"), "stack": ("tuned", "compiled", "plain"),
    "loss": ("chunked", "whole", "policy"), "optimizer": ("fp32", "bf16", "8bit", "pure"), "precision": ("bf16", "fp8"),
    "lora": (0, 16), "offload": (False, True), "reshard": (True, False), "streams": ("one", "two"),
    "reduce": ("fp32", "bf16"), "copies": ("kernels", "engines"),
}  # fmt: skip
ALIKE = ("qwen2.5-1.5b", "r1-distill-qwen-1.5b", "qwen2.5-7b", "r1-distill-qwen-7b")  # a fit ships for their shapes
FITTED = [(name, "a100") for name in ALIKE]


@dataclass(frozen=True)
class Question:
    """What runs, on what, and who runs which samples."""

    model: str
    gpu: str
    devices: int
    recipe: Recipe
    lengths: tuple[int, ...]
    plan: Assignment

    def cost(self, gpu: str = "") -> Cost:
        return cost_of(self.model, gpu or self.gpu, None, self.devices, recipe=self.recipe)

    def used(self, *lengths: tuple[int, ...], cost: Cost | None = None, plan: Assignment = ()) -> Usage:
        """Of minibatches of these lengths."""
        schedules = [Schedule.of(each, plan or self.plan) for each in lengths or (self.lengths,)]
        return usage(schedules, cost or self.cost())


def drawn(count: int, seed: int = 0) -> Iterator[Question]:
    """Every fifth is of a fit that ships, in the words that leave it in force."""
    rng = Random(seed)
    for number in range(count):
        model, gpu = rng.choice(FITTED) if number % 5 == 0 else (rng.choice(catalog.model_names()), None)
        gpu = gpu or rng.choice(catalog.gpu_names())
        devices, sync = rng.choice((1, 2, 3, 4, 8, 16)), rng.choice(SYNCS)
        counts = [rng.randint(1, 3)] * devices if sync != "on-demand" else [rng.randint(1, 3) for _ in range(devices)]
        sizes = [[rng.randint(1, 3) for _ in range(count)] for count in counts]
        lengths = tuple(int(2 ** rng.uniform(6, 16)) for _ in range(sum(map(sum, sizes))))
        numbers = iter(rng.sample(range(len(lengths)), len(lengths)))
        plan = tuple(tuple(tuple(next(numbers) for _ in range(size)) for size in own) for own in sizes)
        yield Question(model, gpu, devices, _recipe(rng, gpu, sync, fitted=number % 5 == 0), lengths, plan)


def _recipe(rng: Random, gpu: str, sync: str, *, fitted: bool) -> Recipe:
    names = ("recompute", "reshard", "streams", "reduce") if fitted else rng.sample(sorted(CHOICES), rng.randint(0, 3))
    words = {name: rng.choice(CHOICES[name]) for name in names}
    if fitted:
        words["recompute"] = rng.choice(("full", "none"))
    try:
        found = USUAL.by(sync=sync, **words)
        fits.estimate(catalog.model("tiny"), catalog.gpu(gpu), 1, found)
    except InputError:  # of choices that do not go together, or that this GPU has not
        return USUAL.by(sync=sync)
    return found


@pytest.fixture(scope="module", params=[150, pytest.param(500, marks=pytest.mark.slow)])
def questions(request) -> list[Question]:
    found = list(drawn(request.param))
    assert {q.recipe.sync for q in found} == set(SYNCS)
    assert {q.cost().profile.fidelity for q in found} >= {"catalogue", "published fit"}
    assert any(q.cost().profile.joined and q.devices > 8 for q in found)
    assert max(len(own) for q in found for own in q.plan) == 3
    return found


def test_idle_is_a_fraction_and_its_parts_and_compute_are_all_device_time(questions):
    """And intervals hold the point."""
    for asked in questions:
        cost, schedule = asked.cost(), Schedule.of(asked.lengths, asked.plan)
        used, load = asked.used(cost=cost), Load.of(cost.model, [schedule])
        program = cost.program(len(load.tokens))
        seconds = cost.durations(program, load)
        computed = sum(seconds[step.duration].sum() for step in program.steps if step.kind == "compute")
        whole = asked.devices * float(used.makespan[0])
        assert used.compute[0] == pytest.approx(computed, rel=EXACT), asked
        parts = {part: float(getattr(used, part)[0]) for part in PARTS}
        assert min(parts.values()) >= 0, (asked, parts)
        assert computed + sum(parts.values()) == pytest.approx(whole, rel=EXACT), asked
        # What is no transfer and no waiting has a name.
        others = [step for step in program.steps if step.kind in ("overhead", "optimizer", "publish", "meeting")]
        named = sum(seconds[step.duration].sum() for step in others)
        assert parts["other"] == pytest.approx(named, rel=1e-6, abs=EXACT * whole), asked
        assert used.idle() == pytest.approx(1 - computed / whole, abs=EXACT), asked
        assert 0 <= used.idle() < 1, asked
        most = schedule.fullest, max(asked.lengths)
        row = costed(cost, "fixed", usage([schedule], cost), carried([schedule]), most, None, 2.0)
        assert row.model_low < row.makespan_seconds < row.model_high, asked
        assert row.gpu_hours_low < row.gpu_hours < row.gpu_hours_high, asked
        assert row.dollars_low < row.dollars < row.dollars_high, asked


def test_compute_grows_with_tokens_and_never_by_a_leap(questions):
    """A token more in every sample, or a hundredth more: never less, and at most a twentieth."""
    for asked in questions:
        more = (tuple(n + 1 for n in asked.lengths), tuple(n + max(1, n // 100) for n in asked.lengths))
        longest = tuple(n * 2 for n in asked.lengths)
        used = asked.used(asked.lengths, *more, longest)
        compute, span = used.compute, used.makespan
        assert compute[0] <= compute[1] <= compute[2] < compute[3], asked
        assert span[0] <= span[1] <= span[2] <= span[3], asked
        assert compute[2] <= NEIGHBOURS * compute[0], asked
        assert span[2] <= NEIGHBOURS * span[0], asked


def bare(profile: Profile) -> Profile:
    """Without what no rate of a GPU changes: what launching takes, the host's constant, and what transfers take of
    compute."""
    names = ("forward", "backward", "head", "embed")
    passes = {name: replace(getattr(profile, name), floor=0.0) for name in names}
    return replace(profile, **passes, microbatch=0.0, copying=0.0)


def test_a_gpu_that_is_twice_as_fast_computes_in_half_the_time(questions):
    """By FLOP/s and by its memory. Launches, the host and transfers are held fixed: with them compute is between."""
    for asked in questions:
        gpu, model, cost = catalog.gpu(asked.gpu), catalog.model(asked.model), asked.cost()
        double = {name: 2 * getattr(gpu, name) for name in ("peak_flops", "matmul_flops", "memory_bandwidth")}
        profiles = [fits.estimate(model, of, asked.devices, asked.recipe) for of in (gpu, replace(gpu, **double))]
        slow, fast = (asked.used(cost=replace(cost, profile=bare(of))).compute[0] for of in profiles)
        assert fast == pytest.approx(slow / 2, rel=EXACT), asked
        slow, fast = (asked.used(cost=replace(cost, profile=of)).compute[0] for of in profiles)
        assert slow / 2 * (1 - EXACT) <= fast <= slow, asked


def test_order_does_not_matter_where_nothing_depends_on_it(questions):
    """Of the list of samples, of samples in a microbatch, of devices; and of microbatches for what is computed."""
    rng = Random(1)
    for asked in questions:
        cost, used = asked.cost(), asked.used()
        inside = tuple(tuple(tuple(rng.sample(m, len(m))) for m in own) for own in asked.plan)
        devices = tuple(rng.sample(inside, len(inside)))
        numbers = rng.sample(range(len(asked.lengths)), len(asked.lengths))
        renamed = tuple(tuple(tuple(numbers[i] for i in m) for m in own) for own in devices)
        lengths = tuple(asked.lengths[numbers.index(new)] for new in range(len(numbers)))
        for other in (asked.used(plan=inside, cost=cost), asked.used(lengths, plan=renamed, cost=cost)):
            for field in fields(Usage):
                mine, theirs = getattr(used, field.name)[0], getattr(other, field.name)[0]
                assert theirs == pytest.approx(mine, rel=EXACT, abs=EXACT * used.makespan[0]), (asked, field.name)
        turned = tuple(tuple(rng.sample(own, len(own))) for own in asked.plan)
        assert asked.used(plan=turned, cost=cost).compute[0] == pytest.approx(used.compute[0], rel=EXACT), asked


def test_a_gpu_of_a_file_is_the_same_as_by_its_name(questions, tmp_path):
    """All of its figures, or none beside the name of the one that it is like."""
    for gpu in sorted({asked.gpu for asked in questions}):
        figures = "".join(f"{f.name} = {f.value}\n" for f in catalog.gpu_figures(gpu))
        (tmp_path / f"my-{gpu}.toml").write_text(figures)
        (tmp_path / f"like-{gpu}.toml").write_text(f'like = "{gpu}"\n')
    for asked in questions:
        mine = asked.cost()
        for name in ("my", "like"):
            theirs = asked.cost(str(tmp_path / f"{name}-{asked.gpu}.toml"))
            assert theirs.cluster == mine.cluster, asked
            known = {"gpu": mine.profile.gpu, "origin": mine.profile.origin}
            assert replace(theirs.profile, **known) == mine.profile, asked


def test_nothing_waits_where_lengths_and_devices_are_alike(questions):
    """Idle is then what is shown of transfers and of the end of a step, and nothing where a fit holds the transfers."""
    rng = Random(2)
    fitted = 0
    for asked in questions:
        each = tuple(int(2 ** rng.uniform(4, 16)) for _ in range(rng.randint(1, 3)))
        plan = tuple(tuple((d * len(each) + m,) for m in range(len(each))) for d in range(asked.devices))
        cost = asked.cost()
        used = asked.used(each * asked.devices, plan=plan, cost=cost)
        assert max(abs(used.wait_inside[0]), abs(used.wait_end[0])) < EXACT * used.makespan[0] * asked.devices, asked
        if cost.profile.joined and cost.cluster.nodes == 1:
            fitted += 1
            latency = 2 * asked.devices * cost.cluster.latency
            assert used.idle() * used.makespan[0] * asked.devices <= latency * (1 + EXACT), asked
    assert fitted


@pytest.mark.parametrize(("name", "gpu"), FITTED)
@pytest.mark.parametrize("recompute", ["full", "none"])
def test_a_fit_passes_into_the_catalogue_below_what_it_was_made_from(name, gpu, recompute):
    """Seconds of a microbatch of one sample, and of many short ones: no leap, no fall, and the two at their ends."""
    cost = cost_of(name, gpu, None, 8, recipe=USUAL.by(recompute=recompute))
    fit, guess = replace(cost.profile, fewest=0), fits.estimate(cost.model, catalog.gpu(gpu), 8, cost.recipe)
    fewest = cost.profile.fewest
    assert 0 < fewest < cost.profile.longest
    tokens = np.unique(np.concatenate((np.arange(32, 3 * fewest // 2, 7), [fewest // 2, fewest])))
    for short in (10**9, 512):
        squares = cost.model.squares(np.minimum(tokens, short)) * (tokens / np.minimum(tokens, short))
        joined, own, other = (seconds(replace(cost, profile=of), tokens, squares) for of in (cost.profile, fit, guess))
        assert (np.diff(joined) >= 0).all()
        steps = joined[1:] / joined[:-1]
        assert steps[tokens[1:] > 256].max() < 1.03
        np.testing.assert_array_equal(joined[tokens >= fewest], own[tokens >= fewest])
        emptier = tokens <= fewest // 2
        assert (joined[emptier] >= other[emptier] * (1 - EXACT)).all()  # it holds a node's transfers, as the fit does
    # A minibatch takes as long, whether transfers are shown or in the seconds.
    lengths = [(n,) * 8 for n in (1024, 2048, 4096, fewest // 2)]
    plan = tuple(((d,),) for d in range(8))
    schedules = [Schedule.of(each, plan) for each in lengths]
    mine, theirs = (
        usage(schedules, replace(cost, profile=of)).makespan
        for of in (cost.profile, replace(guess, optimizer=0.0, publish=0.0))
    )
    np.testing.assert_allclose(mine, theirs, rtol=0.05)


def seconds(cost: Cost, tokens: np.ndarray, squares: np.ndarray) -> np.ndarray:
    """Compute of microbatches that hold so much, one in each minibatch of one device."""
    blank = Load.of(cost.model, [Schedule.of((1,), (((0,),),))])
    shape = (1, len(tokens), 1)
    holds = (of.astype(float).reshape(shape) for of in (tokens, squares, np.ones(len(tokens))))
    load = replace(blank, **dict(zip(("tokens", "squares", "samples"), holds, strict=True)))
    compute, layers = cost.compute(load), cost.model.layers
    times = {"forward": layers, "backward": layers, "embed": 1, "head": 1, "embed backward": 1}
    return sum(count * compute(what, 0) for what, count in times.items())[:, 0]

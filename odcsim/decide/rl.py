"""A step of reinforcement learning: groups of rollouts, dealt by the rules of trainers or by balancers of ours, trained
on in updates; beside that passes without backward, and generation, on the same GPUs or on some of their own."""

import argparse
import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from odcsim import catalog
from odcsim.answer import Result
from odcsim.cluster import GPU
from odcsim.decide import stock
from odcsim.decide.asking import question_by, read, setting_of
from odcsim.decide.comparison import fixed, inputs
from odcsim.decide.evaluate import costed, forward, in_file, least_trusted
from odcsim.decide.generation import ALONE, SHARED, GenerationTime, engine_of, generate
from odcsim.decide.setting import Drawn, Setting, assign, draw_minibatches
from odcsim.decide.way import Way
from odcsim.decide.whole_run import SPENT
from odcsim.decide.words import RL
from odcsim.errors import InputError, misspelled
from odcsim.executors import simulation
from odcsim.neighbours import verl
from odcsim.option import AMOUNT, COUNT, FLAG, Option
from odcsim.program import MEETING, ONE_SIDED, SIDES
from odcsim.question import Question
from odcsim.results import capacity
from odcsim.results.intervals import Draws, draws, of_run
from odcsim.results.summary import Made, Row, priced, scaled
from odcsim.schedule import Schedule, flattened
from odcsim.support.numbers import SIZES
from odcsim.support.numbers import seconds as read_seconds
from odcsim.timeline import Ints
from odcsim.trace import GRPO, Trace, check_drawn

PASSES = Option(int, "a whole number from 0 to 3", 0, 3, SIZES)
TIME = "give seconds, or a time such as 3min"
LARGE = 1 << 16  # prompts of a pilot that leaves next to nothing open
FEW_STEPS = 5  # of each, at most
PILOTS = 12  # that might have been recorded, for how much this one leaves open
SHARES = (0.125, 0.25, 0.5, 0.75)  # of GPUs that may generate alone


@dataclass(frozen=True, slots=True)
class RolloutBatch:
    """What one step generates and trains on: so many samples of each prompt, in so many updates."""

    prompts: int
    rollouts: int
    updates: int = 1
    steps: int = 20  # that stand for all

    @property
    def samples(self) -> int:
        return self.prompts * self.rollouts

    def share(self, question: Question) -> int:
        """Samples of a device and update, or of those that share each sequence."""
        workers = question.workers
        if self.samples % (self.updates * workers):
            raise InputError(
                f"{self.prompts} prompts x {self.rollouts} rollouts do not divide into {self.updates} updates on "
                f"{question.counted_workers}",
                fix="choose numbers that do",
            )
        return self.samples // (self.updates * workers)


@dataclass(frozen=True, slots=True)
class Around:
    """What a step has beside the actor's training pass. A critic is taken for a model of the same shape, whose values
    are one pass more."""

    passes: int = 2  # without backward: log-probabilities of the old policy and of the reference
    critic: bool = False
    generation: float | None = None  # seconds, with all else that nobody shares; None: estimated
    tensor_parallel: int | None = None  # GPUs of an inference engine; None: the fewest that hold it

    def inputs(self) -> dict[str, Any]:
        """By the names of the command line."""
        return {
            "forward_passes": self.passes, "critic": self.critic, "generation_seconds": self.generation,
            "tensor_parallel": self.tensor_parallel,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class RolloutStep:
    """What a step comes to by a rule of dealing under a sync, on average."""

    row: Row  # seconds, GPU-hours and dollars of all of it, with their intervals; all else is of its training
    training: float  # seconds of the actor's and the critic's passes
    forward: float  # of passes without backward
    generation: float
    between: tuple[float, float] = (1.0, 1.0)  # the ends of the interval of what follows generation, as factors

    @property
    def trained(self) -> float:
        """Seconds of all that follows generation."""
        return self.training + self.forward

    def as_json(self) -> dict[str, Any]:
        row = self.row
        return {
            "balancer": row.balancer, "sync": row.sync,
            "training_seconds": self.training, "forward_seconds": self.forward,
            "generation_seconds": self.generation, "step_seconds": row.makespan_seconds, "dollars": row.dollars,
            "step_seconds_low": row.model_low, "dollars_low": row.dollars_low, "step_seconds_high": row.model_high,
            "dollars_high": row.dollars_high, "memory_bytes": row.memory_bytes, "memory_fits": row.memory_fits,
            "memory_limit": row.memory_limit, "memory_tight": capacity.tight(row), "fidelity": row.fidelity,
        } | ({"made": asdict(row.made)} if row.made else {})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Split:
    """GPUs that generate alone, beside those that train. What a step takes where the answers of the next one are
    written meanwhile, by weights of one step before; by the newest weights both follow each other."""

    generators: int
    step: RolloutStep  # on the other GPUs; its row is of all of them, one step ahead

    @property
    def in_turn(self) -> float:
        """Seconds of a step by the newest weights."""
        return self.step.trained + self.step.generation

    def as_json(self) -> dict[str, Any]:
        step, row = self.step, self.step.row
        return {
            "generators": self.generators, "generation_seconds": step.generation, "trained_seconds": step.trained,
            "in_turn_seconds": self.in_turn, "step_seconds": row.makespan_seconds, "dollars": row.dollars,
            "memory_bytes": row.memory_bytes, "memory_fits": row.memory_fits,
        }  # fmt: skip


@dataclass(frozen=True, slots=True, repr=False)
class RolloutSteps(Result):
    """Step seconds under every batching rule and each sync that is run with it."""

    setting: Setting  # of the updates, one behind the other
    batch: RolloutBatch
    around: Around
    generation: GenerationTime
    rows: tuple[RolloutStep, ...]
    splits: tuple[Split, ...]  # of the best row
    grouped: bool  # whether the lengths say which rollouts are of one prompt
    question: Question = field(repr=False)
    total_steps: int | None = None  # of the whole run

    def row(self, balancer: str, sync: str) -> RolloutStep:
        known = [step.row.pair for step in self.rows]
        if (balancer, sync) in known:
            return self.rows[known.index((balancer, sync))]
        syncs = [under for name, under in known if name == balancer]
        names = list(dict.fromkeys(name for name, _ in known))
        hint = misspelled(str(sync), syncs, alike=0.6) if syncs else misspelled(str(balancer), names, alike=0.6)
        there = f"{balancer} runs under {' or '.join(syncs)}" if syncs else f"there are {', '.join(names)}"
        raise InputError(f"no row of {balancer!s:.40} under {sync!s:.40}", fix=hint or there)

    @property
    def own(self) -> RolloutStep | None:
        """What the trainer that was asked for runs by itself."""
        return next((step for step in self.rows if step.row.made), None)

    @property
    def best(self) -> RolloutStep:
        """The trainer's own, where one was asked for; else the fastest of those that fit, or of those that are tight
        where none does."""
        return self.own or min(self.rows, key=lambda step: (capacity.level(step.row), step.row.makespan_seconds))

    @property
    def fidelity(self) -> str:
        """Of the seconds of all rows: of the least trusted."""
        return least_trusted(step.row.fidelity for step in self.rows)

    def whole(self, row: Row) -> Row:
        """The row as the whole run that was asked for. Its interval is as wide as a step's: what is most open is how
        fast the GPUs are, which many steps do not tell."""
        seconds = row.makespan_seconds
        return scaled(row, self.total_steps or 1, (row.model_low / seconds, row.model_high / seconds))

    def as_json(self) -> dict[str, Any]:
        """As `odcsim rl --json` prints it."""
        trace: Trace = self.question.trace
        said = {**asdict(self.batch), **self.around.inputs(), "total_steps": self.total_steps}
        said |= {"longest_answer": None, "longest_prompt": None}
        if trace.loss is not None:  # which says what of a rollout was generated
            said["longest_answer"] = int(trace.loss.max())
            said["longest_prompt"] = int((trace.lengths - trace.loss).max())
        whole = {"total_steps": self.total_steps, "rows": [self.spent(step.row) for step in self.rows]}
        return {
            "schema": 1,
            "inputs": {**inputs(self.setting), "kind": GRPO, "grouped": self.grouped, **said},
            "held_fixed": fixed(self.setting),
            "fidelity": self.fidelity,
            "basis": "one step, on average",
            "generation": {**asdict(self.generation), "estimated": self.generation.estimated},
            "rows": self.records(),
            "splits": [split.as_json() for split in self.splits],
            "run": whole if self.total_steps else None,
        }

    def spent(self, row: Row) -> dict[str, Any]:
        """What the whole run takes by a row."""
        return {"row": row.name, **{key: getattr(self.whole(row), name) for name, key in SPENT.items()}}

    def records(self) -> list[dict[str, Any]]:
        """Its rows, flat."""
        return [step.as_json() for step in self.rows]


@RL.take
def rl(
    trace: Trace | str | os.PathLike[str] | ArrayLike,
    model: str,
    *,
    prompts: int,
    rollouts: int,
    updates: int = 1,
    steps: int = 20,
    forward_passes: int = 2,
    critic: bool = False,
    generation_seconds: float | str | None = None,
    tensor_parallel: int | None = None,
    total_steps: int | None = None,
    **words: Any,
) -> RolloutSteps:
    """A whole step of reinforcement learning: `prompts` times `rollouts` samples, drawn by groups, trained on in
    `updates`, with passes without backward and generation beside it: estimated by bytes and FLOPs, on engines of
    `tensor_parallel` GPUs, unless its seconds are given. `total_steps`: of the whole run. `words`: the other fields of
    a question, `devices=4`, and of its recipe."""
    batch = batch_of(prompts, rollouts, updates, steps)
    around = around_of(forward_passes, critic, generation_seconds, tensor_parallel)
    total = total_steps if total_steps is None else COUNT.check("total_steps", total_steps)
    question = read(question_by({"trace": trace, "model": model, **words}))
    return predict_steps(question, batch, around, total_steps=total)


def batch_of(prompts: int, rollouts: int, updates: int, steps: int) -> RolloutBatch:
    own = {"prompts": prompts, "rollouts": rollouts, "updates": updates, "steps": steps}
    return RolloutBatch(**{name: COUNT.check(name, value) for name, value in own.items()})


def around_of(passes: int, critic: bool, generation: float | str | None, parallel: int | None) -> Around:
    passes, critic = PASSES.check("forward_passes", passes), FLAG.check("critic", critic)
    try:
        time = read_seconds(generation) if isinstance(generation, str) else generation
    except argparse.ArgumentTypeError as error:
        raise InputError(f"--generation-seconds holds '{generation:.40}': {error}", fix=TIME) from None
    time = time if time is None else float(AMOUNT.check("generation_seconds", time, TIME))
    return Around(passes, critic, time, parallel if parallel is None else COUNT.check("tensor_parallel", parallel))


def predict_steps(
    question: Question,
    batch: RolloutBatch,
    around: Around,
    *,
    total_steps: int | None = None,
    advance: Callable[[], None] = lambda: None,
    make_setting: Callable[[Question], Setting] = setting_of,
) -> RolloutSteps:
    """Of a question whose lengths are read. `advance` is called once for each deal and each run of one, as `count_work`
    counts them; `make_setting` is for who tells how far it is with that."""
    if (trainer := stock.find(question.trainer)) is not None:
        stock.check(question.trace, question.recipe, trainer)
    if question.recipe.value("loss") == "chunked" and not question.profile:  # which says what ran
        question = replace(question, recipe=question.recipe.by(loss="policy"))
    steps = Steps(question, batch, around, make_setting)
    rows = []
    for dealer in dealers(question.trainer):
        rows += steps.by(dealer)
        for _ in range(1 + len(dealer.syncs)):
            advance()
    grouped = question.trace.group is not None
    result = RolloutSteps(
        steps.setting, batch, around, steps.generation, tuple(rows), (), grouped, question, total_steps
    )
    return replace(result, splits=tuple(splits(steps, result.best)))


class Steps:
    """The steps of a question before they are dealt: the same for every rule."""

    def __init__(
        self, question: Question, batch: RolloutBatch, around: Around,
        make_setting: Callable[[Question], Setting] = setting_of, generators: int = 0,
    ) -> None:  # fmt: skip
        """`generators`: of the GPUs, those that do not train."""
        trace: Trace = question.trace
        self.question, self.batch, self.around, self.generators = question, batch, around, generators
        own = replace(question, devices=question.devices - generators)
        share, count = batch.share(own), batch.steps * batch.updates
        check_drawn(batch.samples // batch.updates, count, trace.name)
        self.steps, prompts, size = draw_steps(trace, batch, question.seed)
        asked = replace(own, trace=self.steps, minibatch=share, minibatches=count, in_order=True)
        self.setting = make_setting(asked)
        self.minibatches = draw_minibatches(self.setting)
        # Prompts are what is drawn: siblings come together, and are alike.
        work = np.concatenate([one.weights for one in self.minibatches]).reshape(*prompts.shape, -1).sum(axis=2)
        file, siblings = in_file(trace, self.setting.cost), trace.siblings
        self.about = draws(list(prompts), list(work), size, file=file, siblings=siblings, whole=self.setting.whole)
        self.generation = self.generate()

    def generate(self) -> GenerationTime:
        """What the answers of a step take where they are written; nothing where nobody knows the GPU's memory."""
        given, cost, batch = self.around.generation, self.setting.cost, self.batch
        hardware = gpu_of(self.question, self.setting)
        if given is not None or hardware is None:
            return GenerationTime(given or 0.0)
        gpus = self.generators or cost.cluster.gpus
        cluster, share = replace(cost.cluster, gpus=gpus), ALONE if self.generators else SHARED
        engine = engine_of(cost.model, hardware, cluster, share, self.around.tensor_parallel)
        lengths, trace = self.steps.lengths, self.steps
        answers = lengths if trace.loss is None else trace.loss
        parts = (np.split(of, batch.steps) for of in (lengths - answers, answers))
        drawn = list(zip(*parts, strict=True))
        found = generate(engine, gpus, drawn, batch.rollouts)
        if found is None:
            problem = f"generation: {gpus} x {hardware.name} do not hold {cost.model.name} and its longest answer"
            raise InputError(problem, fix="give --tensor-parallel, more GPUs, or --generation-seconds")
        others = (generate(engine, gpus, few, batch.rollouts) for few in other_pilots(self.question, batch))
        logs = [math.log(one.seconds) for one in others if one is not None]
        return replace(found, open=float(np.std(logs)) if logs else 0.0)

    def by(self, dealer: "Dealer") -> list[RolloutStep]:
        """The rows of a rule, one for each sync."""
        setting, updates = self.setting, self.batch.updates
        schedules, rows = dealer.schedules(setting, self.minibatches, updates), []
        for sync in dealer.syncs:
            way = Way(setting, dealer.name, sync)
            step = predict_step(way, schedules, updates, self.around, self.about, self.generation)
            if dealer.trainer == setting.trainer and sync == MEETING:
                step = replace(step, row=replace(step.row, made=made(setting, dealer, schedules)))
            rows.append(step)
        return rows


def one_row(question: Question, batch: RolloutBatch, around: Around, pair: tuple[str, str]) -> RolloutStep:
    """That of one rule under one sync."""
    balancer, sync = pair
    dealer = next(one for one in dealers(question.trainer) if one.name == balancer)
    [step] = Steps(question, batch, around).by(replace(dealer, syncs=(sync,)))
    return step


def other_pilots(question: Question, batch: RolloutBatch) -> Iterator[list[tuple[Ints, Ints]]]:
    """A few steps of each of some pilots that might have been recorded instead: as many prompts of this one, drawn anew
    and with repeats, from which steps draw as they do from this one."""
    trace: Trace = question.trace
    rng, known = np.random.default_rng(question.seed), trace.prompts
    size = trace.size if known is None else int(known.max()) + 1
    if question.whole or size > LARGE:
        return
    each, steps = 1 if known is None else batch.rollouts, min(batch.steps, FEW_STEPS)
    members = [] if known is None else np.split(np.argsort(known, kind="stable"), np.cumsum(np.bincount(known))[:-1])
    count = steps * batch.samples // each
    for _ in range(PILOTS):
        pilot = rng.integers(0, size, size)
        ids = np.concatenate([rng.permutation(pilot) for _ in range(-(-count // size))])[:count]
        if members:
            few = [members[prompt] for prompt in ids]
            ids = np.concatenate([rng.choice(of, each, replace=len(of) < each) for of in few])
        lengths = trace.take(ids)
        answers = lengths if trace.loss is None else trace.loss[trace.rows(ids)]
        parts = (np.split(of, steps) for of in (lengths - answers, answers))
        yield list(zip(*parts, strict=True))


def gpu_of(question: Question, setting: Setting) -> GPU | None:
    """What is known of the GPU; None of one that a profile was measured on and no catalogue has."""
    try:
        return catalog.gpu(question.gpu or setting.cost.profile.gpu)
    except InputError:
        return None


def splits(steps: Steps, best: RolloutStep) -> Iterator[Split]:
    """Some GPUs that generate alone: every share that trains on the same samples, and holds what it has to."""
    gpus, engine = steps.question.devices, steps.generation.engine_gpus
    dealer = next(one for one in dealers(steps.question.trainer) if one.name == best.row.balancer)
    dealer, asked = replace(dealer, syncs=(best.row.sync,)), replace(steps.question, max_tokens=steps.setting.limit)
    for share in SHARES if steps.generation.estimated else ():
        if (gpus * share) % engine:
            continue
        try:
            other = Steps(asked, steps.batch, steps.around, generators=int(gpus * share))
            [step] = other.by(dealer)
            if capacity.level(step.row) > capacity.level(best.row):  # by a limit of its own
                other = Steps(steps.question, steps.batch, steps.around, generators=int(gpus * share))
                [step] = other.by(dealer)
        except InputError:  # samples do not divide, or an engine does not hold the model
            continue
        yield Split(other.generators, one_step_ahead(step, other.generation, gpus, other.setting))


def one_step_ahead(step: RolloutStep, generation: GenerationTime, gpus: int, setting: Setting) -> RolloutStep:
    """A step of GPUs that train, whose answers others write meanwhile: the slower side says how long it takes, and all
    GPUs are paid for."""
    ends = zip(step.between, generation.between, strict=True)
    seconds, *between = (max(step.trained * end, step.generation * its) for end, its in ((1.0, 1.0), *ends))
    row = scaled(step.row, seconds / step.row.makespan_seconds, (between[0] / seconds, between[1] / seconds))
    more = gpus / setting.cost.cluster.gpus
    hours = row.gpu_hours * more, row.gpu_hours_low * more, row.gpu_hours_high * more
    row = replace(row, gpu_hours=hours[0], gpu_hours_low=hours[1], gpu_hours_high=hours[2])
    return replace(step, row=priced(row, setting.price))


def predict_step(
    way: Way, schedules: Sequence[Schedule], updates: int, around: Around, about: Draws, generation: GenerationTime
) -> RolloutStep:
    """One row, whose interval is of its seconds and of which prompts were drawn."""
    setting, cost = way.setting, way.cost
    used, limit = simulation.usage(schedules, cost, seed=setting.seed), cost.cluster.memory_bytes or None
    most = max(schedule.fullest for schedule in schedules), setting.trace.longest
    row = costed(cost, way.balancer, used, simulation.carried(schedules), most, limit, setting.price)
    trained = used.makespan.reshape(-1, updates).sum(axis=1) * (1 + around.critic)
    passed = forward(cost, schedules, updates) * (around.passes + around.critic)
    ends = of_run(trained + passed, about, cost.profile.low, cost.profile.high)
    training, passes = float(trained.mean()), float(passed.mean())
    seconds = training + passes + generation.seconds
    low, high = (
        (training + passes) * end + generation.seconds * its for end, its in zip(ends, generation.between, strict=True)
    )
    row = scaled(row, seconds / row.makespan_seconds, (low / seconds, high / seconds))
    row = replace(row, fidelity=simulation.fidelity(cost, schedules))
    return RolloutStep(row, training, passes, generation.seconds, ends)


def draw_steps(trace: Trace, batch: RolloutBatch, seed: int) -> tuple[Trace, Ints, int]:
    """Steps of prompts times rollouts, one behind the other, drawn from recorded groups: what a pilot of fewer says of
    a run of more. With them which of the recorded prompts each step has [step, prompt], and how many there are.

    Siblings stay together; an update never spans two steps, and is a `step` of the trace. Every group comes once before
    any comes again, and one that is smaller than asked gives samples twice. Without groups, samples are drawn singly,
    and stand for prompts: a prompt's rollouts are then no more alike than any others.
    """
    if trace.bundle is not None:
        fix = "give lengths of rollouts, or ask 'odcsim compare'"
        raise InputError(
            f"{trace.unit}s are not rollouts: each rollout is assigned on its own", where=trace.name, fix=fix
        )
    rng, known = np.random.default_rng(seed), trace.prompts
    groups = [] if known is None else np.split(np.argsort(known, kind="stable"), np.cumsum(np.bincount(known))[:-1])
    size, each = (len(groups), batch.prompts) if groups else (trace.size, batch.samples)
    passes = [rng.permutation(size) for _ in range(-(-batch.steps * each // size))]
    prompts = np.concatenate(passes)[: batch.steps * each].astype(np.int64)
    few = [groups[prompt] for prompt in prompts] if groups else []
    some = [rng.choice(group, batch.rollouts, replace=len(group) < batch.rollouts) for group in few]
    ids = np.concatenate(some) if groups else prompts
    group = np.repeat(np.arange(batch.steps * batch.prompts), batch.rollouts)
    update = np.repeat(np.arange(batch.steps * batch.updates), batch.samples // batch.updates)
    loss = None if trace.loss is None else trace.loss[trace.rows(ids)]
    steps = Trace(trace.name, trace.take(ids), None, loss, group, update, trace.origin)
    return steps, prompts.reshape(batch.steps, each), size


def deal_in_order(setting: Setting, step: Sequence[Schedule]) -> list[Schedule]:
    """Samples in equal numbers; a microbatch is full when the next does not fit."""
    schedules = []
    for update in step:
        lengths, devices = update.lengths, list[list[list[int]]]()
        for samples in _shares(setting):
            device = [list[int]()]
            for sample in samples:
                if sum(lengths[i] for i in (*device[-1], sample)) <= setting.limit:
                    device[-1].append(sample)
                else:
                    device.append([sample])
            devices.append(device)
        most = max(map(len, devices))
        for device in devices:  # collectives meet in every microbatch: who has fewer splits its largest
            while len(device) < most:
                at = max(range(len(device)), key=lambda m: len(device[m]))
                half = len(device[at]) // 2
                device[at : at + 1] = [device[at][:half], device[at][half:]] if half else [device[at], []]
        schedules.append(update.dealt(flattened(devices)))
    return schedules


def deal_in_counts(setting: Setting, step: Sequence[Schedule]) -> list[Schedule]:
    """TRL's rule (1.16.0: GRPOTrainer): what a device has in a step is padded to its longest, and then cut into updates
    and microbatches of so many samples."""
    each, shares = counted(setting), _shares(setting)
    longest = [max(update.lengths[i] for update in step for i in samples) for samples in shares]
    padded = tuple(longest[device] for device, samples in enumerate(shares) for _ in samples)
    deal = [[samples[at : at + each] for at in range(0, len(samples), each)] for samples in shares]
    return [replace(update.dealt(flattened(deal)), lengths=padded, loss=()) for update in step]


def counted(setting: Setting) -> int:
    """Samples of a microbatch: the most that divide a device's and fit however long they are."""
    sizes = [each for each in range(1, setting.minibatch + 1) if not setting.minibatch % each]
    return max((each for each in sizes if each * setting.trace.longest <= setting.limit), default=1)


def _shares(setting: Setting) -> list[list[int]]:
    """The samples of each device, as they come."""
    shares: list[list[int]] = np.arange(setting.batch).reshape(setting.cost.workers, -1).tolist()
    return shares


def deal_at_once(setting: Setting, step: Sequence[Schedule]) -> list[Schedule]:
    """verl's rule (0.9.1): all samples of a step, of which each device cuts its own into updates."""
    return verl.deal_once(step, setting.cost.workers, setting.limit)


@dataclass(frozen=True, slots=True)
class Dealer:
    """How a step's samples come to devices and microbatches, and the syncs that are simulated with it."""

    name: str
    syncs: tuple[str, ...]
    trainer: str = ""  # that deals so by itself
    deal: Callable[[Setting, Sequence[Schedule]], list[Schedule]] | None = None  # of a step; else by this balancer

    def schedules(self, setting: Setting, minibatches: Sequence[Drawn], updates: int) -> Sequence[Schedule]:
        """Of the updates of all steps, one behind the other."""
        if self.deal is None:
            return assign(setting, self.name, minibatches).schedules
        every = [minibatch.unassigned for minibatch in minibatches]
        steps = [every[first : first + updates] for first in range(0, len(every), updates)]
        return [schedule for step in steps for schedule in self.deal(setting, step)]


DEALERS = (
    Dealer("padded", (MEETING,), "trl", deal_in_counts),
    Dealer("packed", (MEETING,), deal=deal_in_order),
    Dealer("rollout", SIDES, "verl", deal_at_once),
    Dealer("lb-micro", (MEETING,)),
    Dealer("sorted-slice", (MEETING,)),
    Dealer("lb-mini", (ONE_SIDED,)),
)
OF_TRAINERS = (Dealer("slime", (MEETING,), "slime"), Dealer("nemo-rl", (MEETING,), "nemo-rl"))  # where asked for


def made(setting: Setting, dealer: Dealer, schedules: Sequence[Schedule]) -> Made:
    """What the settings of the trainer that deals so make of an update."""
    tokens = sum(sum(schedule.lengths) for schedule in schedules) / len(schedules)
    each = counted(setting) if dealer.deal is deal_in_counts else 0
    return Made(setting.limit, setting.minibatch, each, float(setting.batch), tokens)


def dealers(trainer: str | None) -> tuple[Dealer, ...]:
    """All of them, with the rule of a trainer that was asked for."""
    if (known := stock.find(trainer)) is None:
        return DEALERS
    names = [dealer.trainer for dealer in (*DEALERS, *OF_TRAINERS) if dealer.trainer]
    if known.name not in names:
        fix = f"ask for {', '.join(names)} or {stock.ENGINE}"
        raise InputError(f"{known.name} does not train on rollouts", fix=fix)
    return (*DEALERS, *(dealer for dealer in OF_TRAINERS if dealer.trainer == known.name))


def count_work(trainer: str | None) -> int:
    """Deals, and the runs of each."""
    return sum(1 + len(dealer.syncs) for dealer in dealers(trainer))

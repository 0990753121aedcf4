"""What a user does with a model and its optimizer, in the order of a training loop or in any other; and what is seen of
it. The same habits are followed by the devices of a pool and by one process that has all the data and knows of no
engine: what they see has to be the same, or a device has to have refused to go on."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import nets
import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from work import Case, whole

from odc_engine import OnDemand
from odc_engine.errors import EngineError
from odcsim.errors import InputError

RATE = 0.05
BOUND = 2e-5
HOW = {"timeout": 8.0, "average": False}  # one process adds up, too

Seen = float | dict[str, Tensor | None]


@dataclass(frozen=True)
class Habit:
    """`counts`: microbatches of each device in each minibatch; `wrap`: how the model is sharded, if not layer by
    layer; `how`: what OnDemand is told; `calls`: a method of FSDP2 that older versions of torch have not; `since`: the
    first torch whose stock FSDP2 is known to do it."""

    follow: Callable[["User"], None]
    counts: tuple[int, ...] = (2, 1)
    model: Callable[[], nn.Module] = nets.Net
    wrap: Callable[[nn.Module], None] | None = None
    how: dict[str, Any] = field(default_factory=dict)
    bound: float = BOUND
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.SGD
    calls: str = ""
    since: str = ""

    @property
    def wanting(self) -> str:
        """What this torch lacks for it."""
        if self.calls and not hasattr(FSDPModule, self.calls):
            return f"this torch's FSDP2 has no {self.calls}"
        older = self.since and torch.__version__ < self.since
        return f"needs torch {self.since}, under stock FSDP2 too" if older else ""

    @property
    def case(self) -> Case:
        return Case(self.counts, model=self.model)


class User:
    """In the reference, `odc` is None and this process is every device."""

    odc: OnDemand | None = None
    rank: int | None = None

    def __init__(self, habit: Habit, model: nn.Module) -> None:
        self.habit, self.model = habit, model
        self.seen: list[Seen] = []
        self.number = -1
        self.optimizer = self.new_optimizer()

    @property
    def dtype(self) -> torch.dtype:
        return next(self.model.parameters()).dtype

    @property
    def ranks(self) -> list[int]:
        return list(range(len(self.habit.counts))) if self.rank is None else [self.rank]

    def new_optimizer(self) -> torch.optim.Optimizer:
        return self.habit.optimizer(self.model.parameters(), lr=RATE)

    def do(self, words: str, *more: Callable[["User"], None]) -> None:
        """What a user can do, or `more`, in this order: `3 x backward step; backward:1,0 step@1` is three times the
        first two, then a minibatch of one microbatch on device 0, and a step of device 1 alone."""
        others = {each.__name__: each for each in more}
        for part in words.split("; "):
            times, _, calls = part.rpartition(" x ")
            for call in calls.split() * int(times or 1):
                name, counts, device = re.fullmatch(r"(\w+)(?::([\d,]+))?(?:@(\d))?", call).groups()
                if device is None or self.rank == int(device):
                    what = partial(others[name], self) if name in others else getattr(self, name)
                    what(*[tuple(map(int, counts.split(",")))] if counts else [])

    # What every loop does.

    def loss(self, rank: int, microbatch: int) -> Tensor:
        return nets.loss(self.model, rank, microbatch, self.number)

    def backward(self, counts: tuple[int, ...] | None = None) -> None:
        """This device's microbatches of another minibatch."""
        self.number += 1
        for rank in self.ranks:
            for microbatch in range((counts or self.habit.counts)[rank]):
                self.loss(rank, microbatch).backward()

    def settle(self) -> None:
        if self.odc:
            self.odc.settle()

    def publish(self) -> None:
        """As documented, it drops the gradients."""
        if self.odc:
            self.odc.publish()
        else:
            self.model.zero_grad()

    def step(self) -> None:
        self.optimizer.step()

    def zero(self, **how: bool) -> None:
        self.optimizer.zero_grad(**how)

    def zeros(self) -> None:
        self.zero(set_to_none=False)

    def zero_model(self) -> None:
        self.model.zero_grad()

    def forward(self) -> None:
        """The first half of another minibatch, of one microbatch on each device; the second half is `go_back`."""
        self.number += 1
        self.losses = [self.loss(rank, 0) for rank in self.ranks]

    def go_back(self) -> None:
        for loss in self.losses:
            loss.backward()

    def attach(self, *optimizers: torch.optim.Optimizer) -> None:
        """This user's, where no others are named."""
        if self.odc:
            self.odc.attach(*optimizers or [self.optimizer])

    def usual(self, counts: tuple[int, ...] | None = None) -> None:
        """A minibatch of a loop that knows nothing of the engine."""
        self.backward(counts)
        self.do("clip step zero")

    def renew(self) -> None:
        self.optimizer = self.new_optimizer()

    def reopen(self) -> None:
        """Another OnDemand of the model."""
        if self.odc:
            self.odc.close()
            self.odc = OnDemand(self.model, **HOW | self.habit.how)

    def reopen_attached(self) -> None:
        self.do("reopen attach")

    def go_on_without(self) -> None:
        """Stock FSDP2 from here, told to add up as one process does."""
        if self.odc:
            self.odc.close()
            self.odc = None
            for module in self.model.modules():
                if hasattr(module, "set_gradient_divide_factor"):
                    module.set_gradient_divide_factor(1.0)
                    module.set_force_sum_reduction_for_comms(True)

    def finish(self) -> None:
        """From a minibatch's last backward pass to the next one's first, as documented."""
        self.do("settle step zero publish")

    def minibatch(self, counts: tuple[int, ...] | None = None) -> None:
        self.backward(counts)
        self.finish()

    def clip(self, most: float = 0.05) -> None:
        self.seen.append(whole(nn.utils.clip_grad_norm_(self.model.parameters(), most)).item())

    def infer(self) -> None:
        self.evaluate(torch.inference_mode)

    def evaluate(self, context: Callable[[], Any] = torch.no_grad, microbatches: int = 2) -> None:
        with context():
            for microbatch in range(microbatches):
                self.seen.append(nets.loss(self.model, 0, microbatch, 77).item())

    # What changes weights.

    def halve(self) -> None:
        for p in self.model.parameters():
            local(p.data).mul_(0.5)

    def load_half(self, assign: bool = False) -> None:
        self.model.load_state_dict({k: 0.5 * v for k, v in self.model.state_dict().items()}, assign=assign)

    def assign_half(self) -> None:
        self.load_half(assign=True)

    def freeze(self) -> None:
        self.model.layers[1].requires_grad_(False)

    def unfreeze(self) -> None:
        self.model.layers[1].requires_grad_(True)

    # What is looked at.

    def look_at_gradients(self) -> None:
        self.seen.append({name: mine(p.grad) for name, p in self.model.named_parameters()})

    def look_at_weights(self) -> None:
        self.seen.append({name: mine(p) for name, p in self.model.named_parameters()})


def local(value: Tensor) -> Tensor:
    return value.to_local() if isinstance(value, DTensor) else value


def mine(value: Tensor | None) -> Tensor | None:
    """This device's part, which nobody has to be asked for."""
    return None if value is None else local(value).detach().clone()


# On a device.


@dataclass(frozen=True)
class Outcome:
    """`refused`: the words, or nothing. `failed`: what should never happen."""

    rank: int
    seen: list[Seen]
    refused: str = ""
    lost: str = ""
    failed: str = ""


def follow(rank: int, habit: Habit) -> Outcome:
    model = habit.case.fresh()
    (habit.wrap or by_layers)(model)
    odc, user = None, None
    try:
        odc = OnDemand(model, **HOW | habit.how)
        user = User(habit, model)
        user.odc, user.rank = odc, rank
        habit.follow(user)
        user.model.zero_grad()
        sharded(user.model)
        user.look_at_weights()
        return Outcome(rank, user.seen)
    except InputError as error:
        return Outcome(rank, user.seen if user else [], refused=str(error))
    except EngineError as error:
        return Outcome(rank, user.seen if user else [], lost=str(error))
    except Exception as error:
        return Outcome(rank, user.seen if user else [], failed=f"{type(error).__name__}: {error}")
    finally:
        for each in filter(None, (odc, user and user.odc)):
            each.close()


def by_layers(model: nn.Module, **how: Any) -> None:
    for each in (*model.layers, model):
        fully_shard(each, **how)


def sharded(model: nn.Module) -> None:
    for module in model.modules():
        if hasattr(module, "reshard"):
            module.reshard()


# In one process.


def alone(habit: Habit) -> tuple[list[Seen], bool]:
    """What is seen, and whether it ends in an error of torch's own."""
    user = User(habit, habit.case.fresh().double())
    try:
        habit.follow(user)
    except RuntimeError:
        return user.seen, True
    user.look_at_weights()
    return user.seen, False


def verdict(outcomes: list[Outcome], expected: list[Seen], fails: bool = False, bound: float = BOUND) -> str:
    """`works`, or the words of the refusal, or what else there was."""
    ends = [o for o in outcomes if o.refused or o.failed or o.lost]
    # Who waits in vain for a device that has refused may have looked at what never came to be.
    last = min((len(o.seen) for o in ends), default=len(expected))
    for outcome in outcomes:
        if outcome.failed and not fails:
            return f"FAILED: {outcome.failed}"
        pairs = zip(outcome.seen, expected[:last], strict=False)
        if not all(_equal(one, other, outcome.rank, len(outcomes), bound) for one, other in pairs):
            return "WRONG"
    if ends:  # who names a way out first
        every = [o.refused or o.failed.partition(": [")[0] for o in ends] + [o.lost for o in ends]
        return re.sub(r" \(pid \d+\)", "", max(filter(None, every), key=lambda words: ";" in words))
    return "works" if not fails and all(len(o.seen) == len(expected) for o in outcomes) else "WRONG: saw less"


def _equal(found: Seen, expected: Seen, rank: int, devices: int, bound: float) -> bool:
    if isinstance(found, float):
        return abs(found - expected) <= bound * max(1.0, abs(expected))
    unused = {name for name, value in expected.items() if value is None}
    if {name for name, value in found.items() if value is None} != unused:
        return False
    return all(_close(found[name], expected[name], rank, devices, bound) for name in expected.keys() - unused)


def _close(found: Tensor, whole: Tensor, rank: int, devices: int, bound: float) -> bool:
    """To a device's rows, unless it has seen all."""
    rows = -(-len(whole) // devices)
    expected = whole if found.shape == whole.shape else whole[rank * rows : (rank + 1) * rows]
    if found.shape != expected.shape:
        return False
    difference = (found.double() - expected.double()).abs()
    return bool((difference <= bound * max(float(expected.abs().amax() if expected.numel() else 0), 1e-3)).all())


def found(pools, habit: Habit) -> str:
    """What a habit comes to."""
    return verdict(pools(len(habit.counts)).run(follow, habit), *alone(habit), habit.bound)

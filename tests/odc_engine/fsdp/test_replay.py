"""What a loop fed back to a model's outputs, noted and replayed: gradients are autograd's, whatever was returned."""

import contextlib
import copy
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from odc_engine.runs.replay.plain_copy import plain
from odc_engine.runs.replay.recording import Recording, replay

WIDTH, TENSORS = 3, 6


@dataclass
class Returned:
    loss: Tensor
    hidden: list[Tensor]
    name: str = "no tensor"


class Pair(NamedTuple):
    first: Tensor
    rest: dict[str, Any]


class Named(OrderedDict):
    """As a ModelOutput of transformers, but nobody has told pytrees of it."""


CONTAINERS: dict[str, Callable[[list[Tensor]], Any]] = {
    "tuple": tuple,
    "dict": lambda found: {str(i): one for i, one in enumerate(found)},
    "dataclass": lambda found: Returned(found[0], found[1:]),
    "nested": lambda found: (None, [{"a": found[0]}, Pair(found[-1], {"rest": tuple(found[1:-1]), "n": 3})]),
    "mapping": lambda found: Named((str(i), one) for i, one in enumerate(found)),
}


class Several(nn.Module):
    """Each tensor is made of earlier ones, by its recipe; some of them are returned, one perhaps twice."""

    def __init__(self, recipe: list[tuple[int, int, str]], returned: list[int], container: str) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in recipe)
        self.recipe, self.returned, self.container = recipe, returned, container

    def forward(self, x: Tensor) -> Any:
        found = [x]
        for layer, (one, other, way) in zip(self.layers, self.recipe, strict=True):
            found.append(WAYS[way](layer, found[one % len(found)], found[other % len(found)]))
        return CONTAINERS[self.container]([found[i % len(found)] for i in self.returned])


WAYS: dict[str, Callable[[nn.Module, Tensor, Tensor], Tensor]] = {
    "layer": lambda layer, one, other: torch.tanh(layer(one) + other),
    "product": lambda layer, one, other: layer(one) * other,
    "no layer": lambda layer, one, other: one + 2 * other,  # noqa: ARG005
    "one number": lambda layer, one, other: (layer(one) - other).square().mean() + torch.zeros_like(one),
    "cut off": lambda layer, one, other: layer(one).detach() + other,
    "part": lambda layer, one, other: (layer(one) + other).unbind(-1)[0].unsqueeze(-1) + other,
    "checkpoint": lambda layer, one, other: checkpoint(lambda a, b: layer(a) * b, one, other, use_reentrant=False),
    "old checkpoint": lambda layer, one, other: old_checkpoint(lambda a, b: layer(a) * b, one, other),
}


def old_checkpoint(compute: Callable[..., Tensor], one: Tensor, other: Tensor) -> Tensor:
    """It knows no torch.autograd.grad, and computes without gradients where no input wants one."""
    wanted = one.requires_grad or other.requires_grad
    return checkpoint(compute, one, other, use_reentrant=True) if wanted else compute(one, other)


def tensors(output: Any) -> list[Tensor]:
    if isinstance(output, Tensor):
        return [output]
    if isinstance(output, Returned):
        return tensors([output.loss, output.hidden])
    if isinstance(output, dict):
        return tensors(list(output.values()))
    return [each for part in output for each in tensors(part)] if isinstance(output, list | tuple) else []


def total(outputs: list[Tensor], factors: list[float]) -> Tensor:
    own = [output for output in outputs if output.requires_grad]
    return sum((f * output.sin().sum() for f, output in zip(factors, own, strict=False)), torch.zeros(()))


def one_backward(outputs: list[Tensor], factors: list[float]) -> None:
    total(outputs, factors).backward()


def twice(outputs: list[Tensor], factors: list[float]) -> None:
    total(outputs, factors).backward(retain_graph=True)
    total(outputs, factors[::-1]).backward()


def each_alone(outputs: list[Tensor], factors: list[float]) -> None:
    for output, factor in zip(outputs, factors, strict=False):
        if output.requires_grad:
            output.backward(factor * torch.ones_like(output), retain_graph=True)


def looked_at_first(outputs: list[Tensor], factors: list[float]) -> None:
    """Gradients of outputs alone, as adversarial training asks for them; nothing is added up."""
    asked = total(outputs, factors)
    with contextlib.suppress(RuntimeError):  # of old checkpoints
        torch.autograd.grad(asked, [output for output in outputs if output.requires_grad], retain_graph=True)
    asked.backward()


LOOPS = {loop.__name__: loop for loop in (one_backward, twice, each_alone, looked_at_first)}
numbers = st.integers(0, TENSORS)
models = st.builds(
    Several,
    st.lists(st.tuples(numbers, numbers, st.sampled_from(list(WAYS))), min_size=1, max_size=TENSORS),
    st.lists(numbers, min_size=2, max_size=4),
    st.sampled_from(list(CONTAINERS)),
)
factors = st.lists(st.sampled_from([-2.0, 0.0, 0.5, 3.0]), min_size=4, max_size=4)


def held(model: nn.Module, loop: Callable[[nn.Module], None]) -> None:
    """That a replay finds what autograd found."""
    torch.manual_seed(0)
    model = model.double()
    fresh = copy.deepcopy(model)
    recording = Recording(model)
    loop(model)
    recording.close()
    found = replay(fresh, recording.passes)
    for name, parameter in model.named_parameters():
        its, own = (torch.zeros_like(parameter) if g is None else g for g in (found[name], parameter.grad))
        torch.testing.assert_close(its, own, rtol=1e-10, atol=1e-12, msg=lambda text, n=name: f"{n}: {text}")


def inputs() -> Tensor:
    return torch.randn(4, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@given(models, factors, st.sampled_from(list(LOOPS)))
def test_a_replay_is_autograds_own(model, factors, loop):
    def run(model):
        outputs = tensors(model(inputs()))
        if any(output.requires_grad for output in outputs):
            LOOPS[loop](outputs, factors)

    held(model, run)


@given(models, factors, st.booleans())
def test_so_it_is_of_several_passes_before_one_backward(model, factors, chained):
    """The first one's output goes into the second, or both meet in the loss as in a KL term."""

    def run(model):
        first = tensors(model(inputs()))
        mixed = sum(one.sum() for one in first) * inputs() if chained else inputs().flip(0)
        second = tensors(model(mixed))
        if any(output.requires_grad for output in second):
            with torch.no_grad():
                model(inputs())
            pairs = zip(first, second, strict=True)
            (total(first + second, factors * 2) + sum((a * b.detach()).sum() for a, b in pairs)).backward()

    held(model, run)


class LossAndLogits(nn.Module):
    """As models of transformers return them."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> dict[str, Any]:
        hidden = self.head(x)
        logits = hidden + 0.0
        return {"loss": logits.square().mean(), "logits": logits, "hidden_states": (x, hidden), "cache": None}


def test_the_loop_gets_what_the_model_returned_and_may_change_it():
    """And a loss beside the logits that it is made of counts once."""
    kept = []

    class Keeping(LossAndLogits):
        def forward(self, x):
            kept.append(super().forward(x))
            return kept[-1]

    def run(model):
        found = model(inputs())
        assert found is kept[-1]
        found["hidden_states"][1].mul_(3.0)  # after the loss was made of it
        (found["loss"] + found["hidden_states"][1].sum()).backward()

    held(Keeping(), run)
    held(LossAndLogits(), lambda model: model(inputs())["loss"].backward())


def test_outputs_that_are_cast_on_their_way_to_the_loop_are_no_part_of_its_loss():
    """As FSDP2 casts them: the logits that the loop gets are not those that the loss was made of."""

    def run(model):  # the hook is before what notes outputs
        model.register_forward_hook(lambda *given: given[-1] | {"logits": given[-1]["logits"] * 1.0}, prepend=True)
        found = model(inputs())
        (found["loss"] + found["logits"].sin().sum()).backward()

    held(LossAndLogits(), run)


def test_a_compiled_model_is_copied_plainly():
    model = torch.compile(LossAndLogits().double(), backend="eager")
    copied = plain(model, {name: own.detach().clone() for name, own in model.named_parameters()})
    torch.testing.assert_close(copied(inputs())["loss"], model(inputs())["loss"])

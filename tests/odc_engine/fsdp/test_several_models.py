"""Several models in one job, each with its own communication or FSDP2's: every one is trained as in one process."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import nets
import pytest
import torch
import work
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.nn import functional as F  # noqa: N812
from work import Case

from odc_engine import OnDemand

COUNTS = ((2, 1), (1, 2), (2, 0))  # microbatches of each device, in each minibatch
NAMES = ("policy", "critic", "reference", "stock")


def made() -> dict[str, nn.Module]:
    models = {}
    for seed, name in enumerate(NAMES):
        torch.manual_seed(seed)
        models[name] = nets.Net(layers=2)
    models["reference"].requires_grad_(False)
    return models


@contextmanager
def sharded(models: dict[str, nn.Module]) -> Iterator[dict[str, OnDemand]]:
    """Each by itself, and on demand but for one."""
    for model in models.values():
        work.shard(Case((1, 1)), model)
    odcs = {name: OnDemand(models[name], average=False, timeout=20) for name in models if name != "stock"}
    try:
        yield odcs
    finally:
        for odc in odcs.values():
            odc.close()


def losses(models: dict[str, nn.Module], rank: int, microbatch: int, minibatch: int) -> list[Tensor]:
    """The policy's is held near the reference, the critic's to what the policy says."""
    tokens = nets.tokens_of(rank, microbatch, minibatch)
    with torch.no_grad():
        far = models["reference"](tokens, 0)
    said = models["policy"](tokens, 0)
    policy = F.mse_loss(said, far) + said.logsumexp(-1).mean()
    return [policy, F.mse_loss(models["critic"](tokens, 0), said.detach())]


def optimizers(models: dict[str, nn.Module], together: bool) -> list[torch.optim.Optimizer]:
    groups = [list(models[name].parameters()) for name in ("policy", "critic")]
    return [torch.optim.AdamW(group, lr=0.01) for group in ([groups[0] + groups[1]] if together else groups)]


def trained(models: dict[str, nn.Module], together: bool, ranks: list[int], by_hand: list[OnDemand], steps) -> None:
    """`together`: one optimizer for both that learn, and one backward pass."""
    stock = torch.optim.SGD(models["stock"].parameters(), lr=0.05)
    for optimizer in steps:
        optimizer.zero_grad()
    for number, counts in enumerate(COUNTS):
        for rank in ranks:
            for microbatch in range(counts[rank]):
                both = losses(models, rank, microbatch, number)
                for loss in [sum(both)] if together else both:
                    loss.backward()
            nets.loss(models["stock"], rank, 0, number).backward()
        for odc in by_hand:
            odc.settle()
        for optimizer in [*steps, stock]:
            if optimizer is not stock:
                nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], 1.0)
            optimizer.step()
            optimizer.zero_grad()
        for odc in by_hand:
            odc.publish()


def on_devices(rank: int, together: bool, attached: bool) -> dict[str, dict[str, Tensor]]:
    models = made()
    with sharded(models) as odcs:
        for module in models["stock"].modules():
            if isinstance(module, FSDPModule):
                module.set_gradient_divide_factor(1.0)
                module.set_force_sum_reduction_for_comms(True)
        learning, steps = [odcs["policy"], odcs["critic"]], optimizers(models, together)
        for odc, optimizer in zip(learning if attached else [], steps * 2, strict=False):
            odc.attach(optimizer)
        trained(models, together, [rank], [] if attached else learning, steps)
        return {name: work.whole_parameters(model) for name, model in models.items()}


@pytest.mark.parametrize("attached", [False, True])
@pytest.mark.parametrize("together", [False, True])
def test_each_is_trained_as_in_one_process(pools, together, attached):
    alone = {name: model.double() for name, model in made().items()}
    trained(alone, together, [0, 1], [], optimizers(alone, together))
    for found in pools(2).run(on_devices, together, attached):
        for name, model in alone.items():
            assert work.error(found[name], dict(model.named_parameters())) < 1e-5


def one_closed(rank: int) -> float:
    """The critic goes on under the optimizer of both when the policy's communication is closed."""
    models = made()
    with sharded(models) as odcs:
        [step] = optimizers(models, together=True)
        odcs["policy"].attach(step)
        odcs["critic"].attach(step)
        odcs["policy"].close()
        step.zero_grad()
        nets.loss(models["critic"], rank, 0).backward()
        norm = nn.utils.clip_grad_norm_(models["critic"].parameters(), 1.0)
        step.step()
        step.zero_grad()
    assert "zero_grad" not in vars(step)
    return norm.full_tensor().item()


def test_closing_one_leaves_the_other_attached(pools):
    alone = made()["critic"].double()
    for rank in range(2):
        nets.loss(alone, rank, 0).backward()
    norm = nn.utils.clip_grad_norm_(alone.parameters(), 1.0).item()
    assert pools(2).run(one_closed) == pytest.approx([norm] * 2, rel=1e-5)


@dataclass(frozen=True)
class Gan:
    """`cleared`: where the discriminator's gradients are cleared, by `zero_grad()` of its optimizer, or of the model,
    or by `publish()`. `late`: its forward passes come before. `counts`: the generator's microbatches."""

    cleared: tuple[str, ...] = ("before D",)
    by: str = "optimizer"
    late: bool = False
    counts: tuple[int, int] = (1, 1)


class Chain(nn.Module):
    def __init__(self, *widths: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(*widths[:2]), nn.Linear(*widths[1:])])

    def forward(self, x: Tensor) -> Tensor:
        return self.layers[1](F.relu(self.layers[0](x)))


def adversaries() -> dict[str, nn.Module]:
    torch.manual_seed(3)
    return {"generator": Chain(4, 9, 6), "judge": Chain(6, 9, 1)}


def play(models: dict[str, nn.Module], gan: Gan, ranks: list[int], odcs: list[OnDemand]) -> None:
    generator, judge = models.values()
    steps = [torch.optim.Adam(model.parameters(), lr=0.01) for model in models.values()]
    for odc, step in zip(odcs, steps, strict=False):
        odc.attach(step)
    dropped = odcs[1].publish if odcs else judge.zero_grad
    clear = {"optimizer": steps[1].zero_grad, "model": judge.zero_grad, "publish": dropped}[gan.by]
    dtype = next(judge.parameters()).dtype

    def noise(number: int, rank: int, which: int) -> Tensor:
        drawn = torch.Generator().manual_seed(number + 100 * rank + 10_000 * which)
        return torch.randn(5, 4, generator=drawn, dtype=torch.float64).to(dtype)

    for number in range(3):
        if "before D" in gan.cleared and not gan.late:
            clear()
        losses = []
        for rank in ranks:
            real, fake = F.pad(noise(number, rank, 1), (1, 1)), generator(noise(number, rank, 2)).detach()
            losses.append(F.softplus(-judge(real)).mean() + F.softplus(judge(fake)).mean())
        if gan.late:
            clear()
        for loss in losses:
            loss.backward()
        nn.utils.clip_grad_norm_(judge.parameters(), 0.5)
        steps[1].step()
        if "after D" in gan.cleared:
            clear()
        steps[0].zero_grad()
        for rank in ranks:
            for microbatch in range(gan.counts[rank]):
                F.softplus(-judge(generator(noise(number, rank, 3 + microbatch)))).mean().backward()
        steps[0].step()
        if "after G" in gan.cleared:
            clear()


def of_adversaries(rank: int, gan: Gan) -> list[dict[str, Tensor]] | None:
    """Nothing, where it is refused."""
    models = adversaries()
    with sharded(models) as odcs:
        refused = work.refused(lambda: play(models, gan, [rank], list(odcs.values())))
        return None if refused else [work.whole_parameters(model) for model in models.values()]


PLAYED = (
    Gan(),
    Gan(late=True),
    Gan(("before D", "after D"), by="model"),
    Gan(("after D", "after G")),
    Gan(("after G",), counts=(2, 1)),
    Gan(by="publish", counts=(1, 0)),
)


@pytest.mark.parametrize("gan", PLAYED, ids=str)
def test_adversaries_are_trained_as_in_one_process(pools, gan):
    alone = {name: model.double() for name, model in adversaries().items()}
    play(alone, gan, [0, 1], [])
    for found in pools(2).run(of_adversaries, gan):
        for model, weights in zip(alone.values(), found, strict=True):
            assert work.error(weights, dict(model.named_parameters())) < 1e-5


def test_what_one_device_alone_has_of_an_adversary_is_refused(pools):
    """Until publish() drops it, as in the last one that is played above."""
    assert pools(2).run(of_adversaries, Gan(counts=(1, 0))) == [None, None]

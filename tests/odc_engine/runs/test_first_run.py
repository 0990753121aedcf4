"""One minibatch of a user's own model and loop against one process: what is right is called so, what is not is not."""

from functools import partial

import nets
import pytest
import torch
import work
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from work import Case

from odc_engine import OnDemand, check
from odc_engine.cli import main
from odc_engine.errors import EngineError
from odc_engine.fsdp import on_demand

CASE = Case((2, 1))


class Drops(nets.Net):
    def forward(self, tokens, turn):
        return nn.functional.dropout(super().forward(tokens, turn), 0.3)


class Returns(nets.Net):
    """A loss beside the logits that it is made of, as models of transformers do."""

    def forward(self, tokens, turn):
        logits = super().forward(tokens, turn)
        return {"loss": logits.float().square().mean(), "logits": logits}


def loss_of(model, device, microbatch, minibatch=0):
    return model(nets.tokens_of(device, microbatch, minibatch), nets.turn(device, microbatch))["loss"]


def both(model, device, microbatch, minibatch=0):
    found = model(nets.tokens_of(device, microbatch, minibatch), nets.turn(device, microbatch))
    return found["loss"] + found["logits"].sin().mean()


class Compiled(Returns):
    """Whose loss and logits come out of one function of autograd."""

    def __init__(self) -> None:
        super().__init__()
        self.compute = torch.compile(self._compute, backend="aot_eager")

    def _compute(self, x):
        logits = x * 2
        return {"loss": logits.square().mean(), "logits": logits}

    def forward(self, tokens, turn):
        return self.compute(nets.Net.forward(self, tokens, turn))


class Single(nets.Net):
    """With an operation that there is no fp64 of, as that of experts."""

    def forward(self, tokens, turn):
        logits = super().forward(tokens, turn)
        if logits.dtype == torch.float64:
            raise RuntimeError("Expected mat_a to be Float32, got Double")
        return logits


class KeepsAHandle(nets.Net):
    """Of its hook, as models of transformers do that let embeddings want a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.handles = [self.embedding.register_forward_hook(lambda _, args, out: out * 2)]  # noqa: ARG005


CASES = {
    "plain": CASE,
    "one device without microbatches": CASE.but(counts=(2, 0)),
    "tied": CASE.but(model=partial(nets.Net, tied=True)),
    "frozen": CASE.but(model=nets.Half),
    "parameters of nobody": CASE.but(model=nets.Choosy),
    "recomputed": CASE.but(model=partial(nets.Net, recompute="no")),
    "dropout": CASE.but(model=Drops),
    "no fp64": CASE.but(model=Single),
    "a hook, and its handle": CASE.but(model=KeepsAHandle, units=("embedding", "layers")),
    "a loss and its logits": CASE.but(model=Returns, loss=loss_of),
    "a loss and its logits, both used": CASE.but(model=Returns, loss=both),
    "outputs of a compiled function": CASE.but(model=Compiled, loss=both),
    "bf16": CASE.but(policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16)),
}


def checked(rank: int, case: Case, wrong: float = 1.0) -> bool:
    with work.device(case) as (model, odc), pytest.MonkeyPatch.context() as patch:
        usual = on_demand.set_grads
        patch.setattr(on_demand, "set_grads", lambda unit, total, used, scale: usual(unit, total, used, wrong * scale))
        try:
            with check(odc):
                work.minibatch(case, rank, model, odc)
        except EngineError:
            return False
        odc.publish()
        work.minibatch(case, rank, model, odc)
        return True


SLOW = "outputs of a compiled function"


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n == SLOW else n for n in CASES])
def test_what_is_right_is_called_so(pools, name):
    assert pools(2).run(checked, CASES[name]) == [True] * 2


def test_what_is_not_right_is_not(pools):
    assert pools(2).run(checked, CASE, 1.001) == [False] * 2


def around(odc, call=lambda: None) -> None:
    with check(odc):
        call()


def outside(rank: int) -> list[bool]:
    """Of a minibatch that is not settled inside, and of a settle() without a backward pass."""
    with work.device(CASE) as (model, odc):
        found = [work.refused(lambda: around(odc, nets.loss(model, rank, 0).backward))]
        odc.publish()
        return [*found, work.refused(lambda: around(odc, odc.settle))]


def alone(_: int) -> bool:
    odc = OnDemand(fully_shard(nets.Net(), mesh=init_device_mesh("cpu", (1,))))
    return work.refused(lambda: around(odc))


def test_what_cannot_be_checked_is_refused(pools):
    assert pools(2).run(outside) == [[True, True]] * 2
    assert pools(1).run(alone) == [True]
    assert main(["verify", "--script", "nowhere.py"]) == 2

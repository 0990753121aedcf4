"""torch.distributed.checkpoint gives an optimizer its first state by a step with nothing: state, weights and training
are those of one process, whatever the optimizer."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from habits import EVERY
from torch import optim
from torch.distributed.checkpoint import state_dict as checkpoint
from users import found

from odc_engine.fsdp.inside import aside_of_first_states

KINDS = {
    "SGD": optim.SGD,
    "SGD, one by one, up and with decay": partial(optim.SGD, foreach=False, maximize=True, weight_decay=0.1),
    "SGD with momentum": partial(optim.SGD, momentum=0.9, nesterov=True),
    "AdamW, fused": partial(optim.AdamW, fused=True),
    "AdamW, one by one": partial(optim.AdamW, foreach=False, amsgrad=True),
    "Adagrad": optim.Adagrad,
    "RMSprop": partial(optim.RMSprop, eps=1e-2),
    "Adadelta": optim.Adadelta,
    "Adamax": optim.Adamax,
    "NAdam": optim.NAdam,
    "RAdam": optim.RAdam,
    "ASGD": optim.ASGD,
}
HABITS = ["before_the_first_step", "after_each_step", "resumed", "attached_after_zero_grad", "attached_resumed"]
USUAL = ["SGD with momentum", "AdamW, fused"]


@pytest.mark.parametrize("kind", [pytest.param(k, marks=() if k in USUAL else pytest.mark.slow) for k in KINDS])
def test_every_optimizer_goes_on_as_in_one_process(pools, kind):
    told = {name: found(pools, replace(EVERY[f"checkpoints: {name}"], optimizer=KINDS[kind])) for name in HABITS}
    assert told == dict.fromkeys(HABITS, "works")


def test_whoever_stands_aside_first_may_also_leave_first(monkeypatch):
    monkeypatch.setattr(checkpoint, "_init_optim_state", usual := checkpoint._init_optim_state)
    seen, optimizer = [], optim.AdamW([torch.zeros(2, requires_grad=True)])
    first, second = (aside_of_first_states(lambda _, give, n=n: (seen.append(n), give())) for n in (1, 2))
    first()
    checkpoint._init_optim_state(optimizer)
    assert seen == [2]
    assert optimizer.state
    second()
    checkpoint._init_optim_state(optimizer)
    assert seen == [2]
    assert checkpoint._init_optim_state is not usual  # the first one is left below, and does nothing

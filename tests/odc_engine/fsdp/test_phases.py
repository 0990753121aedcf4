"""The phases of an OnDemand: which follows which, and what may be called in each, as docs/engine/inside.md draws it."""

import contextlib
import re
from functools import partial
from itertools import product

import pytest
import torch
import work
from scripts import ROOT
from short_memory import batch, loss
from work import Case

from odc_engine import OnDemand
from odc_engine.fsdp.attach import Attachment
from odc_engine.fsdp.minibatch import FOLLOWING, Loop, Phase
from odcsim.errors import InputError

CASE = Case((1, 1))
ROW = re.compile(r"^\| `(OPEN|SETTLED|BROKEN|LOST|CLOSED)` \| .+ \| (.+) \|$", re.MULTILINE)


def test_a_phase_ends_where_the_page_says_alone():
    rows = ROW.findall((ROOT / "docs/engine/inside.md").read_text(encoding="utf-8"))
    told = {Phase[name]: {Phase[each] for each in re.findall(r"`([A-Z]+)`", following)} for name, following in rows}
    assert told == FOLLOWING
    loop = Loop(torch.nn.Module(), (), torch.zeros_like)
    for phase, following in product(Phase, Phase):
        loop.phase = phase
        with contextlib.nullcontext() if following in told[phase] else pytest.raises(AssertionError):
            loop.enter(following)
            assert loop.phase is following


def settled(odc: OnDemand, model: torch.nn.Module, rank: int) -> None:
    odc.retry(partial(loss, model), batch(rank))
    odc.settle()


def broken(odc: OnDemand, model: torch.nn.Module, rank: int) -> None:
    odc.retry(partial(loss, model), batch(rank))
    model.zero_grad()
    with contextlib.suppress(InputError):
        odc.settle()


def lost(odc: OnDemand, *_: object) -> None:
    odc.arena.meet = None  # an error in the meeting
    with contextlib.suppress(TypeError):
        odc.settle()


EVERY = {"take", "attach", "retry", "settle", "publish"}
# How a phase is brought about, and what it refuses.
PHASES = {
    "open": (lambda *_: None, set()),
    "settled": (settled, {"take", "retry", "settle"}),
    "broken": (broken, {"retry", "settle"}),
    "lost": (lost, EVERY),
    "closed": (lambda odc, *_: odc.close(), EVERY),
}


def refused_in(rank: int, phase: str) -> tuple[str, set[str], str]:
    """The phase, what it refuses, and the phase that publish() ends in."""
    with work.device(CASE) as (model, odc):
        PHASES[phase][0](odc, model, rank)
        found, calls = odc._loop.phase.value, {"take": odc.take, "attach": odc.attach}
        if phase != "open":  # where it settles, and so on
            calls |= {"retry": lambda: odc.retry(partial(loss, model), batch(rank)), "settle": odc.settle}
        calls["publish"] = odc.publish
        return found, {name for name, call in calls.items() if work.refused(call)}, odc._loop.phase.value


@pytest.mark.parametrize("phase", PHASES)
def test_what_may_be_called_in_a_phase(pools, phase):
    after = phase if phase in ("lost", "closed") else "open"
    assert pools(2).run(refused_in, phase) == [(phase, PHASES[phase][1], after)] * 2


def test_an_optimizer_of_nobodys_units_steps_unasked():
    weight = torch.nn.Parameter(torch.ones(1))
    loop = Loop(torch.nn.Module(), (), torch.zeros_like)
    loop.phase, loop.minibatch.pushes = Phase.OPEN, 1
    attachment = Attachment(loop, None)  # no meeting is called
    weight.grad = torch.ones(1)
    torch.optim.SGD([weight], lr=0.5).step()
    attachment.close()
    assert weight.item() == pytest.approx(0.5)
    assert (loop.minibatch.steps, loop.minibatch.stepped) == (0, False)

"""The lead of on-demand in whole steps of rollouts: what `odcsim.rl` says of both sides, and what generation does."""

import numpy as np
import pytest

from odcsim import InputError, Trace, break_even, rl
from odcsim.decide.break_even import BALANCERS, STEPS

ASKED = {"gpu": "h100", "devices": 8, "prompts": 16, "rollouts": 4, "max_tokens": 16_000}


def trace():
    lengths = np.random.default_rng(0).lognormal(7, 1.0, 256).astype(int).clip(16, 16_000)
    return Trace("own", lengths, group=np.repeat(np.arange(64), 4))


def test_the_lead_is_that_of_whole_steps_and_goes_to_one_with_generation():
    found = break_even(trace(), "qwen2.5-1.5b", **ASKED, generation_seconds=2)
    rows = rl(trace(), "qwen2.5-1.5b", **ASKED, generation_seconds=2, steps=STEPS)
    best = [
        min(
            rows.row(name, side).row.makespan_seconds
            for name in names
            if name in ("lb-micro", "lb-mini", "sorted-slice")
        )
        for side, names in BALANCERS.items()
    ]
    assert found.lead <= best[0] / best[1] * (1 + 1e-9)
    curve = found.curve("generation")
    assert [spot.value for spot in curve.spots] == [0, 0.5, 1, 2, 4, 8]
    away = [abs(lead - 1) for lead in curve.leads]
    assert away == sorted(away, reverse=True)
    assert away[-1] < away[0]
    prompts = found.curve("prompts")
    assert [spot.value for spot in prompts.spots] == [4, 8, 16, 32, 64]
    assert next(spot.lead for spot in prompts.spots if spot.value == 16) == pytest.approx(found.lead)
    told = found.as_json()["inputs"]
    assert (told["prompts"], told["rollouts"], told["updates"], told["generation_seconds"]) == (16, 4, 1, 2)


@pytest.mark.parametrize("words", [{"prompts": 4}, {"rollouts": 4}, {"prompts": 4, "rollouts": 4, "minibatch": 2}])
def test_a_batch_is_said_once_and_whole(words):
    with pytest.raises(InputError) as refused:
        break_even(trace(), "qwen2.5-1.5b", gpu="h100", devices=8, **words)
    assert refused.value.fix

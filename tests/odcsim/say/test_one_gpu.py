"""One GPU waits for nobody: no answer speaks of on-demand or of other syncs there, and each says so."""

import pytest

import odcsim
from odcsim.decide.comparison import pairs
from odcsim.say import answer
from odcsim.say.setting_words import UNRUN
from odcsim.show.explore import reply
from odcsim.show.explore.controls import page_question_of
from odcsim.show.pages.report import report

LENGTHS = odcsim.Trace("some", [300 + 37 * n % 1900 for n in range(400)])
ASKED = {"gpu": "rtx4090", "devices": 1, "minibatch": 8, "minibatches": 3, "lora": 16}
DOORS = {
    "compare": lambda **more: odcsim.compare(odcsim.ask(LENGTHS, "qwen3-0.6b", **ASKED | more)),
    "advise": lambda **more: odcsim.advise(LENGTHS, "qwen3-0.6b", gpus="rtx4090", devices=1, global_batch=8, **more),
    "rl": lambda **more: odcsim.rl(LENGTHS, "qwen3-0.6b", gpu="rtx4090", devices=1, prompts=4, rollouts=2, **more),
}


def shown(result):
    """All that a terminal or a notebook has of it."""
    return answer(result).html


@pytest.mark.parametrize("trainer", [None, "trl"])
@pytest.mark.parametrize("door", DOORS)
def test_nothing_is_said_of_other_syncs_where_nobody_waits(door, trainer):
    if (door, trainer) == ("rl", "trl"):
        return
    said = shown(DOORS[door](trainer=trainer))
    assert "on-demand" not in said.lower()
    assert trainer or "nobody" in said
    assert trainer or "deferred" not in said


def test_all_rows_are_in_its_json_all_the_same_and_nothing_is_idle():
    comparison = DOORS["compare"]()
    assert {row.pair for row in comparison.rows} == {*pairs()}
    met = [row for row in comparison.rows if not row.one_sided]
    assert max(row.idle for row in met) < 0.05
    assert {row.sync_gain for row in met if row.balancer == "lb-micro"} == {1.0}


def test_two_gpus_choose_between_syncs_again():
    said, quantized = (shown(DOORS["compare"](devices=2, **more)) for more in ({}, {"quantization": "nf4"}))
    assert "on-demand" in said
    assert "nobody" not in said
    assert [UNRUN in one for one in (said, quantized)] == [False, True]


def test_of_break_even_what_is_told_is_more_devices():
    asked = {name: value for name, value in ASKED.items() if name != "minibatches"}
    found = odcsim.break_even(LENGTHS, "qwen3-0.6b", max_tokens=4096, **asked)
    assert "nobody" in answer(found).headline
    assert "more devices" in answer(found).headline


def test_its_page_and_the_explorers_figures_have_no_other_sync():
    assert "on-demand" not in report(DOORS["compare"]()).partition("Inputs, and where")[0].lower()
    asked = page_question_of({"devices": 1, "gpu": "rtx4090", "model": "qwen2.5-0.5b", "trace": "sharegpt"})
    said = " ".join([reply.reply(asked).verdict, *(cell for row in reply.reply(asked).table[1] for cell in row)])
    assert "on-demand" not in said
    assert "on-demand" not in str(reply.chart(asked)["layout"])
    assert not reply.break_even(asked)

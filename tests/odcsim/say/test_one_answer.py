"""One answer, four doors: a terminal, a page, a notebook and Python show the same sentences and cells."""

from html import unescape

import pytest

import odcsim
from odcsim import say
from odcsim.errors import in_python
from odcsim.say import terminal
from odcsim.show.pages import page

LENGTHS = [400, 900, 3000, 700, 12_000, 500, 800, 2500, 600, 9000, 300, 1100] * 4
ASKED = {"gpu": "h100", "devices": 2, "minibatch": 4, "max_tokens": 16_384}
RESULTS = {
    "compare": lambda: odcsim.compare(odcsim.ask(LENGTHS, "qwen2.5-0.5b", minibatches=2, price=2.0, epochs=2, **ASKED)),
    "advise": lambda: odcsim.advise(
        LENGTHS, "qwen2.5-0.5b", gpus="h100,a100", devices="2,3", global_batch=8, price=2.0, minibatches=4
    ),
    "break-even": lambda: odcsim.break_even(LENGTHS, "qwen2.5-0.5b", **ASKED),
    "rl": lambda: odcsim.rl(LENGTHS, "qwen2.5-0.5b", prompts=4, rollouts=2, steps=1, gpu="h100", devices=2),
    "diagnose": lambda: odcsim.diagnose("slow-step"),
}


@pytest.mark.parametrize("case", RESULTS)
def test_every_door_shows_the_same_sentences_and_cells(case, capsys):
    result = RESULTS[case]()
    answer = say.answer(result)
    assert answer.headline
    said = result.sentences()
    assert said[0] == answer.headline
    assert {*answer.question.splitlines(), *answer.sentences} <= {*said}
    beside = [table.says for table in answer.tables] + [
        d for table in answer.tables for of in table.details for d in of
    ]
    assert all(any(text in sentence for sentence in said) for text in beside)
    assert len({*said}) == len(said)  # nothing is said twice
    terminal.show(answer)
    printed = capsys.readouterr().out
    lines = printed.splitlines()
    assert lines[0] == answer.headline
    notebook = unescape(answer.html)
    shown = unescape(page.of_answer(answer, "title", yes=True, pictures={}))
    for text in (answer.headline, *answer.sentences, *(table.says for table in answer.tables)):
        assert text in lines or not text
        assert in_python(text) in notebook
        assert text in shown
    for table in answer.tables:
        assert not any(table.marks) or table.marks.count("best") <= 1
        for row in table.rows:
            for cell in row:
                assert all(word in printed for word in cell.split())
                assert all(word in notebook for word in in_python(cell).split())
                assert all(word.strip("()") in shown for word in cell.split())

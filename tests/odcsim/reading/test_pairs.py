"""Rows of a prompt, what was chosen and what was rejected: two samples that stay in one microbatch, in every file."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rowfiles import write
from texts import UNMARKED, tokenizer_in

from odcsim import InputError, ask, balance, compare, load, plan, simulate
from odcsim.cli import main
from odcsim.decide.advice import Wish
from odcsim.decide.stock import worst
from odcsim.question import Question
from odcsim.results.metrics import usage
from odcsim.schedule import Schedule

ASKED, GOOD, WRONG = "Who waits?", "Whoever is done first, for the longest.", "Nobody."
USER = {"role": "user", "content": ASKED}
YES, NO = ({"role": "assistant", "content": text} for text in (GOOD, WRONG))
HEAD = f"<|im_start|>user\n{ASKED}<|im_end|>\n"
ANSWER = f"{HEAD}<|im_start|>assistant\n"
CHATS = f"{ANSWER}{GOOD}<|im_end|>\n", f"{ANSWER}{WRONG}<|im_end|>\n"
PLAIN = f"{ASKED} {GOOD}<|im_end|>", f"{ASKED} {WRONG}<|im_end|>"
FORMS = {  # a row, both sides, and where their completions begin
    "texts": ({"prompt": f"{ASKED} ", "chosen": GOOD, "rejected": WRONG}, PLAIN, f"{ASKED} "),
    "implied texts": ({"chosen": PLAIN[0], "rejected": PLAIN[1]}, PLAIN, ASKED),
    "question": ({"question": f"{ASKED} ", "chosen": GOOD, "rejected": WRONG}, PLAIN, f"{ASKED} "),
    "messages": ({"prompt": [USER], "chosen": [YES], "rejected": [NO]}, CHATS, ANSWER),
    "implied messages": ({"chosen": [USER, YES], "rejected": [USER, NO]}, CHATS, ANSWER),
    "both": ({"prompt": ASKED, "chosen": [USER, YES], "rejected": [USER, NO]}, CHATS, ANSWER),
    "answers": ({"prompt": ASKED, "chosen": [YES], "rejected": [NO]}, CHATS, ANSWER),
    "beside messages": ({"messages": [USER, YES], "chosen": [USER, YES], "rejected": [USER, NO]}, CHATS, ANSWER),
}
TEXTS = FORMS["texts"][0]
SIDES = ("chosen_length", "rejected_length")


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def lengths_in(path, rows, names=SIDES):
    return str(write(path, [dict(zip(names, row, strict=True)) for row in rows]))


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
@pytest.mark.parametrize("form", FORMS)
def test_both_sides_are_as_long_as_they_are_trained_on(tmp_path, folder, tokens, name, form):
    row, sides, before = FORMS[form]
    trace = load(write(tmp_path / name, [row] * 3), tokenizer=folder)
    assert trace.lengths.tolist() == [tokens(side) for side in sides] * 3
    assert trace.bundle.tolist() == [0, 0, 1, 1, 2, 2]
    assert (trace.loss - trace.lengths).tolist() == [-tokens(before)] * 6
    assert trace.in_words == "3 pairs"


COLUMNS = [  # names, rows; lengths and loss tokens
    (("prompt_length", *SIDES), [(10, 30, 900), (5, 7, 8)], [40, 910, 12, 13], [30, 900, 7, 8]),
    (("chosen_tokens", "rejected_tokens"), [(40, 910), (12, 13)], [40, 910, 12, 13], None),
    (("step", "chosen_tokens", "rejected_tokens"), [(1, 40, 910), (2, 12, 13)], [40, 910, 12, 13], None),
    (("prompt_ids", "chosen_ids", "rejected_ids"), [([1, 2], [3], []), ([1], [1], [2])], [3, 2, 2, 2], [1, 0, 1, 1]),
]


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.parquet"])
@pytest.mark.parametrize(("names", "rows", "lengths", "loss"), COLUMNS)
def test_lengths_of_both_sides(tmp_path, name, names, rows, lengths, loss):
    if name == "a.csv":
        rows = [tuple(len(value) if isinstance(value, list) else value for value in row) for row in rows]
        names = [each.replace("_ids", "_len") for each in names]
    trace = load(lengths_in(tmp_path / name, rows, names))
    assert (trace.lengths.tolist(), trace.bundle.tolist()) == (lengths, [0, 0, 1, 1])
    assert (None if trace.loss is None else trace.loss.tolist()) == loss
    assert (None if trace.step is None else trace.step.tolist()) == ([1, 1, 2, 2] if "step" in names else None)


def test_what_is_left_out_takes_its_other_side_along(tmp_path, folder):
    rows = [TEXTS, TEXTS | {"chosen": None}, TEXTS | {"rejected": None}, TEXTS]
    trace = load(path := write(tmp_path / "a.jsonl", rows), tokenizer=folder, skip_bad=True)
    assert (trace.bundle.tolist(), trace.left_out[:6]) == ([0, 0, 1, 1], "2 of 4")
    with pytest.raises(InputError):
        load(path, tokenizer=folder)
    path = lengths_in(tmp_path / "a.csv", [(5, 6), (None, 7), (8, 0), (9, 10)])
    trace = load(path, skip_bad=True)
    assert (trace.lengths.tolist(), trace.left_out[:6]) == ([5, 6, 9, 10], "2 of 4")
    trace = load(lengths_in(tmp_path / "b.csv", [(5, 6), (90, 6), (7, 8)]), drop_over=50)
    assert trace.lengths.tolist() == [5, 6, 7, 8]
    assert main("trace make b.csv --samples 4 -o e.csv".split()) == 2
    assert not (tmp_path / "e.csv").exists()
    assert "33.33%; 96 tokens lost, 78.69%" in trace.origin
    endless = tokenizer_in(tmp_path / "endless", UNMARKED, eos_token="")
    rows = [{"prompt": "", "chosen": chosen, "rejected": "b"} for chosen in ("a", "", "a")]
    trace = load(write(tmp_path / "c.jsonl", rows), tokenizer=endless, skip_bad=True)
    assert (trace.size, trace.left_out[:6]) == (4, "1 of 3")


def test_samples_shards_and_one_side(tmp_path, folder):
    trace = load(write(tmp_path / "a.jsonl", [TEXTS] * 60), tokenizer=folder, sample=20)
    assert (trace.size, trace.bundles.size, trace.bundles.population) == (40, 20, 60)
    path = tmp_path / "shards"
    assert load(lengths_in(path, [(5, 6), (7, 8), (5, 6), (7, 8)])).bundle.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert load(path, column="chosen_length").bundle is None


ROWS = st.lists(st.tuples(st.integers(0, 900), st.integers(1, 2000), st.integers(1, 2000)), min_size=8, max_size=24)


@pytest.mark.parametrize("name", balance.ALL)
@settings(max_examples=10)
@given(rows=ROWS)
def test_every_balancer_keeps_both_sides_of_every_row_in_one_microbatch(tmp_path_factory, name, rows):
    path = lengths_in(tmp_path_factory.mktemp("pairs") / "a.csv", rows, ("prompt_length", *SIDES))
    setting = ask(path, "nano", gpu="h100", devices=2, minibatch=4, minibatches=2, max_tokens=12_000)
    long = [prompt + side for prompt, *sides in rows for side in sides]
    for schedule in plan(setting, name).schedules:
        assert len(schedule.samples) == 2 * 2 * 4
        assert list(schedule.lengths) == [long[i] for i in schedule.samples]
        for microbatch in schedule.contents():
            ids = {schedule.samples[i] for i in microbatch}
            assert ids == {i ^ 1 for i in ids}
            assert len(ids) == len(microbatch)


def test_rows_are_those_of_a_schedule_made_by_hand(tmp_path):
    """Two pairs on two devices: a microbatch of both sides each."""
    path = lengths_in(tmp_path / "a.csv", [(900, 100), (500, 500)])
    setting = ask(path, "nano", gpu="h100", devices=2, minibatch=1, minibatches=1, in_order=True)
    by_hand = Schedule.of((900, 100, 500, 500), (((0, 1),), ((2, 3),)), (0, 1, 2, 3))
    file = replace(plan(setting, "lb-micro"), schedules=(by_hand,)).sealed()
    for sync in ("collective", "on-demand"):
        timeline = simulate(file, setting.cost.by(sync=sync))
        row = compare(setting).row("lb-micro", sync)
        assert row.makespan_seconds == pytest.approx(usage(timeline).makespan.sum(), rel=1e-12)
    assert (setting.trace.longest, setting.trace.fullest) == (900, 1000)


def test_a_trainer_pads_both_sides_to_the_longest_of_all(tmp_path):
    """As a batch of TRL has them; nothing that is run is over what was kept free for it."""
    path = lengths_in(tmp_path / "a.csv", [(900, 100), *[(300, 200)] * 40])
    words = {"gpu": "h100", "devices": 2, "minibatch": 4, "minibatches": 4}
    comparison = compare(ask(path, "nano", **words, trainer="trl"))
    most = worst(comparison.setting.trace, 4, padded=True)
    assert most == 4 * 2 * 900
    assert any(row.balancer == "padded" for row in comparison.rows)
    every = plan(replace(comparison.setting, trainer=None, max_tokens=most, each=4), "padded").schedules
    assert max(schedule.fullest for schedule in every) == most


def test_lengths_of_pairs_are_sent_without_the_data(tmp_path, folder):
    write(tmp_path / "a.jsonl", [TEXTS, FORMS["question"][0] | {"chosen": "Yes. " * 9}] * 3)
    for limit in (None, 25):
        flags = ["--truncate", str(limit)] if limit else []
        assert main(["trace", "make", "a.jsonl", "--tokenizer", str(folder), *flags, "-o", "b.parquet", "--force"]) == 0
        trace, sent = load("a.jsonl", tokenizer=folder, truncate=limit), load("b.parquet")
        for column in ("lengths", "loss", "bundle"):
            assert getattr(trace, column).tolist() == getattr(sent, column).tolist()
    (tmp_path / "c.csv").write_text("chosen_length,rejected_length\n5,6\n")
    assert main("trace make c.csv -o d.csv".split()) == 0
    assert (tmp_path / "d.csv").read_text() == (tmp_path / "c.csv").read_text()


def test_batches_and_epochs_count_pairs(tmp_path):
    path = lengths_in(tmp_path / "a.csv", [(50 + n, 60) for n in range(400)])
    setting = ask(path, "nano", gpu="h100", devices=4, epochs=2, minibatches=4, global_batch=40)
    question = Question(trace=setting.trace, model="nano", global_batch=40, epochs=2.0)
    assert (setting.minibatch, Wish(question, ("h100",), (4,)).steps) == (10, 20)

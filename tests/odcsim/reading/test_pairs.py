"""Rows of a prompt, what was chosen and what was rejected: two samples that stay in one microbatch, in every file."""

import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from texts import UNMARKED, tokenizer_in

from odcsim import balance
from odcsim.cli import main
from odcsim.decide.asking import ask
from odcsim.decide.comparison import compare
from odcsim.decide.setting import plan
from odcsim.decide.stock import worst
from odcsim.errors import InputError
from odcsim.executors.simulation import Simulation, simulate
from odcsim.reading import load
from odcsim.results.metrics import usage
from odcsim.schedule import Schedule

ASKED, GOOD, WRONG = "Who waits?", "Whoever is done first, for the longest.", "Nobody."
USER, YES, NO = (
    {"role": role, "content": text} for role, text in (("user", ASKED), ("assistant", GOOD), ("assistant", WRONG))
)
HEAD, ANSWER = f"<|im_start|>user\n{ASKED}<|im_end|>\n", "<|im_start|>assistant\n"
CHATS = f"{HEAD}{ANSWER}{GOOD}<|im_end|>\n", f"{HEAD}{ANSWER}{WRONG}<|im_end|>\n"
PLAIN = f"{ASKED} {GOOD}<|im_end|>", f"{ASKED} {WRONG}<|im_end|>"
FORMS = {  # a row, both sides, and where their completions begin
    "texts": ({"prompt": f"{ASKED} ", "chosen": GOOD, "rejected": WRONG}, PLAIN, f"{ASKED} "),
    "implied texts": ({"chosen": PLAIN[0], "rejected": PLAIN[1]}, PLAIN, ASKED),
    "question": ({"question": f"{ASKED} ", "chosen": GOOD, "rejected": WRONG}, PLAIN, f"{ASKED} "),
    "messages": ({"prompt": [USER], "chosen": [YES], "rejected": [NO]}, CHATS, HEAD + ANSWER),
    "implied messages": ({"chosen": [USER, YES], "rejected": [USER, NO]}, CHATS, HEAD + ANSWER),
    "both": ({"prompt": ASKED, "chosen": [USER, YES], "rejected": [USER, NO]}, CHATS, HEAD + ANSWER),
    "answers": ({"prompt": ASKED, "chosen": [YES], "rejected": [NO]}, CHATS, HEAD + ANSWER),
    "beside messages": ({"messages": [USER, YES], "chosen": [USER, YES], "rejected": [USER, NO]}, CHATS, HEAD + ANSWER),
}


def written(path, rows):
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        path.write_text("\n".join(map(json.dumps, rows)))
    return path


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
@pytest.mark.parametrize("form", FORMS)
def test_both_sides_are_as_long_as_they_are_trained_on(tmp_path, folder, tokens, name, form):
    row, sides, before = FORMS[form]
    trace = load(written(tmp_path / name, [row] * 3), tokenizer=folder)
    lengths = [tokens(side) for side in sides]
    assert trace.lengths.tolist() == lengths * 3
    assert trace.bundle.tolist() == [0, 0, 1, 1, 2, 2]
    assert (trace.loss - trace.lengths).tolist() == [-tokens(before)] * 6
    assert trace.in_words == "3 pairs"
    assert trace.origin.startswith(f"pairs of {name}, counted by ")


def test_a_side_that_is_none_leaves_no_half_of_a_pair(tmp_path, folder):
    rows = [FORMS["texts"][0] | {side: None} for side in ("prompt", "chosen", "rejected")]
    rows = [FORMS["texts"][0], rows[1], rows[2], FORMS["texts"][0]]
    path = written(tmp_path / "a.jsonl", rows)
    trace = load(path, tokenizer=folder, skip_bad=True)
    assert trace.left_out == ("2 of 4 rows left out: lines 2 (has no text in 'chosen'), 3 (has no text in 'rejected')")
    assert trace.bundle.tolist() == [0, 0, 1, 1]
    with pytest.raises(InputError, match=r"2 of 4 rows are bad: lines 2 \("):
        load(path, tokenizer=folder)


def test_a_sample_is_of_pairs(tmp_path, folder):
    path = written(tmp_path / "a.jsonl", [FORMS["texts"][0]] * 60)
    trace = load(path, tokenizer=folder, sample=20)
    assert (trace.size, trace.bundles.size, trace.bundles.whole) == (40, 20, 60)
    assert "20 of 60 rows drawn" in trace.origin


COLUMNS = {
    "lengths": ("prompt_length,chosen_length,rejected_length\n10,30,900\n5,7,8\n", [40, 910, 12, 13], [30, 900, 7, 8]),
    "whole": ("chosen_tokens,rejected_tokens\n40,910\n12,13\n", [40, 910, 12, 13], None),
    "steps": ("step,chosen_tokens,rejected_tokens\n1,40,910\n2,12,13\n", [40, 910, 12, 13], None),
    "ids": ('[{"prompt_ids": [1, 2], "chosen_ids": [3], "rejected_ids": []}]', [3, 2], [1, 0]),
}


@pytest.mark.parametrize("form", COLUMNS)
def test_lengths_of_both_sides(tmp_path, form):
    content, lengths, loss = COLUMNS[form]
    path = tmp_path / ("a.json" if form == "ids" else "a.csv")
    path.write_text(content)
    trace = load(path)
    assert trace.lengths.tolist() == lengths
    assert trace.bundle.tolist() == [0, 0, 1, 1][: len(lengths)]
    assert (None if trace.loss is None else trace.loss.tolist()) == loss
    assert (None if trace.step is None else trace.step.tolist()) == ([1, 1, 2, 2] if form == "steps" else None)
    assert trace.origin == f"pairs of {path.name}"


def test_a_side_without_a_length_is_a_bad_row_and_a_column_one_side(tmp_path):
    (tmp_path / "a.csv").write_text("chosen_length,rejected_length\n5,6\n,7\n8,0\n9,10\n")
    trace = load(tmp_path / "a.csv", skip_bad=True)
    assert trace.lengths.tolist() == [5, 6, 9, 10]
    assert trace.left_out.startswith(
        "2 of 4 rows left out: lines 3 (column 'chosen_length' holds nothing), 4 (column 'rej"
    )
    (tmp_path / "b.csv").write_text("chosen_length,rejected_length\n5,6\n9,10\n")
    assert load(tmp_path / "b.csv", column="chosen_length").bundle is None


def test_a_table_of_pairs_has_no_counts(tmp_path):
    (tmp_path / "a.csv").write_text("chosen_length,rejected_length,count\n5,6,7\n")
    with pytest.raises(InputError, match="column 'chosen_length' in a count table"):
        load(tmp_path / "a.csv")


def test_shards_of_pairs_are_one_dataset(tmp_path):
    (tmp_path / "data").mkdir()
    for number in range(2):
        (tmp_path / "data" / f"part-{number}.csv").write_text("chosen_length,rejected_length\n5,6\n7,8\n")
    trace = load(tmp_path / "data")
    assert (trace.bundle.tolist(), trace.in_words) == ([0, 0, 1, 1, 2, 2, 3, 3], "4 pairs")


def test_more_pairs_than_are_kept_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("odcsim.support.budget.rows", lambda: 9)
    (tmp_path / "a.csv").write_text("chosen_length,rejected_length\n" + "5,6\n" * 6)
    with pytest.raises(InputError, match="more than 9 rows, each with another side"):
        load(tmp_path / "a.csv")


def test_texts_of_pairs_want_a_tokenizer(tmp_path):
    with pytest.raises(InputError, match="holds texts but no lengths; count it with --tokenizer"):
        load(written(tmp_path / "a.jsonl", [FORMS["texts"][0]] * 3))


ROWS = st.lists(st.tuples(st.integers(0, 900), st.integers(1, 2000), st.integers(1, 2000)), min_size=8, max_size=24)


@pytest.mark.parametrize("name", balance.ALL)
@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(rows=ROWS)
def test_every_balancer_keeps_both_sides_of_every_row_in_one_microbatch(tmp_path_factory, name, rows):
    path = tmp_path_factory.mktemp("pairs") / "a.csv"
    path.write_text("prompt_length,chosen_length,rejected_length\n" + "".join(f"{p},{c},{r}\n" for p, c, r in rows))
    setting = ask(str(path), "nano", gpu="h100", devices=2, minibatch=4, minibatches=2, max_tokens=12_000)
    for schedule in plan(setting, name).schedules:
        assert len(schedule.samples) == 2 * 2 * 4
        for microbatch in schedule.contents():
            ids = [schedule.samples[i] for i in microbatch]
            assert sorted(ids) == sorted({side for i in ids for side in (i, i ^ 1)})
            for i in microbatch:
                prompt, *sides = rows[schedule.samples[i] // 2]
                assert schedule.lengths[i] == prompt + sides[schedule.samples[i] % 2]


def test_rows_are_those_of_a_schedule_made_by_hand(tmp_path):
    """Two pairs on two devices: a microbatch of both sides each."""
    (tmp_path / "a.csv").write_text("chosen_length,rejected_length\n900,100\n500,500\n")
    setting = ask(str(tmp_path / "a.csv"), "nano", gpu="h100", devices=2, minibatch=1, minibatches=1, in_order=True)
    by_hand = Schedule((900, 100, 500, 500), (((0, 1),), ((2, 3),)), (0, 1, 2, 3))
    file = replace(plan(setting, "lb-micro"), schedules=(by_hand,)).sealed()
    for sync in ("collective", "on-demand"):
        timeline = simulate(file, Simulation(setting.cost, sync, executor="analytic"))
        row = compare(setting).row("lb-micro", sync)
        assert row.makespan_seconds == pytest.approx(usage(timeline).makespan.sum(), rel=1e-12)
    assert (setting.trace.longest, setting.trace.fullest) == (900, 1000)


def test_commands_count_pairs(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    rows = rng.integers(100, 3000, (400, 3))
    (tmp_path / "a.csv").write_text(
        "prompt_length,chosen_length,rejected_length\n" + "".join(f"{p},{c},{r}\n" for p, c, r in rows)
    )
    assert main(["trace", "info", "a.csv"]) == 0
    assert "samples     800  (of 400 pairs)" in capsys.readouterr().out
    wish = ["a.csv", "--model", "qwen2.5-0.5b", "--epochs", "2", "--minibatches", "4"]
    assert main(["advise", *wish, "--global-batch", "40", "--gpus", "h100", "--devices", "4"]) == 0
    shown = capsys.readouterr().out
    assert "a.csv (400 pairs, longest" in shown
    assert "2 epochs, 20 steps of 40 pairs" in shown
    assert main(["advise", *wish, "--global-batch", "404", "--gpus", "h100", "--devices", "4"]) == 2
    assert (
        "--global-batch 404 and 'a.csv' has 400 pairs; give a smaller batch, or more pairs" in capsys.readouterr().err
    )
    assert main(["compare", *wish, "--global-batch", "40", "--gpu", "h100", "--devices", "4"]) == 0
    shown = capsys.readouterr().out
    assert "10 pairs per device and step" in shown
    assert "2 epochs are 20 steps of 40 pairs" in shown


def test_lengths_of_pairs_are_sent_without_the_data(tmp_path, folder, monkeypatch):
    monkeypatch.chdir(tmp_path)
    written(tmp_path / "a.jsonl", [FORMS["texts"][0], FORMS["question"][0] | {"chosen": "Yes. " * 9}] * 3)
    for flags in ([], ["--truncate", "25"]):
        assert main(["trace", "make", "a.jsonl", "--tokenizer", str(folder), *flags, "-o", "b.parquet", "--force"]) == 0
        trace, sent = load("a.jsonl", tokenizer=folder, truncate=25 if flags else None), load("b.parquet")
        for column in ("lengths", "loss", "bundle"):
            assert getattr(trace, column).tolist() == getattr(sent, column).tolist()
    (tmp_path / "c.csv").write_text("chosen_length,rejected_length\n5,6\n")
    assert main(["trace", "make", "c.csv", "-o", "d.csv"]) == 0
    assert (tmp_path / "d.csv").read_text() == (tmp_path / "c.csv").read_text()
    assert main(["trace", "make", "c.csv", "--samples", "4", "-o", "e.csv"]) == 2


def test_leaving_out_a_side_that_is_too_long_leaves_out_its_pair(tmp_path):
    (tmp_path / "a.csv").write_text("chosen_length,rejected_length\n5,6\n90,6\n7,8\n")
    trace = load(tmp_path / "a.csv", drop_over=50)
    assert trace.lengths.tolist() == [5, 6, 7, 8]
    assert trace.origin.endswith("; 1 pairs with samples over 50 tokens left out, 33.33%; 96 tokens lost, 78.69%")


def test_a_side_without_tokens_leaves_no_half_of_a_pair(tmp_path):
    folder = tokenizer_in(tmp_path / "endless", UNMARKED, eos_token="")
    rows = [{"prompt": "", "chosen": chosen, "rejected": "b"} for chosen in ("a", "", "a")]
    trace = load(written(tmp_path / "a.jsonl", rows), tokenizer=folder, skip_bad=True)
    assert (trace.size, trace.left_out) == (4, "1 of 3 rows left out: line 2 (has no tokens)")


def test_pairs_are_no_rollouts(tmp_path, capsys):
    (tmp_path / "a.csv").write_text("chosen_length,rejected_length\n5,6\n7,8\n")
    asked = ["--model", "nano", "--gpu", "h100", "--devices", "2", "--prompts", "2", "--rollouts", "2"]
    assert main(["rl", str(tmp_path / "a.csv"), *asked]) == 2
    assert "a.csv: pairs are not rollouts: each rollout is assigned on its own; give" in capsys.readouterr().err


def test_a_trainer_pads_both_sides_to_the_longest_of_all(tmp_path, capsys):
    """As a batch of TRL has them; nothing that is run is over what was kept free for it."""
    (tmp_path / "a.csv").write_text("chosen_length,rejected_length\n" + "900,100\n300,200\n" * 40)
    words = {"gpu": "h100", "devices": 2, "minibatch": 4, "minibatches": 4, "trainer": "trl"}
    comparison = compare(ask(str(tmp_path / "a.csv"), "nano", **words))
    held = worst(comparison.setting.trace, 4, padded=True)
    assert held == 4 * 2 * 900
    assert any(row.balancer == "padded" for row in comparison.rows)
    every = plan(replace(comparison.setting, trainer=None, max_tokens=held, each=4), "padded").schedules
    assert max(schedule.fullest for schedule in every) == held
    asked = ["--model", "nano", "--gpu", "h100", "--devices", "2", "--minibatch", "4", "--trainer", "torchtitan"]
    assert main(["compare", str(tmp_path / "a.csv"), *asked]) == 2
    assert "a.csv: pairs with --trainer torchtitan; ask for trl or odc, or leave it out" in capsys.readouterr().err

"""Texts and conversations become lengths, whatever file and form they come in, and are counted once."""

import csv
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from texts import CHATML, UNMARKED, WORDS, tokenizer_in
from tokenizers import Tokenizer

from odcsim.decide.advice.wish import Wish
from odcsim.errors import InputError
from odcsim.question import Question
from odcsim.reading import counted, load
from odcsim.reading.tokenizing import kept, writing

ASKED, SAID = WORDS[0], WORDS[1]
TALK = [{"role": "user", "content": ASKED}, {"role": "assistant", "content": SAID}]
SHARED = [{"from": "human", "value": ASKED}, {"from": "gpt", "value": SAID}]
CHAT = f"<|im_start|>user\n{ASKED}<|im_end|>\n<|im_start|>assistant\n{SAID}<|im_end|>\n"
PROMPT = CHAT.partition(SAID)[0]


def written(path, rows):
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix == ".arrow" or not path.suffix:
        table, file = pa.Table.from_pylist(rows), path if path.suffix else path / "data.arrow"
        file.parent.mkdir(exist_ok=True)
        with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=2)
        if not path.suffix:
            (path / "state.json").write_text('{"_data_files": [{"filename": "data.arrow"}]}')
    elif path.suffix == ".csv":
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    else:
        lines = [json.dumps(row) for row in rows]
        path.write_text("[" + ",".join(lines) + "]" if path.suffix == ".json" else "\n\n".join(lines))
    return path


FILES = ["a.jsonl", "a.json", "a.parquet", "a.arrow", "saved"]
FORMS = {
    "messages": ({"messages": TALK}, CHAT, None),
    "sharegpt": ({"conversations": SHARED}, CHAT, None),
    "json": ({"messages": json.dumps(TALK)}, CHAT, None),
    "system": ({"messages": TALK, "system": "Hi"}, f"<|im_start|>system\nHi<|im_end|>\n{CHAT}", None),
    "text": ({"text": ASKED}, f"{ASKED}<|im_end|>", None),
    "ended": ({"text": f"{ASKED}<|im_end|>"}, f"{ASKED}<|im_end|>", None),
    "pair": ({"prompt": ASKED, "completion": SAID}, f"{ASKED}{SAID}<|im_end|>", f"{SAID}<|im_end|>"),
    "talk": ({"prompt": TALK[:1], "completion": TALK[1:]}, CHAT, CHAT.removeprefix(PROMPT)),
    "answer": ({"prompt": TALK[:1], "response": SAID}, CHAT, CHAT.removeprefix(PROMPT)),
    "alpaca": ({"instruction": ASKED, "input": "", "output": SAID}, CHAT, CHAT.removeprefix(PROMPT)),
    "rollout": ({"input": ASKED, "output": SAID}, f"{ASKED}{SAID}<|im_end|>", f"{SAID}<|im_end|>"),
}


@pytest.mark.parametrize("name", [*FILES, "a.csv"])
@pytest.mark.parametrize("form", FORMS)
def test_every_form_in_every_file(tmp_path, folder, tokens, name, form):
    row, text, after = FORMS[form]
    if name == "a.csv" and not all(isinstance(value, str) for value in row.values()):
        pytest.skip("CSV holds texts alone")
    trace = load(written(tmp_path / name, [row] * 3), tokenizer=folder)
    assert trace.lengths.tolist() == [tokens(text)] * 3
    assert trace.loss is None if after is None else trace.loss.tolist() == [tokens(after)] * 3


def test_a_template_that_marks_the_assistant_gives_its_tokens(tmp_path, tokens):
    marked = tokenizer_in(tmp_path / "marked", CHATML)
    trace = load(written(tmp_path / "a.jsonl", [{"messages": TALK * 2}]), tokenizer=marked)
    assert trace.loss.tolist() == [2 * tokens(f"{SAID}<|im_end|>")]


def test_more_rows_than_a_block(tmp_path, folder, tokens):
    texts = [ASKED[: 1 + i % 30] for i in range(2 * writing.BLOCK + 3)]
    trace = load(written(tmp_path / "a.jsonl", [{"text": text} for text in texts]), tokenizer=folder / "tokenizer.json")
    assert trace.lengths.tolist() == [tokens(f"{text}<|im_end|>") for text in texts]


def test_cutting_and_padding_of_the_file_are_left_out(tmp_path, tokens):
    cut = tokenizer_in(tmp_path / "cut", UNMARKED)
    tokenizer = Tokenizer.from_file(str(cut / "tokenizer.json"))
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=64)
    tokenizer.save(str(cut / "tokenizer.json"))
    assert load(written(tmp_path / "a.jsonl", [{"text": ASKED}]), tokenizer=cut).lengths[0] == tokens(
        f"{ASKED}<|im_end|>"
    )


def test_a_template_in_a_file_of_its_own_wins(tmp_path, tokens):
    named = [{"name": "default", "template": "no {{ messages[0].content }}"}, {"name": "tool_use", "template": "x"}]
    folder = tokenizer_in(tmp_path / "own", named)
    rows = written(tmp_path / "a.jsonl", [{"messages": TALK}])
    assert load(rows, tokenizer=folder).lengths[0] == tokens(f"no {ASKED}")
    (folder / "chat_template.jinja").write_text(UNMARKED)
    assert load(rows, tokenizer=folder).lengths[0] == tokens(CHAT)


@pytest.mark.parametrize("row", [{"meta": {"text": ASKED}}, {"meta.text": ASKED, "meta": {"text": ""}}])
def test_a_text_inside_another_field(tmp_path, folder, tokens, row):
    trace = load(written(tmp_path / "a.jsonl", [row]), column="meta.text", tokenizer=folder)
    assert trace.lengths.tolist() == [tokens(f"{ASKED}<|im_end|>")]


def test_rollouts_keep_their_steps_and_groups(tmp_path, folder):
    """As verl's rollout_data_dir has them: like prompts in a step are a group."""
    rows = [{"input": p, "output": "x", "score": 1.0, "step": s} for s in (7, 8) for p in ("a", "a", "b", "b")]
    trace = load(written(tmp_path / "7.jsonl", rows), tokenizer=folder)
    assert trace.step.tolist() == [7] * 4 + [8] * 4
    assert trace.group.tolist() == [0, 0, 1, 1] * 2
    part = load(tmp_path / "7.jsonl", tokenizer=folder, sample=5)
    assert len(part.step) == len(part.group) == 5


@pytest.mark.parametrize("name", FILES)
def test_a_sample_is_of_the_rows_that_it_drew(tmp_path, folder, name):
    path = written(tmp_path / name, [{"text": "a " * i} for i in range(1, 61)])
    every, part = load(path, tokenizer=folder), load(path, tokenizer=folder, sample=20)
    drawn = counted._drawn(60, 20)
    assert part.lengths.tolist() == every.lengths[drawn].tolist()
    assert (part.drawn_from, every.drawn_from) == (60, 0)
    assert "20 of 60 rows drawn" in part.origin
    assert load(path, tokenizer=folder, sample=60).lengths.tolist() == every.lengths.tolist()


def test_a_samples_band_holds_the_whole_nineteen_times_of_twenty():
    rng = np.random.default_rng(0)
    whole, held = rng.integers(1, 2000, 400), 0
    for _ in range(400):
        part = counted.Trace("a", rng.choice(whole, 200, replace=False), drawn_from=400)
        off = float(counted.band(part).partition("within ")[2].partition("%")[0]) / 100
        held += abs(part.lengths.mean() - whole.mean()) <= off * part.lengths.mean()
    assert 0.92 < held / 400 < 0.98


def test_what_was_counted_is_counted_once(tmp_path, folder, monkeypatch):
    path = written(tmp_path / "a.jsonl", [{"text": ASKED}, {"text": SAID}])
    first = load(path, tokenizer=folder)
    with monkeypatch.context() as patched:
        patched.setattr(counted, "counted", None)
        assert load(path, tokenizer=folder).lengths.tolist() == first.lengths.tolist()
        moved = tmp_path / "b.jsonl"
        moved.write_bytes(path.read_bytes())
        assert load(moved, tokenizer=folder).lengths.tolist() == first.lengths.tolist()
        written(path, [{"text": ASKED}, {"text": SAID * 2}])
        with pytest.raises(TypeError):
            load(path, tokenizer=folder)
    assert load(path, tokenizer=folder).lengths[1] > first.lengths[1]


@pytest.mark.parametrize("spoil", ["damaged", "no place"])
def test_a_cache_is_never_in_the_way(tmp_path, folder, monkeypatch, spoil):
    path = written(tmp_path / "a.jsonl", [{"text": ASKED}])
    first = load(path, tokenizer=folder).lengths.tolist()
    if spoil == "damaged":
        for file in kept.folder().iterdir():
            file.write_bytes(b"PK\x03\x04 no archive")
    else:
        (tmp_path / "taken").write_text("")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "taken"))
    assert load(path, tokenizer=folder).lengths.tolist() == first


BAD = {
    "no flag": ("a.jsonl", [{"text": ASKED}], {"tokenizer": None}, "holds texts but no lengths; count it with --tok"),
    "no flag for a column": ("a.jsonl", [{"body": ASKED}], {"tokenizer": None, "column": "body"}, "count it with"),
    "no flag for a table": ("a.parquet", [{"messages": TALK}], {"tokenizer": None}, "count it with --tokenizer"),
    "nothing to count": ("a.jsonl", [{"length": 5}], {}, "no text to count in 'length'; give messages"),
    "a row that differs": ("a.jsonl", [{"text": "a"}, {"text": 5}], {}, r"a.jsonl:3: has no text in 'text'; mend"),
    "no messages": ("a.parquet", [{"messages": TALK}, {"messages": []}], {}, "row 2: has no messages"),
    "half a character": ("a.jsonl", [{"text": "a"}, {"text": "\ud800"}], {}, "a.jsonl:3: is no text"),
    "a row with more": ("a.csv", [{"text": "a", "id": "1"}, {"text": "b,c", "id": "2"}], {"cut": True}, "other fields"),
    "no folder": ("a.jsonl", [{"text": "a"}], {"tokenizer": "org/name"}, "no such tokenizer; give a folder"),
    "a sample of lengths": ("a.jsonl", [{"length": 5}], {"tokenizer": None, "sample": 3}, "--sample 3 without"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_counted_is_one_line(tmp_path, folder, case):
    name, rows, asked, message = BAD[case]
    path = written(tmp_path / name, rows)
    if asked.get("cut"):
        path.write_text(path.read_text().replace('"', ""))
    with pytest.raises(InputError, match=message):
        load(path, **{"tokenizer": folder, **{key: value for key, value in asked.items() if key != "cut"}})


def test_templates_that_are_missing_refuse_or_try_to_get_out(tmp_path):
    rows = written(tmp_path / "a.jsonl", [{"messages": TALK}])
    for name, template, message in [
        ("none", None, "conversations need a chat template, and there is none beside it"),
        ("strict", "{{ raise_exception('Roles must alternate') }}", r"a.jsonl:1: the chat .* take it \(Roles must"),
        ("out", "{{ ''.__class__.__mro__ }}", "does not take it"),
        ("broken", "{% for %}", "does not take it"),
    ]:
        with pytest.raises(InputError, match=message):
            load(rows, tokenizer=tokenizer_in(tmp_path / name, template))


def test_a_tokenizer_that_is_none_is_one_line(tmp_path):
    (tmp_path / "tokenizer.json").write_text('{"version": "1.0"}')
    with pytest.raises(InputError, match="is not a tokenizer"):
        load(written(tmp_path / "a.jsonl", [{"text": "a"}]), tokenizer=tmp_path)


def test_epochs_are_of_the_whole_dataset_and_not_of_the_sample(tmp_path, folder):
    path = written(tmp_path / "a.jsonl", [{"text": "a " * i} for i in range(1, 61)])
    part = load(path, tokenizer=folder, sample=20)
    assert (part.size, part.whole) == (20, 60)
    assert Wish(Question(trace=part, model="qwen3-0.6b", global_batch=6, epochs=2.0), ("a100",), (2,)).steps == 20
    halved = load(path, tokenizer=folder, sample=20, drop_over=int(np.median(part.lengths)))
    assert halved.whole == round(60 * halved.size / 20)

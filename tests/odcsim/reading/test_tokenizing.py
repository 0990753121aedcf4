"""Texts and conversations become lengths, whatever file and form they come in, and are counted once."""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from rowfiles import ARROWS, TEXTS, write
from scripts import ROOT
from texts import CHATML, UNMARKED, WORDS, tokenizer_in
from tokenizers import Tokenizer

from odcsim.decide.advice import Wish
from odcsim.errors import InputError
from odcsim.question import Question
from odcsim.reading import load, texts
from odcsim.reading.faults import Fault
from odcsim.reading.tokenizing import cache, render
from odcsim.reading.tokenizing.cache import RowTokens

ASKED, SAID = WORDS[0], WORDS[1]
TALK = [{"role": "user", "content": ASKED}, {"role": "assistant", "content": SAID}]
SHARED = [{"from": "human", "value": ASKED}, {"from": "gpt", "value": SAID}]
CHAT = f"<|im_start|>user\n{ASKED}<|im_end|>\n<|im_start|>assistant\n{SAID}<|im_end|>\n"
ANSWER = CHAT.removeprefix(CHAT.partition(SAID)[0])
FORMS = {  # a row, what is counted of it, and what of that has a loss
    "messages": ({"messages": TALK}, CHAT, None),
    "sharegpt": ({"conversations": SHARED}, CHAT, None),
    "json": ({"messages": json.dumps(TALK)}, CHAT, None),
    "system": ({"messages": TALK, "system": "Hi"}, f"<|im_start|>system\nHi<|im_end|>\n{CHAT}", None),
    "text": ({"text": ASKED}, f"{ASKED}<|im_end|>", None),
    "ended": ({"text": f"{ASKED}<|im_end|>"}, f"{ASKED}<|im_end|>", None),
    "pair": ({"prompt": ASKED, "completion": SAID}, f"{ASKED}{SAID}<|im_end|>", f"{SAID}<|im_end|>"),
    "talk": ({"prompt": TALK[:1], "completion": TALK[1:]}, CHAT, ANSWER),
    "answer": ({"prompt": TALK[:1], "response": SAID}, CHAT, ANSWER),
    "alpaca": ({"instruction": ASKED, "input": "", "output": SAID}, CHAT, ANSWER),
    "rollout": ({"input": ASKED, "output": SAID}, f"{ASKED}{SAID}<|im_end|>", f"{SAID}<|im_end|>"),
}
FILES = [name for name in (*TEXTS, *ARROWS) if name not in ("columns.json", "a.feather.arrow", "a.tsv")]
PLACES = [
    (name, form) for name in FILES for form, (row, *_) in FORMS.items()
    if name != "a.csv" or all(isinstance(value, str) for value in row.values())
]  # fmt: skip


@pytest.mark.parametrize(("name", "form"), PLACES)
def test_every_form_in_every_file(tmp_path, folder, tokens, name, form):
    row, text, after = FORMS[form]
    trace = load(write(tmp_path / name, [row] * 3), tokenizer=folder)
    assert trace.lengths.tolist() == [tokens(text)] * 3
    assert trace.loss is None if after is None else trace.loss.tolist() == [tokens(after)] * 3


def test_a_template_in_a_file_of_its_own_wins_and_one_that_marks_the_assistant_gives_its_tokens(tmp_path, tokens):
    named = [{"name": "default", "template": "no {{ messages[0].content }}"}, {"name": "tool_use", "template": "x"}]
    own = tokenizer_in(tmp_path / "own", [*named, "no dict", {"name": "no template"}])
    rows = write(tmp_path / "a.jsonl", [{"messages": TALK}])
    assert load(rows, tokenizer=own).lengths[0] == tokens(f"no {ASKED}")
    (own / "chat_template.jinja").write_text(UNMARKED)
    assert load(rows, tokenizer=own).lengths[0] == tokens(CHAT)
    marked = tokenizer_in(tmp_path / "marked", CHATML)
    trace = load(write(tmp_path / "b.jsonl", [{"messages": TALK * 2}]), tokenizer=marked)
    assert trace.loss.tolist() == [2 * tokens(f"{SAID}<|im_end|>")]


def test_more_rows_than_a_block_by_a_file_that_cuts_and_pads(tmp_path, folder, tokens):
    texts = [ASKED[: 1 + i % 30] for i in range(2 * render.BLOCK + 3)]
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=64)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text((folder / "tokenizer_config.json").read_text())
    path = write(tmp_path / "a.jsonl", [{"text": text} for text in texts])
    trace = load(path, tokenizer=tmp_path / "tokenizer.json")
    assert trace.lengths.tolist() == [tokens(f"{text}<|im_end|>") for text in texts]


def test_a_text_inside_another_field(tmp_path, folder, tokens):
    for row in ({"meta": {"text": ASKED}}, {"meta.text": ASKED, "meta": {"text": ""}}):
        trace = load(write(tmp_path / "a.jsonl", [row]), column="meta.text", tokenizer=folder)
        assert trace.lengths.tolist() == [tokens(f"{ASKED}<|im_end|>")]


def test_rollouts_keep_their_steps_and_groups(tmp_path, folder):
    """As verl's rollout_data_dir has them: like prompts in a step are a group."""
    rows = [{"input": p, "output": "x", "score": 1.0, "step": s} for s in (7, 8) for p in ("a", "a", "b", "b")]
    trace = load(write(tmp_path / "7.jsonl", rows), tokenizer=folder)
    assert (trace.step.tolist(), trace.group.tolist()) == ([7] * 4 + [8] * 4, [0, 0, 1, 1] * 2)
    part = load(tmp_path / "7.jsonl", tokenizer=folder, sample=5)
    assert len(part.step) == len(part.group) == 5


@pytest.mark.parametrize("name", [name for name in FILES if name != "a.csv"])
def test_a_sample_is_of_the_rows_that_it_drew(tmp_path, folder, name):
    path = write(tmp_path / name, [{"text": "a " * i} for i in range(1, 61)])
    every, part = load(path, tokenizer=folder), load(path, tokenizer=folder, sample=20)
    assert (
        part.lengths.tolist() == every.lengths[np.sort(np.random.default_rng(0).choice(60, 20, replace=False))].tolist()
    )
    assert (part.drawn_from, every.drawn_from, part.size, part.population) == (60, 0, 20, 60)
    assert load(path, tokenizer=folder, sample=60).lengths.tolist() == every.lengths.tolist()
    epochs = Question(trace=part, model="qwen3-0.6b", global_batch=6, epochs=2.0)
    assert Wish(epochs, ("a100",), (2,)).steps == 20
    halved = load(path, tokenizer=folder, sample=20, drop_over=int(np.median(part.lengths)))
    assert halved.population == round(60 * halved.size / 20)


def test_a_samples_band_holds_the_whole_nineteen_times_of_twenty():
    rng = np.random.default_rng(0)
    whole, held = rng.integers(1, 2000, 400), 0
    for _ in range(400):
        part = texts.Trace("a", rng.choice(whole, 200, replace=False), drawn_from=400)
        off = float(texts.band(part).partition("within ")[2].partition("%")[0]) / 100
        held += abs(part.lengths.mean() - whole.mean()) <= off * part.lengths.mean()
    assert 0.92 < held / 400 < 0.98


def test_what_was_counted_is_counted_once_and_a_damaged_cache_is_not_in_the_way(tmp_path, folder, monkeypatch):
    path = write(tmp_path / "a.jsonl", [{"text": ASKED}, {"text": SAID}])
    first = load(path, tokenizer=folder)
    with monkeypatch.context() as patched:
        patched.setattr(texts, "count_blocks", None)
        assert load(path, tokenizer=folder).lengths.tolist() == first.lengths.tolist()
        (moved := tmp_path / "b.jsonl").write_bytes(path.read_bytes())
        assert load(moved, tokenizer=folder).lengths.tolist() == first.lengths.tolist()
        write(path, [{"text": ASKED}, {"text": SAID * 2}])
        with pytest.raises(TypeError):
            load(path, tokenizer=folder)
    assert load(path, tokenizer=folder).lengths[1] > first.lengths[1]
    for file in cache.folder().iterdir():
        file.write_bytes(b"PK\x03\x04 no archive")
    assert load(moved, tokenizer=folder).lengths.tolist() == first.lengths.tolist()


REFUSED = [
    ("a.jsonl", [{"body": ASKED}], {"tokenizer": None, "column": "body"}),
    ("a.parquet", [{"messages": TALK}], {"tokenizer": None}),
    ("a.jsonl", [{"prompt": "a", "chosen": "b", "rejected": "c"}], {"tokenizer": None}),
    ("a.parquet", [{"messages": TALK}, {"messages": []}], {}), ("a.csv", [{"text": "a", "id": "1,2"}], {}),
    ("a.jsonl", [{"text": "a"}, {"text": "\ud800"}], {}),
    *[("a.jsonl", [{"messages": TALK}], {"template": of}) for of in (None, "{{ ''.__class__.__mro__ }}", "{% for %}")],
]  # fmt: skip


@pytest.mark.parametrize(("name", "rows", "how"), REFUSED)
def test_what_cannot_be_counted_is_refused(tmp_path, folder, name, rows, how):
    path = write(tmp_path / name, rows)
    if name == "a.csv":
        path.write_text(path.read_text().replace('"', ""))
    by = tokenizer_in(tmp_path / "own", how["template"]) if "template" in how else how.get("tokenizer", folder)
    with pytest.raises(InputError) as caught:
        load(path, tokenizer=by, column=how.get("column"))
    assert "\n" not in str(caught.value)


KEPT = RowTokens(np.arange(20_000), np.arange(20_000) // 2, (Fault(0, "has no messages", "mend the row"),))
KEEPS = """
import sys, numpy as np
from odcsim.reading.tokenizing import cache
counted = np.arange(20_000), np.arange(20_000) // 2, [(0, "has no messages", "mend the row")]
while True:
    cache.keep("it", counted)
    print(flush=True)
"""


def is_whole(found):
    return all(np.array_equal(one, other) for one, other in zip(found, KEPT, strict=True))


def test_processes_and_threads_that_keep_one_thing_at_once_leave_it_whole_and_nothing_else():
    """Two processes keep it again and again until they are killed, and it is recalled all the while."""
    with ThreadPoolExecutor(8) as threads:
        assert len(list(threads.map(cache.keep, ["it"] * 8, [KEPT] * 8))) == 8
    assert [path.name for path in cache.folder().iterdir()] == ["it.npz"]
    keeping = [subprocess.Popen([sys.executable, "-c", KEEPS], cwd=ROOT, stdout=subprocess.PIPE) for _ in range(2)]
    try:
        for process in keeping:
            process.stdout.readline()
        assert all(is_whole(cache.recall("it")) for _ in range(100))
    finally:
        for process in keeping:
            process.kill()
            process.communicate()
    assert is_whole(cache.recall("it"))


def test_what_is_torn_was_never_there():
    cache.keep("it", KEPT)
    [path] = cache.folder().iterdir()
    whole = path.read_bytes()
    for share in (0.0, 0.1, 0.5, 0.99):
        path.write_bytes(whole[: int(share * len(whole))])
        assert cache.recall("it") is None
    cache.keep("it", KEPT)
    assert is_whole(cache.recall("it"))


@pytest.mark.parametrize("place", ["a file", "a link to nowhere", "no home"])
def test_where_nothing_can_be_kept_nothing_is_said(tmp_path, monkeypatch, place):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    if place == "no home":
        monkeypatch.delenv("XDG_CACHE_HOME")
        monkeypatch.setattr(Path, "home", Mock(side_effect=RuntimeError))
    elif place == "a file":
        (tmp_path / "odcsim").write_text("mine")
    else:
        (tmp_path / "odcsim").symlink_to(tmp_path / "nowhere" / "else")
    cache.keep("it", KEPT)
    assert cache.recall("it") is None
    assert [path.name for path in tmp_path.iterdir()] == ([] if place == "no home" else ["odcsim"])

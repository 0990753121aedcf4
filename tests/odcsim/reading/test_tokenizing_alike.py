"""Counts are those of transformers' own `apply_chat_template`, token for token, and of TRL's own masks."""

from itertools import product

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rowfiles import write
from texts import CHATML, UNMARKED, WORDS, tokenizer_in
from transformers import AutoTokenizer

from odcsim.reading import load

pytestmark = pytest.mark.slow

TOOLS = (
    "{{- bos_token }}{%- if tools %}{{ tools | tojson(indent=2) }}{% endif %}{%- for m in messages -%}\n"
    "  [{{ m['role'] | upper }}] {{ m.content | trim }}{%- if m.thinking %}({{ m.thinking }}){% endif %}\n"
    "  {%- if loop.last %}{% break %}{% endif %}\n{%- endfor %}{{ eos_token }}"
)
SAID = st.sampled_from(WORDS) | st.text(max_size=40).filter(lambda t: "\x00" not in t)
SAYS = {"role": st.sampled_from(["system", "user", "assistant"]), "content": SAID}
TALKS = st.lists(st.fixed_dictionaries(SAYS, optional={"reasoning": SAID}), min_size=1, max_size=6)


def counted(folder, rows, tokenizer):
    return load(write(folder / "a.jsonl", rows), tokenizer=tokenizer)


@pytest.mark.parametrize("template", [CHATML, UNMARKED, TOOLS], ids=["marked", "unmarked", "tools"])
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(talks=st.lists(TALKS, min_size=1, max_size=4))
def test_conversations_are_as_long_as_transformers_has_them(tmp_path, template, talks):
    folder = tokenizer_in(tmp_path / "tokenizer", template)
    theirs = AutoTokenizer.from_pretrained(folder)
    tools = [{"type": "function", "function": {"name": "add", "description": "ä", "parameters": {}}}]
    trace = counted(tmp_path, [{"messages": talk, "tools": tools} for talk in talks], folder)
    made = [theirs.apply_chat_template(talk, tools=tools, return_dict=True) for talk in talks]
    assert trace.lengths.tolist() == [len(one["input_ids"]) for one in made]


FUNCTION = st.fixed_dictionaries({"name": SAID}, optional={"parameters": st.just({})})
TOOL = st.fixed_dictionaries({"type": st.just("function"), "function": FUNCTION})
TURN = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant"]), "content": SAID | st.none()},
    optional={"tool_calls": st.sampled_from([None, [{"id": "1"}]]), "reasoning": SAID | st.none()},
)
BESIDE = {
    "tools": st.none() | st.lists(TOOL, max_size=2),
    "chat_template_kwargs": st.none() | st.fixed_dictionaries({}, optional={"bos_token": SAID, "fancy": SAID}),
}
RAGGED = st.fixed_dictionaries({"messages": st.lists(TURN, min_size=1, max_size=3)}, optional=BESIDE)
ASKING = (
    "{% if tools is not none %}{{ tools | tojson }}{% endif %}{{ bos_token }}{{ fancy if fancy is defined }}"
    "{% for m in messages %}{{ m.content }}{{ m.thinking }}{{ 'calls' if 'tool_calls' in m }}{% endfor %}end"
)


@pytest.mark.parametrize("named", [False, True])
@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(RAGGED, min_size=1, max_size=5))
def test_rows_of_unlike_keys_are_as_long_as_transformers_has_them(tmp_path, named, rows):
    """Tools, settings and messages that some rows have and others lack, in the order that hypothesis likes."""
    templates = [{"name": "default", "template": ASKING}, {"name": "tool_use", "template": f"with {ASKING}"}]
    folder = tokenizer_in(tmp_path / "tokenizer", templates if named else ASKING)
    theirs = AutoTokenizer.from_pretrained(folder)
    expected = []
    for row in rows:
        own = row.get("chat_template_kwargs") or {}
        made = theirs.apply_chat_template(row["messages"], tools=row.get("tools"), return_dict=True, **own)
        expected.append(len(made["input_ids"]))
    assert counted(tmp_path, rows, folder).lengths.tolist() == expected


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(talks=st.lists(TALKS.filter(lambda t: any(m["role"] == "assistant" for m in t)), min_size=1, max_size=4))
def test_the_assistants_tokens_are_those_of_transformers_mask(tmp_path, talks):
    folder = tokenizer_in(tmp_path / "tokenizer", CHATML)
    theirs = AutoTokenizer.from_pretrained(folder)
    trace = counted(tmp_path, [{"messages": talk} for talk in talks], folder)
    masks = [theirs.apply_chat_template(t, return_dict=True, return_assistant_tokens_mask=True) for t in talks]
    assert trace.loss.tolist() == [sum(mask["assistant_masks"]) for mask in masks]


def by(role, text):
    return {"role": role, "content": text}


ANSWERED = [
    lambda a, b: {"prompt": f"{a} q", "completion": f"{b} end"},
    lambda a, b: {"prompt": [by("user", f"{a} q")], "completion": [by("assistant", f"{b} end")]},
]
PREFERRED = [
    lambda a, b, c: {"prompt": f"{a} q", "chosen": f"{b} end", "rejected": f"{c} end"},
    lambda a, b, c: {"chosen": f"{a} q {b} end", "rejected": f"{a} q {c} end"},
    lambda a, b, c: {"prompt": [by("user", a)], "chosen": [by("assistant", b)], "rejected": [by("assistant", c)]},
    lambda a, b, c: {side: [by("user", a), by("assistant", of)] for side, of in (("chosen", b), ("rejected", c))},
]


def prepared(folder, trainer, config, rows, tokenizer, **models):
    """TRL's own dataset, prepared by the trainer itself."""
    from datasets import Dataset
    from tiny_trainers import llama

    args = config(str(folder / "out"), max_length=None, report_to="none", bf16=False, use_cpu=True)
    known = {name: llama() for name in ("model", *models)}
    by_theirs = AutoTokenizer.from_pretrained(tokenizer)
    return trainer(**known, args=args, train_dataset=Dataset.from_list(rows), processing_class=by_theirs).train_dataset


@pytest.mark.filterwarnings("default")  # theirs
@pytest.mark.parametrize("bos", [False, True])
@pytest.mark.parametrize("form", ANSWERED)
def test_prompts_and_completions_are_as_long_as_trl_has_them(tmp_path, bos, form):
    from trl import SFTConfig, SFTTrainer

    folder = tokenizer_in(tmp_path / "tokenizer", UNMARKED, bos=bos, pad_token="<s>")
    rows = [form(*words) for words in product(WORDS, WORDS)]
    theirs, trace = prepared(tmp_path, SFTTrainer, SFTConfig, rows, folder), counted(tmp_path, rows, folder)
    assert trace.lengths.tolist() == [len(row["input_ids"]) for row in theirs]
    assert trace.loss.tolist() == [sum(label != -100 for label in row["labels"]) for row in theirs]


@pytest.mark.filterwarnings("default")  # theirs
@pytest.mark.parametrize("bos", [False, True])
@pytest.mark.parametrize("form", PREFERRED)
def test_both_sides_of_a_pair_are_as_long_as_trl_has_them(tmp_path, bos, form):
    from trl import DPOConfig, DPOTrainer

    folder = tokenizer_in(tmp_path / "tokenizer", UNMARKED, bos=bos, pad_token="<s>")
    rows = [form(a, b, c) for a, b, c in product(WORDS, WORDS, WORDS) if b != c]
    theirs = prepared(tmp_path, DPOTrainer, DPOConfig, rows, folder, ref_model=1)
    trace = counted(tmp_path, rows, folder)
    sides = [(row["prompt_ids"], row[f"{side}_ids"]) for row in theirs for side in ("chosen", "rejected")]
    assert trace.lengths.tolist() == [len(prompt) + len(side) for prompt, side in sides]
    assert trace.loss.tolist() == [len(side) for _, side in sides]
    assert trace.bundle.tolist() == [row for row in range(len(rows)) for _ in range(2)]


def test_a_dataset_of_unlike_rows_is_as_long_as_it_is_loaded(tmp_path):
    """Parquet and save_to_disk as datasets writes them, from lines whose messages have unlike keys."""
    from datasets import load_dataset

    folder = tokenizer_in(tmp_path / "tokenizer", ASKING)
    theirs = AutoTokenizer.from_pretrained(folder)
    called = {"role": "assistant", "content": None, "tool_calls": [{"function": {"arguments": {"x": 1}}}]}
    talks = [[{"role": "user", "content": "a"}], [{"role": "user", "content": "b"}, called]]
    rows = [{"messages": talks[0]}, {"messages": talks[1], "tools": [{"type": "function"}]}]
    path = str(write(tmp_path / "a.jsonl", rows))
    data = load_dataset("json", data_files=path, split="train", cache_dir=str(tmp_path / "c"))
    data.to_parquet(tmp_path / "a.parquet")
    data.save_to_disk(tmp_path / "saved")
    expected = [len(theirs.apply_chat_template(r["messages"], tools=r["tools"])["input_ids"]) for r in data]
    for name in ("a.jsonl", "a.parquet", "saved"):
        assert load(tmp_path / name, tokenizer=folder).lengths.tolist() == expected

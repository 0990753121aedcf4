"""A tokenizer.json that asks for all memory, takes for ever or makes its library panic is one line."""

import json
import subprocess

import pytest
from texts import UNMARKED, tokenizer_in

from odcsim.cli import main
from odcsim.errors import InputError
from odcsim.reading import counted, load
from odcsim.reading.tokenizing import writer

PLAIN = {
    "version": "1.0",
    "added_tokens": [],
    "model": {"type": "WordLevel", "vocab": {"a": 0, "u": 1}, "unk_token": "u"},
}


def replace(pattern, content, kind="String"):
    return {"type": "Replace", "pattern": {kind: pattern}, "content": content}


PADDED = {"strategy": {"Fixed": 10**12}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0,
          "pad_type_id": 0, "pad_token": "u"}  # fmt: skip
CRAFTED = {
    "doubled": PLAIN | {"normalizer": {"type": "Sequence", "normalizers": [replace("a", "a" * 10)] * 12}},
    "doubled by an expression": PLAIN
    | {"normalizer": {"type": "Sequence", "normalizers": [replace("a|b", "ab" * 9, "Regex")] * 14}},
    "prepended": PLAIN | {"normalizer": {"type": "Sequence", "normalizers": [replace("a", "a" * 999)] * 4}},
    "deep": json.dumps(PLAIN)[:-1] + ', "normalizer": ' + '{"type": "Sequence", "normalizers": [' * 50_000,
    "no unknown": PLAIN | {"model": {"type": "WordLevel", "vocab": {}, "unk_token": "u"}},
    "a panic of charsmap": PLAIN | {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}},
    "a panic of unigram": PLAIN | {"model": {"type": "Unigram", "unk_id": 9, "vocab": [["a", -1.0]]}},
    "merges of nothing": PLAIN | {"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [["a", "b"]]}},
    "a type id": PLAIN
    | {"post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "x", "type_id": 0}}],
                          "pair": [], "special_tokens": {}}},
    "slow": PLAIN | {"normalizer": replace("(a+)+(a+)+(a+)+$", "b", "Regex")},
}  # fmt: skip
FINE = {
    "padded": PLAIN | {"padding": PADDED},
    "cut": PLAIN | {"truncation": {"direction": "Right", "max_length": 0, "strategy": "LongestFirst", "stride": 0}},
}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("ODCSIM_MAX_MEMORY", "256MB")
    monkeypatch.setattr(counted, "SECONDS", 1.0)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts.jsonl").write_text(json.dumps({"text": "a" * 60 + "b a"}) + "\n")


def asked(tmp_path, tokenizer, capfd):
    (tmp_path / "tokenizer.json").write_text(tokenizer if isinstance(tokenizer, str) else json.dumps(tokenizer))
    code = main(["trace", "info", "texts.jsonl", "--tokenizer", "."])
    return code, capfd.readouterr().err


@pytest.mark.parametrize("name", CRAFTED)
def test_a_crafted_tokenizer_is_one_line(tmp_path, name, capfd):
    code, told = asked(tmp_path, CRAFTED[name], capfd)
    assert (code, len(told.splitlines())) == (2, 1), told
    assert "tokenizer.json" in told


@pytest.mark.parametrize("name", FINE)
def test_what_is_not_asked_of_it_does_no_harm(tmp_path, name, capfd):
    assert asked(tmp_path, FINE[name], capfd) == (0, "")


def test_after_one_that_ends_the_process_the_next_is_counted(tmp_path, capfd):
    assert asked(tmp_path, CRAFTED["doubled"], capfd)[0] == 2
    (tmp_path / "tokenizer.json").unlink()
    folder = tokenizer_in(tmp_path / "good", UNMARKED)
    assert load(tmp_path / "texts.jsonl", tokenizer=folder).size == 1


def test_what_has_ended_with_no_word_is_a_defect_and_no_signal_is_hidden(tmp_path, monkeypatch):
    folder = tokenizer_in(tmp_path / "good", UNMARKED)
    started = subprocess.Popen
    monkeypatch.setattr(writer, "RUN", "import os, signal; os.kill(os.getpid(), signal.SIGSEGV); '{}'")
    monkeypatch.setattr(writer.subprocess, "Popen", lambda *given, **how: started(*given, **how))
    writer.counter_of.cache_clear()
    with pytest.raises(InputError, match=r"ends the process that counts tokens \(SIGSEGV\)"):
        load(tmp_path / "texts.jsonl", tokenizer=folder)
    writer.counter_of.cache_clear()

"""Templates and tokenizers that take for ever, ask for all memory or end their process: one line, nobody is harmed."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rowfiles import write
from texts import UNMARKED

from odcsim.errors import InputError
from odcsim.reading import load, texts
from odcsim.reading.tokenizing import children, render
from odcsim.reading.tokenizing.children import RUN, TextReader, writer_of
from odcsim.support import budget

LOOP = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
ENDLESS = {
    "nested loops": LOOP,
    "a loop that writes": LOOP.replace("{% endfor %}", "x{% endfor %}", 1),
    "longer than any": "{{ 'x' * 10**13 }}",
    "a text doubled": "{% set n = namespace(t='x') %}{% for i in range(60) %}{% set n.t = n.t ~ n.t %}{% endfor %}",
    "a list doubled": "{% set n = namespace(t=[1]) %}{% for i in range(60) %}{% set n.t = n.t + n.t %}{% endfor %}",
    "replace": "{{ ('x' * 10**5) | replace('x', 'y' * 10**5) }}",
    "two calls each": "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
    "center": "{{ 'x' | center(10**10) }}",
    "format": "{{ '%99999999999d' | format(1) }}",
    "str.format": "{{ '{:>9999999999}'.format(1) }}",
    "indent": "{{ ('x\n' * 10**5) | indent(10**5) }}",
    "wordwrap": "{{ ('x ' * 10**7) | wordwrap(1) }}",
    "batch": "{{ [1] | batch(10**9, 'x') | list }}",
    "a great number": "{{ 10 ** (10 ** 9) }}",
    "tojson": "{{ [[1] * 10**7] * 10**3 | tojson }}",
    "brackets": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "many words": "{{ 'a' }}" * 200_000,
}
PLAIN = {"version": "1.0", "added_tokens": []}
PLAIN["model"] = {"type": "WordLevel", "vocab": {"a": 0, "u": 1}, "unk_token": "u"}
PADDED = {"strategy": {"Fixed": 10**12}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0}
PADDED |= {"pad_type_id": 0, "pad_token": "u"}
CUT = {"direction": "Right", "max_length": 0, "strategy": "LongestFirst", "stride": 0}
UNNAMED = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "x", "type_id": 0}}]}
UNNAMED |= {"pair": [], "special_tokens": {}}


def replacing(pattern, content, kind="String"):
    return {"type": "Replace", "pattern": {kind: pattern}, "content": content}


def often(times, *how):
    return {"normalizer": {"type": "Sequence", "normalizers": [replacing(*how)] * times}}


CRAFTED = {
    "doubled": often(12, "a", "a" * 10),
    "doubled by an expression": often(14, "a|b", "ab" * 9, "Regex"),
    "deep": json.dumps(PLAIN)[:-1] + ', "normalizer": ' + '{"type": "Sequence", "normalizers": [' * 50_000,
    "no unknown": {"model": {"type": "WordLevel", "vocab": {}, "unk_token": "u"}},
    "a panic of charsmap": {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}},
    "a panic of unigram": {"model": {"type": "Unigram", "unk_id": 9, "vocab": [["a", -1.0]]}},
    "merges of nothing": {"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [["a", "b"]]}},
    "a token without a name": {"post_processor": UNNAMED},
    "slow": {"normalizer": replacing("(a+)+(a+)+(a+)+$", "b", "Regex")},
    "none": '{"version": "1.0"}',
}


def some(cases, *quick):
    """Each ends a process; that takes its time."""
    return [pytest.param(name, marks=() if name in quick else pytest.mark.slow) for name in cases]


@pytest.fixture(autouse=True)
def bounds(tmp_path, monkeypatch):
    monkeypatch.setenv(budget.VARIABLE, "600MB")
    monkeypatch.setattr(render, "SECONDS", 0.3)
    monkeypatch.setattr(texts, "SECONDS", 1.0)
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "chats.jsonl", [{"messages": [{"role": "user", "content": word}]} for word in ("a", "b", "slow")])
    write(tmp_path / "texts.jsonl", [{"text": "a" * 60 + "b a"}])


def templated(home: Path, template: str) -> Path:
    (home / "chat_template.jinja").write_text(template)
    return home


def refused(file, tokenizer, at):
    began = time.process_time()
    with pytest.raises(InputError) as caught:
        load(file, tokenizer=tokenizer)
    line = str(caught.value)
    assert (line.count("\n"), len(line) < 1000, time.process_time() - began < 2) == (0, True, True)
    assert caught.value.where.startswith(at)
    return line


QUICK = ("nested loops", "a list doubled", "indent", "a great number", "brackets")


@pytest.mark.parametrize("kind", some(ENDLESS, *QUICK))
def test_a_template_without_end_is_one_line(kind, folder):
    at = "chats.jsonl" if kind in ("brackets", "batch", "longer than any") else ""
    refused("chats.jsonl", templated(folder, ENDLESS[kind]), at)
    assert load("chats.jsonl", tokenizer=templated(folder, UNMARKED)).size == 3


def test_whoever_takes_long_or_is_too_long_is_known_by_its_row(folder):
    slow = "{% if messages[0].content == 'slow' %}" + LOOP + "{% endif %}x"
    refused("chats.jsonl", templated(folder, slow), "chats.jsonl:3")
    write(Path("a.jsonl"), [{"text": "x" * 1_600_000}])
    assert f"{budget.VARIABLE}=8GB" in refused("a.jsonl", folder, "a.jsonl")


@pytest.mark.parametrize("name", some(CRAFTED, "doubled", "a panic of charsmap", "slow"))
def test_a_crafted_tokenizer_is_one_line_and_the_next_is_counted(name, folder, monkeypatch):
    monkeypatch.setenv(budget.VARIABLE, "256MB")
    content = CRAFTED[name]
    Path("tokenizer.json").write_text(content if isinstance(content, str) else json.dumps(PLAIN | content))
    assert "tokenizer.json" in refused("texts.jsonl", ".", "")
    assert load("texts.jsonl", tokenizer=folder).size == 1


def test_what_is_not_asked_of_it_does_no_harm():
    for more in ({"padding": PADDED}, {"truncation": CUT}):
        Path("tokenizer.json").write_text(json.dumps(PLAIN | more))
        assert load("texts.jsonl", tokenizer=".").size == 1


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT])
def test_who_brings_the_process_down_is_named(number, folder, monkeypatch):
    """A writer of templates, or a counter that ends with no word."""
    really = TextReader._hear

    def hear(self, process, *of):
        if self._module == "render":
            os.kill(process.pid, number)
        return really(self, process, *of)

    monkeypatch.setattr(TextReader, "_hear", hear)
    name = signal.Signals(number).name
    assert name in refused("chats.jsonl", templated(folder, LOOP), str(folder))
    monkeypatch.setattr(children, "RUN", f"import os; os.kill(os.getpid(), {int(number)}); '{{}}'")
    children.counter_of.cache_clear()
    assert name in refused("texts.jsonl", folder, "")
    children.counter_of.cache_clear()


def test_one_process_serves_all_files(folder):
    found = set()
    for n in range(3):
        load("chats.jsonl", tokenizer=templated(folder, UNMARKED + str(n)))
        found.add(writer_of(os.getpid())._process.pid)
    assert len(found) == 1


def test_one_interrupt_ends_it(folder):
    """Also a template that hears no alarm, and no process stays behind."""
    line = ["trace", "info", "chats.jsonl", "--tokenizer", str(templated(folder, LOOP))]
    run = f"from odcsim.cli import main; raise SystemExit(main({line!r}))"
    command = subprocess.Popen([sys.executable, "-c", run], stderr=subprocess.PIPE, text=True, start_new_session=True)
    deadline = time.monotonic() + 60
    while not (children := "".join(path.read_text() for path in Path(f"/proc/{command.pid}/task").glob("*/children"))):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    time.sleep(0.5)
    os.killpg(command.pid, signal.SIGINT)
    _, said = command.communicate(timeout=60)
    assert (command.returncode, said) == (130, "odcsim: stopped\n")
    assert not any(Path(f"/proc/{child}").exists() for child in children.split())


def test_the_process_hears_no_interrupt_from_before_its_first_import():
    """What is imported is none of ours here: interrupts are ignored when that fails."""
    look = f"""
import signal
try:
    exec({RUN.format("none_of_ours")!r})
except ModuleNotFoundError:
    print(signal.getsignal(signal.SIGINT) == signal.SIG_IGN)
"""
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"

"""Chat templates that take for ever, write without end or bring their process down: one line, and nobody is harmed."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from texts import UNMARKED, tokenizer_in

from odcsim.cli import main
from odcsim.errors import InputError
from odcsim.reading import load
from odcsim.reading.tokenizing import writing
from odcsim.reading.tokenizing.writer import TextReader, writer_of
from odcsim.support import budget

LOOP = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
TEXTS = {
    "nested loops": LOOP,
    "a loop that writes": LOOP.replace("{% endfor %}", "x{% endfor %}", 1),
    "a long text": "{{ 'x' * 10**9 }}",
    "longer than any": "{{ 'x' * 10**13 }}",
    "a text doubled": "{% set n = namespace(t='x') %}{% for i in range(60) %}{% set n.t = n.t ~ n.t %}{% endfor %}",
    "a list doubled": "{% set n = namespace(t=[1]) %}{% for i in range(60) %}{% set n.t = n.t + n.t %}{% endfor %}",
    "replace": "{{ ('x' * 10**5) | replace('x', 'y' * 10**5) }}",
    "a macro that calls itself": "{% macro m(n) %}{{ m(n + 1) }}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}",
    "two calls each": "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
    "center": "{{ 'x' | center(10**10) }}",
    "format": "{{ '%99999999999d' | format(1) }}",
    "str.format": "{{ '{:>9999999999}'.format(1) }}",
    "indent": "{{ ('x\n' * 10**5) | indent(10**5) }}",
    "wordwrap": "{{ ('x ' * 10**7) | wordwrap(1) }}",
    "batch": "{{ [1] | batch(10**9, 'x') | list }}",
    "a great number": "{{ 10 ** (10 ** 9) }}",
    "join": "{{ range(99999) | join('x' * 10**6) }}",
    "ljust": "{{ 'x'.ljust(10**10) }}",
    "tojson": "{{ [[1] * 10**7] * 10**3 | tojson }}",
    "brackets": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "deep lists": "{{ " + "[" * 90 + "]" * 90 + " }}" * 3,
    "many words": "{{ 'a' }}" * 200_000,
}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv(budget.VARIABLE, "600MB")
    monkeypatch.setattr(writing, "SECONDS", 0.3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tokenizer_in(tmp_path_factory.mktemp("tokenizer"), None)


@pytest.fixture
def chats(tmp_path):
    rows = [{"messages": [{"role": "user", "content": "hello"}]}] * 3
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return tmp_path / "a.jsonl"


def templated(folder: Path, template: str) -> Path:
    (folder / "chat_template.jinja").write_text(template)
    return folder


@pytest.mark.parametrize("kind", TEXTS)
def test_a_template_without_end_is_one_line(kind, folder, chats):
    began = time.process_time()
    with pytest.raises(InputError) as caught:
        load(chats, tokenizer=templated(folder, TEXTS[kind]))
    told = str(caught.value)
    assert told.count("\n") == 0
    assert len(told) < 1000
    assert "chat_template.jinja" in told or "the chat template does not take it" in told
    assert time.process_time() - began < 2
    assert load(chats, tokenizer=templated(folder, UNMARKED)).size == 3


def test_whoever_takes_long_is_told_by_its_row(folder, tmp_path):
    rows = [{"messages": [{"role": "user", "content": word}]} for word in ("a", "b", "slow")]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    slow = "{% if messages[0].content == 'slow' %}" + LOOP + "{% endif %}x"
    with pytest.raises(
        InputError, match=r"a\.jsonl:3: the chat template takes more than 0\.3 s for a row; mend the row"
    ):
        load(tmp_path / "a.jsonl", tokenizer=templated(folder, slow))


@pytest.mark.parametrize(("number", "said"), [(signal.SIGSEGV, "SIGSEGV"), (signal.SIGABRT, "SIGABRT")])
def test_who_brings_the_process_down_is_named(number, said, folder, chats, monkeypatch):
    really = TextReader._hear
    monkeypatch.setattr(
        TextReader,
        "_hear",
        lambda self, process, *of: (
            (self._module == "writing" and os.kill(process.pid, number)) or really(self, process, *of)
        ),
    )
    with pytest.raises(InputError, match=rf"chat_template\.jinja: ends the process that reads texts \({said}\)"):
        load(chats, tokenizer=templated(folder, LOOP))
    monkeypatch.undo()


def test_one_process_serves_all_files(folder, chats, tmp_path):
    found = []
    for n in range(3):
        (tmp_path / f"{n}.jsonl").write_text(chats.read_text() + "\n" + chats.read_text())
        load(tmp_path / f"{n}.jsonl", tokenizer=templated(folder, UNMARKED + str(n)))
        found.append(writer_of(os.getpid())._process.pid)
    assert len(set(found)) == 1


def test_one_interrupt_ends_it(folder, chats):
    """Also a template that hears no alarm, and no process stays behind."""
    line = ["trace", "info", str(chats), "--tokenizer", str(templated(folder, LOOP))]
    run = f"from odcsim.cli import main; raise SystemExit(main({line!r}))"
    command = subprocess.Popen([sys.executable, "-c", run], stderr=subprocess.PIPE, text=True, start_new_session=True)
    deadline = time.monotonic() + 60
    while not (children := "".join(path.read_text() for path in Path(f"/proc/{command.pid}/task").glob("*/children"))):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    time.sleep(1)
    began = time.monotonic()
    os.killpg(command.pid, signal.SIGINT)
    _, told = command.communicate(timeout=60)
    assert (command.returncode, told) == (130, "odcsim: stopped\n")
    assert time.monotonic() - began < 5
    assert not any(Path(f"/proc/{child}").exists() for child in children.split())


def test_a_text_that_is_too_long_is_refused(folder, tmp_path, capsys):
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "x" * 1_600_000}))
    assert main(["trace", "info", str(tmp_path / "a.jsonl"), "--tokenizer", str(folder)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search("holds a text of 1,600,0.. characters", line)
    assert f"set {budget.VARIABLE}=8GB" in line

"""Pages: one file that needs nothing else, runs nothing it was not given to run, and shows what was compared."""

import base64
import gzip
import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
from diagnosed import diagnosis
from hypothesis import given
from hypothesis import strategies as st

from odcsim import plots
from odcsim.catalog.estimates.memory import IN_WORDS
from odcsim.decide.asking import ask
from odcsim.decide.comparison import compare, sweep_max_tokens
from odcsim.decide.decision import decide
from odcsim.decide.diagnosis.outcome import PARTS as LOST
from odcsim.decide.setting import plan
from odcsim.errors import InputError
from odcsim.executors.simulation import simulate
from odcsim.plots import NAMES
from odcsim.results import metrics
from odcsim.results.metrics import PARTS, Usage
from odcsim.say.comparison_words import parted
from odcsim.say.timeline_words import LITTLE, sentence, sentences
from odcsim.show.pages.answer_pages import write_diagnosis, write_timelines
from odcsim.show.pages.report import write_report
from odcsim.support.numbers import dollars
from odcsim.trace import Trace

EVIL = "<script>alert('x')</script>&\"'{{}}</h1>"


class Page(HTMLParser):
    """Tags with attributes in order, and the text outside scripts and styles."""

    def __init__(self, path):
        super().__init__()
        self.tags, self.words, self.inside = [], [], ""
        self.source = path.read_text(encoding="utf-8")
        self.feed(self.source)
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.inside = tag

    def handle_endtag(self, _tag):
        self.inside = ""

    def handle_data(self, data):
        if self.inside not in ("script", "style"):
            self.words.append(data)

    def all(self, tag):
        return [attrs for name, attrs in self.tags if name == tag]

    @property
    def figures(self):
        return [attrs["id"].removeprefix("figure-") for attrs in self.all("figure")]


def shown(folder, write, *given):
    write(*given[:1], folder / "p.html", *given[1:])
    return Page(folder / "p.html")


@pytest.fixture(scope="module")
def comparison(setting):
    return compare(replace(setting, minibatches=24), price=2.0, memory_limit=80e9)


@pytest.fixture(scope="module")
def page(comparison, tmp_path_factory):
    return shown(tmp_path_factory.mktemp("report"), write_report, comparison)


@pytest.fixture(scope="module")
def met(setting):
    return simulate(plan(setting, "lb-micro"), setting.cost.by(sync="collective"))


def test_nothing_is_fetched_and_every_picture_is_there(page):
    """plotly.js names addresses of maps that nobody draws; the policy keeps even those from being asked for."""
    assert [v for _, attrs in page.tags for k, v in attrs.items() if k in ("src", "href", "srcset", "data")] == []
    policy = next(m["content"] for m in page.all("meta") if m.get("http-equiv") == "Content-Security-Policy")
    assert "default-src 'none'" in policy
    assert not re.search("https?:", policy)
    assert "@import" not in page.source.split("</style>")[0]
    [packed] = re.findall(r'id="plotly-packed">([^<]*)<', page.source)
    assert gzip.decompress(base64.b64decode(packed)).count(b"plotly.js v") == 1
    assert page.figures == ["speedups", "idle", "gantt-before", "gantt-after", "lengths"]
    data = re.findall(r'<script type="application/json" data-figure="([a-z-]+)">([^<]*)</script>', page.source)
    assert [name for name, _ in data] == page.figures
    assert all(json.loads(text)["data"] for _, text in data)
    assert len(page.source) < 3e6


@pytest.mark.parametrize("memory_limit", [20e9, 30e9, 80e9])
def test_nobody_would_choose_what_is_folded(comparison, memory_limit):
    """Something of its sync that is shown is as fast or fits where it does not."""
    rows = tuple(replace(r, memory_fits=r.memory_bytes <= memory_limit) for r in comparison.rows)
    limited = replace(comparison, memory_limit=memory_limit, rows=rows)
    reply = decide(limited)
    some, folded = parted(limited, reply)
    assert {r.sync for r in some} == {r.sync for r in limited.rows}
    assert folded
    for row in folded:
        assert row not in (reply.reference, reply.rival, reply.best, reply.chosen)
        ahead = [r for r in some if r.sync == row.sync and (r.memory_fits or not row.memory_fits)]
        assert any(r.makespan_seconds <= row.makespan_seconds or not row.memory_fits for r in ahead)


def test_every_row_is_there_in_order_of_speed_and_what_is_folded_says_how_much_it_is(page, comparison):
    """Memory of those that count is told by term."""
    reply = decide(comparison)
    names = re.findall(r'<th scope="row">([a-z-]+ \+ [a-z-]+)</th>', page.source)[: len(comparison.rows)]
    some, folded = parted(comparison, reply)
    assert names == [r.name for r in (*some, *folded)]
    assert sorted(names) == sorted(row.name for row in comparison.rows)
    for part in (some, folded):
        assert part == sorted(part, key=lambda r: r.makespan_seconds)
    rows, inputs = re.findall("<details><summary>([^<]*)</summary>", page.source)
    told = page.source.split(inputs)[1].split("</details>")[0]
    assert re.findall(r"\d+", rows)[0] == str(len(folded))
    assert re.findall(r"\d+", inputs) == [str(told.count("<tr>")), str(told.count("(default)"))]
    told = page.source.split("<h2>Memory</h2>")[1].split("<h2>")[0]
    for row in (reply.reference, reply.rival, reply.best):
        assert row.name in told
        for name, size in (row.memory_terms or {}).items():
            assert not size or (IN_WORDS[name] in told and f">{size / 1e9:.1f}<" in told)


def test_the_gantt_pair_shows_a_typical_minibatch_of_today_and_of_what_to_run(page, comparison):
    reply = decide(comparison)
    pair = [(row.balancer, row.sync) for row in (reply.reference, reply.chosen)]
    told = r"minibatch (\d+)\. Its idle time \((\d+)% and (\d+)%\) is closest to that of all 24 \((\d+)% and (\d+)%\)"
    number, *shares = map(int, re.search(told, page.text).groups())
    usages = [comparison.usage(*key) for key in pair]
    drawn = [100 * metrics.usage(comparison.timeline(*key, number)).idle() for key in pair]
    assert shares == pytest.approx([*drawn, *(100 * usage.idle() for usage in usages)], abs=0.51)
    assert number == comparison.typical(*pair)
    spent = [usage.makespan[number] for usage in usages]
    for words in (f"{spent[0] / spent[1]:.2f} times", *(f"{seconds:.3g} s" for seconds in spent)):
        assert words in page.text


def test_a_sweep_is_drawn_and_tells_seconds_dollars_and_what_does_not_fit(setting, comparison, tmp_path):
    swept = sweep_max_tokens(replace(setting, minibatches=2), (65536, 131072), price=2.0, memory_limit=20e9)
    page = shown(tmp_path, write_report, comparison, swept)
    assert "sweep" in page.figures
    for limit, one in swept:
        chosen = decide(one).chosen
        name, rest = f"{limit:,} {chosen.name}", f"{chosen.speedup:.2f} {chosen.makespan_seconds:,.1f}"
        assert f"{name} {rest}" in page.text
        assert f" {dollars(chosen.dollars)} " in page.text
    assert " > 20 GB " in page.text


@pytest.mark.parametrize("minibatch", [1, 4])
def test_there_is_an_answer_where_today_is_best_and_where_nothing_fits(minibatch, tmp_path):
    asked = ask("longalign", "r1-distill-qwen-1.5b", gpu="a100", devices=4, minibatch=minibatch, minibatches=6)
    found = compare(asked, memory_limit=80e9 if minibatch == 1 else 20e9)
    page, reply = shown(tmp_path, write_report, found), decide(found)
    assert (minibatch > 1) or (reply.chosen is reply.reference and not reply.pays)
    assert ('class="answer no"' in page.source) == (not reply.pays)
    assert page.figures[2:4] == ["gantt-before", "gantt-after"]


def test_names_cannot_run(timeline, tmp_path):
    trace = Trace(EVIL, np.random.default_rng(0).integers(100, 9000, 64), origin=EVIL)
    asked = ask(trace, "r1-distill-qwen-1.5b", gpu="a100", devices=2, minibatch=2, minibatches=3)
    texts = ("executor", "balancer", "model", "digest", "fidelity", "hardware", "trace")
    line = replace(timeline, about=replace(timeline.about, **dict.fromkeys(texts, EVIL)))
    told = diagnosis()
    for write, of in (
        (write_report, compare(asked)),
        (write_timelines, [line]),
        (write_diagnosis, replace(told, run=replace(told.run, source=EVIL))),
    ):
        page = shown(tmp_path, write, of)
        assert "<script>alert" not in page.source
        assert " ".join(EVIL.split()) in page.text
        assert len(page.all("h1")) == 1
        with pytest.raises(InputError):
            write(of, tmp_path / "no" / "r.html")


def sentences_of(timelines):
    return sentences(timelines, [metrics.usage(one) for one in timelines])


def test_timelines_beside_each_other_are_compared_the_fastest_first(timeline, met, tmp_path):
    page, alike = (shown(tmp_path, write_timelines, both) for both in ([timeline, met], [timeline, timeline]))
    makespans = metrics.usage(timeline).makespan
    number = int(np.argsort(makespans)[(len(makespans) - 1) // 2])
    assert page.text.count(f"minibatch {number},") == 2
    assert page.figures == ["gantt-0", "gantt-1"]
    assert all(f"{metrics.usage(one).idle():.1%}" in page.text for one in (timeline, met))
    assert ("digests differ" in page.text, "digests differ" in alike.text) == (True, False)
    first, *each = sentences_of([met, timeline])
    assert first.startswith(f"on-demand + lb-mini is {metrics.usage(met).makespan.sum() / makespans.sum():.2f} times")
    assert [name in said for name, said in zip(("lb-micro", "lb-mini"), each, strict=True)] == [True, True]
    assert len(sentences_of([timeline, replace(met, tokens=met.tokens + 1)])) == 2
    assert [f"({n}, " in said for n, said in enumerate(sentences_of([timeline, timeline]), 1)] == [True, True]


def test_a_diagnosis_has_a_picture_of_each_thing_that_is_known(tmp_path):
    """Of steps, the one of which most is waiting."""
    told = diagnosis()
    bare = diagnosis({"compute": 1.0}, (), ranks=(), late=())
    bare = replace(bare, run=replace(bare.run, steps=tuple(replace(s, tracks=()) for s in bare.run.steps)))
    for one, figures in ((told, 4), (bare, 1)):
        page = shown(tmp_path, write_diagnosis, one)
        assert len(page.figures) == figures
        assert one.sentences()[0] in page.text
        assert not re.search(r'(?:src|href)="(?:https?:)?//', page.source)
    with pytest.raises(InputError):
        plots.worst_step(bare.run, told.found)
    for worst in (0, 4, 11):
        by_step = {name: [9.0 if at == worst and name == "lengths" else 0.1 for at in range(12)] for name in LOST}
        figure = plots.worst_step(told.run, replace(told.found, by_step=by_step))
        assert re.search(r"\d+", figure.layout.title.text)[0] == str(worst)


@given(st.floats(1, 1e6), st.lists(st.floats(0, 1e6), min_size=5, max_size=5))
def test_the_first_sentence_names_the_largest_part_of_idle_and_its_share(compute, parts):
    total = compute + sum(parts)
    one = dict(zip(PARTS, (np.array([part]) for part in parts), strict=True))
    usage = Usage(np.array([total]), np.array([compute]), **one)
    said = sentence(usage, "a + b")
    assert f"{usage.idle():.1%}" in said
    if usage.idle() >= LITTLE:
        assert f"{max(parts) / total:.1%}" in said.rpartition(",")[2]
        largest = [name for name, seconds in zip(PARTS, parts, strict=True) if seconds == max(parts)]
        assert any(NAMES[name].split(" (")[0].split(" its")[0] in said for name in largest)

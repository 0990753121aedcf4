"""The report: one file that needs nothing else, runs nothing it was not given to run, and says yes or no in words."""

import base64
import gzip
import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

from odcsim.decide import answer, answer_words
from odcsim.decide.asking import ask
from odcsim.decide.comparison import compare
from odcsim.decide.setting import plan
from odcsim.decide.sweep import sweep_max_tokens
from odcsim.errors import InputError
from odcsim.executors.simulation import Simulation, simulate
from odcsim.recipe import ASKED
from odcsim.results import metrics
from odcsim.show.pages import choice
from odcsim.show.pages.report import write_report, write_timelines
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


@pytest.fixture(scope="module")
def comparison(setting):
    return compare(replace(setting, minibatches=24), price=2.0, memory_limit=80e9)


@pytest.fixture(scope="module")
def page(comparison, tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.html"
    write_report(comparison, path)
    return Page(path)


def test_nothing_is_fetched(page):
    """plotly.js names addresses of maps that nobody draws; the policy keeps even those from being asked for."""
    addresses = [v for _, attrs in page.tags for k, v in attrs.items() if k in ("src", "href", "srcset", "data")]
    assert addresses == []
    policy = next(m["content"] for m in page.all("meta") if m.get("http-equiv") == "Content-Security-Policy")
    assert "default-src 'none'" in policy
    assert not re.search("https?:", policy)
    assert "@import" not in page.source.split("</style>")[0]


def test_plotly_is_there_once_and_every_picture_too(page):
    [packed] = re.findall(r'id="plotly-packed">([^<]*)<', page.source)
    assert gzip.decompress(base64.b64decode(packed)).count(b"plotly.js v") == 1
    figures = [attrs["id"] for attrs in page.all("figure")]
    assert figures == [f"figure-{n}" for n in ("speedups", "idle", "gantt-before", "gantt-after", "lengths")]
    data = re.findall(r'<script type="application/json" data-figure="([a-z-]+)">([^<]*)</script>', page.source)
    assert [name for name, _ in data] == [f.removeprefix("figure-") for f in figures]
    assert all(json.loads(text)["data"] for _, text in data)
    assert len(page.source) < 3e6


def test_the_answer_comes_first_and_carries_its_figures(page, comparison):
    best, reference = comparison.row("lb-robust", "on-demand"), comparison.row("lb-micro", "collective")
    before_table = page.text.split("Every balancer under every sync")[0]
    words = [f"{best.speedup:.2f} times", f"{best.speedup_low:.2f} to {best.speedup_high:.2f}", f"{best.idle:.0%}"]
    words += [f"{reference.idle:.0%}", f"{best.gpu_hours:.3g} GPU-hours", f"${best.dollars:,.2f}", "published fit"]
    words += ["on-demand + lb-robust", "collective + lb-micro", "Yes: ", "r1-distill-qwen-1.5b", "4 x a100"]
    assert [word for word in words if word not in before_table] == []


def test_the_tables_have_every_row_in_order_of_speed(page, comparison):
    """Those that the answer names and the best of each sync at once, all others folded."""
    names = re.findall(r'<th scope="row">([a-z-]+ \+ [a-z-]+)</th>', page.source)[: len(comparison.rows)]
    shown, folded = choice.parted(comparison, answer.answer(comparison))
    assert names == [answer_words.named(r) for r in (*shown, *folded)]
    assert sorted(names) == sorted(map(answer_words.named, comparison.rows))
    for some in (shown, folded):
        assert some == sorted(some, key=lambda r: r.makespan_seconds)


@pytest.mark.parametrize("memory_limit", [20e9, 30e9, 80e9])
def test_nobody_would_choose_what_is_folded(comparison, memory_limit):
    """Something of its sync that is shown is as fast or fits where it does not."""
    limited = replace(
        comparison,
        memory_limit=memory_limit,
        rows=tuple(replace(r, memory_fits=r.memory_bytes <= memory_limit) for r in comparison.rows),
    )
    reply = answer.answer(limited)
    shown, folded = choice.parted(limited, reply)
    assert {r.sync for r in shown} == {r.sync for r in limited.rows}
    assert folded
    for row in folded:
        assert row not in (reply.reference, reply.rival, reply.best, reply.chosen)
        ahead = [r for r in shown if r.sync == row.sync and (r.memory_fits or not row.memory_fits)]
        assert any(r.makespan_seconds <= row.makespan_seconds or not row.memory_fits for r in ahead)


def test_what_is_folded_says_how_much_it_is(page, comparison):
    rows, inputs = re.findall("<details><summary>([^<]*)</summary>", page.source)
    assert rows.startswith(f"{len(choice.parted(comparison, answer.answer(comparison))[1])} more rows: ")
    told = page.source.split(inputs)[1].split("</details>")[0]
    assert inputs == f"{told.count('<tr>')} inputs, of which {told.count('(default)')}are defaults"


def test_memory_of_the_rows_that_count_is_told_by_term(page, comparison):
    told = page.source.split("<h2>Memory</h2>")[1].split("<h2>")[0]
    reply = answer.answer(comparison)
    for row in (reply.reference, reply.rival, reply.best):
        assert answer_words.named(row) in told
        for name, size in (row.memory_terms or {}).items():
            assert not size or (name in told and f">{size / 1e9:.1f}<" in told)


def test_what_the_figures_rest_on_is_told(page, comparison):
    assert comparison.setting.cost.profile.origin.split(",")[0] in page.text
    assert page.text.count("shape, not data") >= 3
    profile = comparison.setting.cost.profile
    assert f"range of the cost's seconds {profile.low:.2f} to {profile.high:.2f}" in page.text


def test_what_was_chosen_is_told_from_what_is_usual(page, comparison):
    assert comparison.setting.cost.recipe.words == ""
    for name in ASKED:
        assert re.search(rf"\b{name.replace('_', ' ')}\W+\w+ \(default\)", page.text), name


def test_the_gantt_pair_shows_a_typical_minibatch_of_today_and_of_what_to_run(page, comparison):
    pair = (("lb-micro", "collective"), ("lb-robust", "on-demand"))
    told = r"minibatch (\d+)\. Its idle time \((\d+)% and (\d+)%\) is closest to that of all 24 \((\d+)% and (\d+)%\)"
    number, *shares = map(int, re.search(told, page.text).groups())
    usages = [comparison.usage(*key) for key in pair]
    shown = [100 * metrics.usage(comparison.timeline(*key, number)).idle() for key in pair]
    assert shares == pytest.approx([*shown, *(100 * usage.idle() for usage in usages)], abs=0.51)
    assert number == comparison.typical(*pair)
    spent = [comparison.usage(*key).makespan[number] for key in pair]
    assert f"The upper chart takes {spent[0] / spent[1]:.2f} times as long" in page.text
    for (balancer, sync), seconds in zip(pair, spent, strict=True):
        assert f"{sync} + {balancer}: {seconds:.3g} s" in page.text


def test_it_asks_what_somebody_would_and_answers_first(page, comparison):
    chosen = answer.answer(comparison).chosen
    heading, _, rest = page.text.partition("Would on-demand communication pay?")
    assert "How to train r1-distill-qwen-1.5b on 4 x a100" in heading
    for words in (
        f"Run {answer_words.named(chosen)}",
        "at most 65,536 tokens",
        "24 optimizer steps take",
        "Uncertainty",
    ):
        assert words in heading
    assert f"{chosen.gpu_hours:.3g} GPU-hours" in heading
    assert f"${chosen.dollars:,.2f}" in heading
    assert rest.strip().startswith("Yes: ")


def test_a_sweep_is_drawn_where_there_is_one(setting, comparison, tmp_path):
    small = replace(setting, minibatches=2)
    write_report(comparison, str(tmp_path / "r.html"), sweep_max_tokens(small, (65536, 131072)))
    page = Page(tmp_path / "r.html")
    assert "figure-sweep" in [attrs["id"] for attrs in page.all("figure")]


def test_a_sweep_tells_seconds_dollars_and_what_does_not_fit(setting, comparison, tmp_path):
    small = replace(setting, minibatches=2)
    limits = (65536, 131072)
    swept = sweep_max_tokens(small, limits, price=2.0, memory_limit=20e9)
    write_report(comparison, tmp_path / "r.html", swept)
    told = Page(tmp_path / "r.html").text.split("How many tokens should a microbatch hold?")[1].split("Memory")[0]
    for limit, one in swept:
        chosen = answer.answer(one).chosen
        assert f"{limit:,} {answer_words.named(chosen)} {chosen.speedup:.2f} {chosen.makespan_seconds:,.1f}" in told
        assert f" {dollars(chosen.dollars)} " in told
    assert " > 20 GB " in told
    assert "A GPU has 20 GB." in told


@pytest.mark.parametrize("memory_limit", [20e9, 25e9, 30e9])
def test_there_is_an_answer_whatever_fits(setting, memory_limit):
    """Also where no balanced row does."""
    limited = compare(replace(setting, max_tokens=131072, minibatches=2), memory_limit=memory_limit)
    assert answer_words.verdict(answer.answer(limited))


def test_a_report_of_today_shows_why_nothing_else(tmp_path):
    """Where what is run today is best, the pair holds it against the best row with on-demand."""
    asked = ask("longalign", "r1-distill-qwen-1.5b", gpu="a100", devices=4, minibatch=1, minibatches=20)
    write_report(compare(asked), tmp_path / "r.html")
    text = Page(tmp_path / "r.html").text
    assert "Run collective + lb-micro" in text
    assert re.search(r"on-demand \+ lb-robust: [\d.]+ s, devices idle", text)


def test_names_cannot_run(tmp_path):
    lengths = np.random.default_rng(0).integers(100, 9000, 64)
    trace = Trace(EVIL, lengths, origin=EVIL)
    asked = ask(trace, "r1-distill-qwen-1.5b", gpu="a100", devices=2, minibatch=2, minibatches=3)
    write_report(compare(asked), tmp_path / "r.html")
    page = Page(tmp_path / "r.html")
    assert "<script>alert" not in page.source
    assert page.text.count(" ".join(EVIL.split())) >= 3
    assert len(page.all("h1")) == 1


def test_timelines_cannot_run_either(timeline, tmp_path):
    texts = ("executor", "balancer", "model", "digest", "fidelity", "hardware", "trace")
    about = replace(timeline.about, **dict.fromkeys(texts, EVIL))
    write_timelines([replace(timeline, about=about)], tmp_path / "t.html")
    assert "<script>alert" not in Page(tmp_path / "t.html").source


def with_rows(comparison, **values):
    """The comparison with values of its on-demand rows replaced; makespans by a factor."""
    stretch = values.pop("stretch", 1.0)
    rows = tuple(
        replace(r, makespan_seconds=r.makespan_seconds * stretch, **values) if r.sync == "on-demand" else r
        for r in comparison.rows
    )
    return replace(comparison, rows=rows)


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"speedup": 1.0, "speedup_low": 0.98, "speedup_high": 1.03}, "No: on-demand does not pay here"),
        ({"speedup": 0.8, "speedup_low": 0.7, "speedup_high": 0.9}, "No: on-demand is slower here"),
        ({"stretch": 1.5}, "a better balancer alone gains about as much or more"),
        ({}, "Yes: "),
    ],
)
def test_yes_and_no(comparison, values, told, tmp_path):
    changed = with_rows(comparison, **values)
    found = answer.answer(changed)
    assert told in answer_words.verdict(found)
    assert found.pays == (not values)
    assert found.chosen.sync == ("collective" if values else "on-demand")
    write_report(changed, tmp_path / "r.html")
    page = Page(tmp_path / "r.html")
    assert told in page.text
    assert ('class="answer no"' in page.source) == bool(values)


def test_nothing_is_promised_at_minibatch_1():
    """One sample per device leaves nothing to balance, and the report says no."""
    asked = ask("longalign", "r1-distill-qwen-1.5b", gpu="a100", devices=4, minibatch=1, minibatches=20)
    found = answer.answer(compare(asked))
    assert answer_words.verdict(found).startswith("No: ")
    assert found.chosen is found.reference
    assert found.best.balancer == "lb-robust"


def scaled(comparison, **factors):
    """The comparison with the makespans of on-demand rows multiplied."""
    rows = tuple(
        replace(r, makespan_seconds=r.makespan_seconds * factors.get(r.balancer.replace("-", "_"), 1.0))
        if r.sync == "on-demand"
        else r
        for r in comparison.rows
    )
    return replace(comparison, rows=rows)


def test_the_robust_balancer_is_chosen_unless_another_is_clearly_ahead(comparison):
    close, far = scaled(comparison, lb_micro=0.5, lb_robust=0.5), scaled(comparison, lb_micro=0.5)
    assert answer.answer(comparison).best.balancer == "lb-robust"
    assert answer.answer(scaled(close, lb_micro=0.999)).best.balancer == "lb-robust"
    assert answer.answer(far).best.balancer == "lb-micro"


def trusted(comparison, fidelity):
    return replace(comparison, rows=tuple(replace(row, fidelity=fidelity) for row in comparison.rows))


def test_a_row_that_does_not_fit_is_called_out(comparison):
    tight = replace(comparison, memory_limit=1e9, rows=tuple(replace(r, memory_fits=False) for r in comparison.rows))
    [warning] = answer_words.misfit(tight, answer.answer(tight))
    assert "does not fit" in warning
    assert "one has 1 GB" in warning
    assert answer_words.misfit(comparison, answer.answer(comparison)) == []


@pytest.mark.parametrize("fidelity", ["calibrated", "published fit", "catalogue", "extrapolated"])
def test_every_fidelity_is_told_in_words(comparison, fidelity):
    told = " ".join(answer_words.sentences(trusted(comparison, fidelity), answer.answer(comparison)))
    assert answer_words.trust(fidelity, comparison.setting.cost.profile) in told
    assert ", 90 % interval " in told


def test_a_report_cannot_go_where_there_is_no_folder(comparison, tmp_path):
    with pytest.raises(InputError, match="its folder does not exist"):
        write_report(comparison, tmp_path / "no" / "r.html")


def test_timelines_beside_each_other(setting, timeline, tmp_path):
    other = simulate(plan(setting, "lb-micro"), Simulation(setting.cost, "collective", "analytic"))
    write_timelines([timeline, other], tmp_path / "t.html")
    page = Page(tmp_path / "t.html")
    makespans = metrics.usage(timeline).makespan
    number = int(np.argsort(makespans)[(len(makespans) - 1) // 2])
    assert page.text.count(f"minibatch {number},") == 2
    assert [attrs["id"] for attrs in page.all("figure")] == ["figure-gantt-0", "figure-gantt-1"]
    for one in (timeline, other):
        assert f"{metrics.usage(one).idle():.1%}" in page.text
    assert "their digests differ" in page.text
    assert page.text.index("is 1.") < page.text.index("Devices idle") < page.text.index("2 timelines")
    write_timelines([timeline, timeline], tmp_path / "t.html")
    assert "their digests differ" not in Page(tmp_path / "t.html").text

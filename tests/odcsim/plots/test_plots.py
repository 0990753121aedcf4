"""Pictures show what they are given: shares that add up, speedups where they belong, bars that fill a device's time."""

import json
import re
import sys
from collections import defaultdict
from dataclasses import replace
from itertools import combinations, pairwise
from types import SimpleNamespace
from xml.etree.ElementTree import fromstring

import numpy as np
import plotly.graph_objects as go
import plotly.io as pio
import pytest
from diagnosed import of_ranks, track
from hypothesis import given
from hypothesis import strategies as st
from strategies import cases

from odcsim import plots
from odcsim.decide.asking import ask
from odcsim.decide.comparison import compare
from odcsim.decide.setting import plan
from odcsim.errors import InputError
from odcsim.executors import analytic
from odcsim.executors.simulation import simulate
from odcsim.observed.run import Doing, RanStep
from odcsim.plots import diagnosis, style
from odcsim.plots.diagnosis import MOST, PIECES, choose, coarse, ran_step, worst
from odcsim.plots.gantt import MOST_DEVICES, ORDER, bars, idle
from odcsim.plots.pareto import NEAR, Priced, around, axis, beside, front, pareto, places
from odcsim.plots.rows import ceiling
from odcsim.plots.svg import LEFT, RIGHT, WIDTH, svg
from odcsim.results import metrics
from odcsim.say.timeline_words import NAMES
from odcsim.timeline import About, Block, Timeline
from odcsim.trace import Trace

COMPUTE = ("forward", "head", "backward")
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def rows(setting):
    return compare(setting).rows


def named(figure):
    return {trace.name: trace for trace in figure.data}


def test_every_kind_has_a_colour_that_is_told_apart_on_white_and_on_black():
    """WCAG asks 4.5 : 1 of text; axis text is grey, so that notebooks work on either ground. Bars get by on less."""
    assert set(style.COLOURS) == set(NAMES) > set(style.HATCHED)
    assert {*metrics.PARTS, *COMPUTE} <= set(style.COLOURS)
    pairs = {style.COLOURS[kind]: (2.2, 3) for kind in (*COMPUTE, "wait_inside", "gather", "overhead")}
    pairs[style.INK] = (4.5, 4)
    for colour, (white, black) in pairs.items():
        assert contrast(colour, "#FFFFFF") > white, colour
        assert contrast(colour, "#111111") > black, colour


def contrast(*colours):
    """https://www.w3.org/TR/WCAG21/#dfn-contrast-ratio"""
    light = []
    for colour in colours:
        shares = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [s / 12.92 if s <= 0.04045 else ((s + 0.055) / 1.055) ** 2.4 for s in shares]
        light.append(0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2])
    return (max(light) + 0.05) / (min(light) + 0.05)


def test_idle_stacks_up_to_everything_with_the_fastest_on_top(rows):
    """A sweep and its ceiling are curves in order of the limit."""
    figure = plots.idle(rows)
    total = defaultdict(float)
    for trace in figure.data:
        for row, share in zip(trace.y, trace.x, strict=True):
            total[row] += share
    assert list(total.values()) == pytest.approx([100] * len(rows), abs=0.5)
    fastest = min(rows, key=lambda r: r.makespan_seconds)
    assert fastest.balancer in figure.data[0].y[-1]
    assert f"{fastest.idle:.0%}" in figure.layout.title.text
    mini = next(r for r in rows if (r.balancer, r.sync) == ("lb-mini", "on-demand"))
    swept, room = plots.sweep([(200, rows), (100, rows)]), ceiling([(200, rows), (100, rows)], 80e9)
    for figure, expected in ((swept, mini.speedup), (room, mini.memory_bytes / 1e9)):
        curve = named(figure)["on-demand + lb-mini"]
        assert (curve.x, curve.y) == ((100, 200), (expected, expected))
    assert list(swept.layout.xaxis.ticktext) == ["100", "200"]
    assert [line.y0 for line in room.layout.shapes] == [80]
    assert not ceiling([(100, rows)], None).layout.shapes


def test_speedups_carry_their_intervals_and_the_honest_rival(rows):
    """Bars begin at 1 and go to the left where a row is slower; nothing lies on them; who compares is left out."""
    figure = plots.speedups(rows)
    *bars, diamonds = figure.data
    names = [re.sub("</?b>", "", label) for label in figure.layout.yaxis.ticktext]
    seen = {}
    for some in bars:
        for i, (label, speedup, *_) in enumerate(some.customdata):
            low, high = some.x[i] - some.error_x.arrayminus[i], some.x[i] + some.error_x.array[i]
            seen[re.sub("</?b>", "", label)] = [1 + v for v in (some.x[i], low, high)]
            assert (some.x[i] < 0) is (speedup < 1) is (some.name == "slower than it")
            assert min(abs(y - some.y[i]) for y in diamonds.y) * 27 > 0.5 * some.width * 27 + 3
    assert set(seen) == set(names)
    for row in rows:
        assert seen[f"{row.sync} + {row.balancer}"] == pytest.approx([row.speedup, row.speedup_low, row.speedup_high])
        assert diamonds.x[names.index(f"{row.sync} + {row.balancer}")] == row.speedup_best_collective
    assert figure.layout.shapes[0].x0 == 1
    best = max((r for r in rows if r.sync == "on-demand"), key=lambda r: r.speedup)
    for value in (best.speedup, best.speedup_best_collective):
        assert f"{value:.2f}" in figure.layout.title.text
    nothing = dict.fromkeys(("speedup", "speedup_low", "speedup_high", "speedup_best_collective"))
    assert not len(plots.speedups([replace(rows[0], **nothing)]).data[0].x)


@pytest.mark.parametrize("counts", [None, [1, 2, 3, 0, 1]])
def test_lengths_count_every_sample_once(counts):
    """Marks that fall together are named once."""
    lengths = np.array([3, 10, 10, 500, 70_000])
    figure = plots.lengths(Trace("t", lengths, None if counts is None else np.array(counts)))
    curves = named(figure)
    assert sum(figure.data[0].y[:-1]) == pytest.approx(100)
    assert curves["share of samples"].y[-1] == 100
    assert curves["share of tokens"].y[-1] == pytest.approx(100)
    weights = np.ones(5) if counts is None else np.array(counts)
    under = curves["share of tokens"].y[list(curves["share of tokens"].x).index(10)]
    assert under == pytest.approx(100 * (weights @ (lengths * (lengths <= 10))) / (weights @ lengths))
    assert [a.text.split()[0] for a in figure.layout.annotations] == ["median", "p99", "longest"]
    for few in ([10, 20, 99, 99, 99], [1], [7], [2**31 - 1]):
        figure = plots.lengths(Trace("<b>x</b>", np.array(few), origin="<i>y</i>"))
        assert len(few) == 1 or [a.text.split()[0] for a in figure.layout.annotations] == ["longest"]
        assert np.isfinite(figure.layout.xaxis.range).all()
        title = figure.layout.title
        assert not re.search("<[bi]>", title.text + title.subtitle.text)  # names are only words


@given(cases())
def test_bars_fill_a_devices_time_and_lie_beside_each_other(case):
    """One for each pass of a microbatch."""
    times = analytic.run(case.program, case.durations)
    block = Block(case.program, np.arange(case.counts.shape[0]), case.counts, *times)
    usage = metrics.measure(block)
    for place, makespan in enumerate(usage.makespan):
        computed = 0.0
        for device, count in enumerate(case.counts[place]):
            mine, now = bars(block, place, device), 0.0
            for bar in mine:
                assert bar.start == pytest.approx(now, abs=1e-9)
                now = bar.start + bar.seconds
            assert now == pytest.approx(makespan, abs=1e-9)
            passes = [bar for bar in mine if bar.kind in COMPUTE]
            computed += sum(bar.seconds for bar in passes)
            assert len({(bar.microbatch, bar.kind) for bar in passes}) == len(passes)
            assert {bar.microbatch for bar in passes} <= set(range(count))
        assert computed == pytest.approx(usage.compute[place], abs=1e-9)
        if makespan:
            assert idle(block, place) == pytest.approx(1 - computed / makespan / (device + 1), abs=1e-9)


def test_gantt_of_two_timelines_on_one_scale(timeline):
    figures = [plots.gantt(timeline, m, until=99) for m in (0, 1)]
    assert figures[0].layout.xaxis.range == figures[1].layout.xaxis.range
    assert {y for trace in figures[0].data for y in trace.y} == {f"device {d}" for d in range(4)}
    assert "41" in plots.gantt(timeline, 0, number=41).layout.title.subtitle.text
    figure = plots.pair(timeline, timeline, 1, number=41)
    assert {bars.yaxis for bars in figure.data} == {"y", "y2"}
    assert figure.layout.xaxis.range == figure.layout.xaxis2.range
    names = [bars.name for bars in figure.data if bars.showlegend]
    assert sorted(names) == sorted({bars.name for bars in figure.data})
    assert "1.00 times" in figure.layout.title.text
    for look in (one.layout.template.layout for one in (*figures, figure)):  # white lines would show on a dark page
        assert (look.xaxis.gridcolor, look.yaxis.gridcolor, look.yaxis.zeroline) == (style.GRID, style.GRID, False)


def drawn_looks(figure):
    """How bars are filled, with the words that the legend has for each."""
    looks = defaultdict(set)
    named = {trace.name for trace in figure.data if trace.type == "bar" and trace.showlegend is not False}
    for trace in figure.data:
        if trace.type == "bar":
            assert trace.name in named, "a bar that no legend names"
            looks[trace.marker.color, trace.marker.pattern.shape].add(trace.name)
    return looks


def test_every_colour_and_pattern_has_words_of_its_own_beside_it(both, rows):
    assert len({(style.COLOURS[kind], style.HATCHED.get(kind)) for kind in ORDER}) == len(ORDER)
    for figure in (plots.gantt(both[0], 0), plots.gantt(both[1], 1), plots.pair(*both, 1), plots.idle(rows)):
        looks = drawn_looks(figure)
        assert all(len(names) == 1 for names in looks.values())
        hatched = any(pattern for _, pattern in looks)
        assert (style.WAITING in figure.layout.title.subtitle.text) == hatched
    for one in ([both[0]], [both[1]], both):
        root = fromstring(svg(one, 1))
        fills = {path.get("fill") for path in root.findall(f"{SVG}path")}
        boxes = [box.get("fill") for box in root.findall(f"{SVG}rect")]
        words = [text.text for text in root.findall(f"{SVG}text")]
        assert len(boxes) == len(set(boxes)) == len(fills)
        assert fills == set(boxes)
        assert any(style.WAITING in text for text in words) == any(fill.startswith("url") for fill in fills)
        assert words[-len(boxes) :] == [NAMES[kind] for kind in ORDER if NAMES[kind] in words]


def test_gantt_of_many_devices_says_what_is_left_out_and_keeps_the_busiest_and_the_idlest(timeline):
    block, place = timeline.block_of(0)
    many = 200
    wide = [np.repeat(times[:, [place]], many // 4, axis=2) for times in (block.asked, block.had)]
    compute = [i for i, step in enumerate(block.program.steps) if step.kind == "compute"]
    wide[0][compute, 0, 117] = wide[1][compute, 0, 117]  # this one does nothing
    counts = np.repeat(block.counts[[place]], many // 4, axis=1)
    values = {name: getattr(timeline.about, name) for name in About.__slots__} | {"devices": many}
    one = np.array([1])
    figure = plots.gantt(Timeline(About(**values), (Block(block.program, np.array([0]), counts, *wide),), one, one), 0)
    shown = {y for trace in figure.data for y in trace.y}
    assert 4 <= len(shown) <= MOST_DEVICES
    assert "device 117" in shown
    assert f"{len(shown)} of {many}" in figure.layout.title.subtitle.text


def test_agreement_has_a_dot_for_each_minibatch_and_the_line_of_no_error():
    figure = plots.agreement([1.0, 2.0, 4.0], [1.0, 2.5, 4.0], [0.1, 0.2, 0.1])
    dots, line = named(figure)["minibatches"], named(figure)["the same"]
    assert (list(dots.x), list(dots.y)) == ([1.0, 2.5, 4.0], [1.0, 2.0, 4.0])
    assert list(line.x) == list(line.y)
    assert line.x[0] < 1 < 4 < line.x[1]
    assert dots.customdata[1][1] == pytest.approx(-20)
    assert list(dots.error_x.array) == pytest.approx([0.05, 0.25, 0.2])
    assert named(plots.agreement([1.0], [2.0]))["minibatches"].error_x.array is None


@pytest.fixture(scope="module")
def both(setting, timeline):
    return [simulate(plan(setting, "lb-micro"), setting.cost.by(sync="collective")), timeline]


def test_bars_of_the_small_picture_are_as_wide_as_their_seconds(both):
    """On the scale of the longer minibatch."""
    wide, expected = defaultdict(float), defaultdict(float)
    for path in fromstring(svg(both, 1)).findall(f"{SVG}path"):
        for begin, end in re.findall(r"M([\d.]+) \d+H([\d.]+)", path.get("d")):
            assert LEFT <= float(begin) <= float(end) <= WIDTH - RIGHT + 0.1
            wide[path.get("fill")] += float(end) - float(begin)
    blocks = [t.block_of(1) for t in both]
    longest = max(block.had[:, place].max() for block, place in blocks)
    for block, place in blocks:
        for device in range(block.had.shape[2]):
            for bar in bars(block, place, device):
                fill = f"url(#{bar.kind})" if bar.kind in style.HATCHED else style.COLOURS[bar.kind]
                expected[fill] += bar.seconds * (WIDTH - LEFT - RIGHT) / longest
    assert {"url(#wait_inside)", style.COLOURS["forward"]} <= set(wide)
    for fill in wide:
        assert wide[fill] == pytest.approx(expected[fill], abs=8)


def test_the_small_picture_is_read_aloud_in_the_dark_and_runs_nothing(both, timeline):
    evil = replace(timeline, about=replace(timeline.about, balancer="<script>alert(1)</script>&\"'"))
    for text in (svg(both, 1), svg([evil], 0)):
        root = fromstring(text)
        assert root.get("role") == "img"
        assert "prefers-color-scheme: dark" in root.find(f"{SVG}style").text
        assert not re.search(r"<script|href=|\son\w+=|<foreignObject", text)
    assert "<script>alert(1)</script>" in root.find(f"{SVG}title").text
    assert svg(both, 1) == svg(both, 1)
    setting = ask("longalign", "qwen3-8b", gpu="h100", devices=128, minibatch=4, minibatches=1)
    text = svg([simulate(plan(setting, "native"), setting.cost.by(sync="collective"))] * 2, 0)
    assert len(text) < 200_000
    assert "16 of 128" in text


VALUES = st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=12)


@given(VALUES, st.none() | st.floats(1e-6, 1e9))
def test_an_axis_holds_all_that_lies_on_it_and_at_least_two_ticks(values, mark):
    """And a mark where it is near."""
    made = axis(values, mark)
    assert all(0 < made.at(value) < 1 for value in values)
    assert (made.at(made.low), made.at(made.high)) == pytest.approx((0, 1), abs=1e-9)
    assert len({*made.shown()["ticktext"]}) == len(made.ticks) >= 2
    assert all(made.holds(tick) or tick == pytest.approx(made.high) for tick in made.ticks)
    near = mark is not None and min(values) / NEAR <= mark <= max(values) * NEAR
    assert made.holds(mark) if near else made == axis(values)
    even = axis([0.0, *values])
    assert even.shown()["type"] == "linear"
    assert all(0 <= even.at(value) < 1 for value in values)


ROOM = (620.0, 360.0)
POINT = st.tuples(st.floats(0, ROOM[0]), st.floats(0, ROOM[1]))


@given(st.lists(st.tuples(POINT, st.text("8x h100", min_size=1, max_size=12)), min_size=1, max_size=20))
def test_no_name_covers_another_a_point_or_the_end_of_the_picture(some):
    points, names = [point for point, _ in some], [name for _, name in some]
    found = places(points, names, ROOM)
    boxes = [beside(*p, name, place) for p, name, place in zip(points, names, found, strict=True) if place]
    assert not any(one.over(other) for one, other in combinations(boxes, 2))
    assert all(box.left >= 0 and box.right <= ROOM[0] and box.bottom >= 0 and box.top <= ROOM[1] for box in boxes)
    for point, name, place in zip(points, names, found, strict=True):
        others = [other for other in points if other is not point]
        assert not place or not any(beside(*point, name, place).over(around(*other)) for other in others)
    assert places([(300, 200)], ["8 x h100"], ROOM) == ["top right"]
    assert places([(610, 200)], ["8 x h100"], ROOM) == ["top left"]


PRICED = st.lists(st.builds(Priced, st.just("p"), *[st.integers(1, 9)] * 2, st.just(0.9), st.just(1.1)), min_size=1)


@given(PRICED)
def test_nothing_beats_the_front_and_the_front_beats_the_rest(points):
    best = front(points)
    for point in best:
        assert not any(p.seconds <= point.seconds and p.spent < point.spent for p in points)
        assert not any(p.seconds < point.seconds and p.spent <= point.spent for p in points)
    for point in points:
        assert any(p.seconds <= point.seconds and p.spent <= point.spent for p in best)


def offers(deadline, budget, *spent):
    """Two offers of two hours and two and a half."""
    points = [Priced("8 x a", 7200, spent[0], 0.9, 1.2, taken=True), Priced("9 x b", 9000, spent[1], 0.9, 1.2)]
    return pareto(points, "dollars", deadline=deadline, budget=budget)


def test_an_advices_picture_has_every_offer_and_both_ends():
    """Offers take most of it, whatever deadline and budget are."""
    drawn = offers(10_800, 60, 40, 50)
    marks = [trace for trace in drawn.data if trace.mode == "markers+text"]
    assert [list(trace.x) for trace in marks] == [[2.0], [2.5]]
    assert marks[0].error_y.array[0] == pytest.approx(8)
    assert (set(named(drawn)["deadline"].x), set(named(drawn)["budget"].y)) == ({3.0}, {60})
    near, far, free = offers(None, None, 40, 50), offers(360_000, 9_000, 40, 50), offers(None, None, 0, 0)
    assert far.layout.xaxis.range == near.layout.xaxis.range
    assert far.layout.yaxis.range == near.layout.yaxis.range
    assert set(named(far)) == set(named(near))
    assert (free.layout.yaxis.type, free.layout.xaxis.type) == ("linear", "log")


def made(pieces, begin=0.0):
    edges = begin + np.concatenate([[0.0], np.cumsum([seconds for _, seconds in pieces])])
    return track(0, [kind for kind, _ in pieces], edges.tolist())


KINDS = st.lists(st.tuples(st.sampled_from([*map(int, Doing)]), st.floats(1e-6, 10)), min_size=1, max_size=60)


@given(KINDS, st.integers(1, 300), st.floats(0, 100))
def test_stretches_of_a_ran_step_cover_it_with_as_much_of_each_kind_as_the_track(pieces, slots, begin):
    one = made(pieces, begin)
    stretches = list(coarse(one, begin / 2, slots))  # seconds are told from there
    assert (stretches[0].begin, stretches[-1].end) == (one.edges[0] - begin / 2, one.edges[-1] - begin / 2)
    assert all(a.end == b.begin and a.doing != b.doing for a, b in pairwise(stretches))
    assert len(stretches) <= slots
    told, known = (dict.fromkeys(map(int, Doing), 0.0) for _ in range(2))
    for stretch in coarse(one, begin, 20_000):
        told[stretch.doing] += stretch.end - stretch.begin
    for kind, seconds in pieces:
        known[kind] += seconds
    assert told == pytest.approx(known, abs=one.seconds / 20_000 * (len(pieces) + 1))


def test_a_step_of_many_ranks_is_a_few_hundred_bars_of_both_ends():
    rng = np.random.default_rng(0)
    busy = [list(zip(rng.integers(0, 8, 5000).tolist(), rng.random(5000), strict=True)) for _ in range(128)]
    figure = ran_step(RanStep(3, 1.0, (), tuple(map(made, busy))))
    assert sum(len(bars.y) for bars in figure.data) <= max(PIECES, 24 * MOST)
    assert f"{MOST} of 128" in figure.layout.title.subtitle.text
    tracks = [track(r, [int(Doing.COMPUTE), int(Doing.MEETING)], [0.0, 1.0 + r, 200.0]) for r in range(128)]
    picked = {one.rank for one in choose(tracks)}
    assert {0, 127} <= picked
    assert len(picked) == MOST


def test_bars_are_shares_of_a_rank_and_of_a_step():
    told = of_ranks(4)
    figure = diagnosis.ranks(told.found)
    assert [*named(figure)["waiting"].x] == [40, 40, 40, 0]
    assert all(sum(bars.x[n] for bars in figure.data) == 100 for n in range(4))
    figure = diagnosis.parts(told.found)
    assert abs(sum(bars.x[0] for bars in figure.data) - 100) < 1
    assert figure.layout.title.text.startswith("37 %")
    none = replace(told.run, steps=tuple(replace(step, seconds=0.0) for step in told.run.steps))
    assert worst(none, told.found) is None
    assert worst(told.run, told.found) is not None


# Figures in a notebook have a form for every viewer, and sliders leave a picture.
@pytest.fixture
def displayed(monkeypatch):
    """What was displayed, and updated."""
    display, shown = pytest.importorskip("IPython.display"), []
    handle = SimpleNamespace(update=lambda content, **_: shown.append(content))
    monkeypatch.setattr(display, "display", lambda *contents, **_: shown.extend(contents) or handle)
    monkeypatch.setattr(pio.renderers, "default", pio.renderers.default)
    return shown


def high(height):
    return go.Figure(go.Bar(y=[height])).update_layout(title={"text": f"<b>{height}</b> & high"})


def test_a_figure_has_plotlys_form_and_html_that_needs_the_page_alone(displayed):
    plots.notebook()
    assert 'id="plotly-packed"' in displayed[0].data
    bundle = high(3)._repr_mimebundle_()
    assert bundle["application/vnd.plotly.v1+json"]["data"][0]["y"] == [3]
    html = bundle["text/html"]
    assert 'aria-label="3 &amp; high"' in html
    name, text = re.search(r'data-figure="([\w-]+)">([^<]*)</script>', html).groups()
    assert json.loads(text)["data"][0]["y"] == [3]
    assert f'id="{name}"' in html
    assert "src=" not in html
    assert f'id="{name}"' not in high(3)._repr_mimebundle_()["text/html"]  # each has a name of its own


def test_a_slider_moves_the_picture(displayed):
    pytest.importorskip("ipywidgets")
    plots.notebook()
    plots.slide(high, height=(2, 1, 3))
    slider, first = displayed[1:]
    assert (list(slider.options), slider.value) == ([1, 2, 3], 2)
    slider.value = 3
    assert [shown["application/vnd.plotly.v1+json"]["data"][0]["y"] for shown in (first, displayed[-1])] == [[2], [3]]


def test_without_what_sliders_and_images_need(displayed, monkeypatch):
    """The picture stays; images are refused."""
    monkeypatch.setattr(sys.modules["odcsim.plots.html"], "find_spec", lambda _: None)
    plots.notebook()
    plots.slide(high, height=(2, 1, 3))
    assert len(displayed) == 2
    with pytest.raises(InputError):
        plots.notebook(image=True)

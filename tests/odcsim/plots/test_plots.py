"""Pictures show what they are given: shares that add up, speedups where they belong, bars that fill a device's time."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from strategies import cases

from odcsim import plots
from odcsim.decide.comparison import compare
from odcsim.executors import analytic
from odcsim.plots.gantt import MOST_DEVICES, bars, idle
from odcsim.plots.rows import ceiling
from odcsim.plots.style import COLOURS, GRID, HATCHED, INK, NAMES
from odcsim.results import metrics
from odcsim.timeline import About, Block, Timeline
from odcsim.trace import Trace

COMPUTE = ("forward", "head", "backward")


@pytest.fixture(scope="module")
def rows(setting):
    return compare(setting).rows


def named(figure):
    return {trace.name: trace for trace in figure.data}


def test_every_shown_kind_has_a_colour_and_a_name():
    assert set(COLOURS) == set(NAMES)
    assert {*metrics.PARTS, *COMPUTE} <= set(COLOURS)
    assert set(HATCHED) < set(COLOURS)


def test_inks_are_told_apart_on_white_and_on_black():
    """WCAG asks 4.5 : 1 of text; axis text is grey, so that notebooks work on either ground. Bars get by on less."""
    assert contrast(INK, "#FFFFFF") > 4.5
    assert contrast(INK, "#111111") > 4
    for kind in (*COMPUTE, "wait_inside", "gather", "overhead"):
        assert contrast(COLOURS[kind], "#FFFFFF") > 2.2, kind
        assert contrast(COLOURS[kind], "#111111") > 3, kind


def contrast(one, other):
    """https://www.w3.org/TR/WCAG21/#dfn-contrast-ratio"""
    light = []
    for colour in (one, other):
        shares = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [s / 12.92 if s <= 0.04045 else ((s + 0.055) / 1.055) ** 2.4 for s in shares]
        light.append(0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2])
    return (max(light) + 0.05) / (min(light) + 0.05)


def test_idle_stacks_up_to_everything_with_the_fastest_on_top(rows):
    figure = plots.idle(rows)
    total = {}
    for trace in figure.data:
        for row, share in zip(trace.y, trace.x, strict=True):
            total[row] = total.get(row, 0) + share
    assert len(total) == len(rows)
    assert all(share == pytest.approx(100, abs=0.5) for share in total.values())
    fastest = min(rows, key=lambda r: r.makespan_seconds)
    assert fastest.balancer in figure.data[0].y[-1]
    assert f"{fastest.idle:.0%}" in figure.layout.title.text


def test_idle_says_so_where_nothing_is_faster(rows):
    slow = [r for r in rows if (r.balancer, r.sync) == ("lb-micro", "collective") or r.balancer == "native"]
    assert plots.idle(slow).layout.title.text.endswith("no row is faster")


def test_idle_of_rows_without_the_reference_asks_a_question(rows):
    assert plots.idle([r for r in rows if r.balancer == "native"]).layout.title.text.endswith("?")


def test_speedups_carry_their_intervals_and_the_honest_rival(rows):
    """Bars begin at 1 and go to the left where a row is slower; nothing lies on them."""
    figure = plots.speedups(rows)
    *bars, diamonds = figure.data
    names = [label.replace("<b>", "").replace("</b>", "") for label in figure.layout.yaxis.ticktext]
    seen = {}
    for some in bars:
        for i, (label, speedup, *_) in enumerate(some.customdata):
            low, high = some.x[i] - some.error_x.arrayminus[i], some.x[i] + some.error_x.array[i]
            seen[label.replace("<b>", "").replace("</b>", "")] = [1 + v for v in (some.x[i], low, high)]
            assert (some.x[i] < 0) is (speedup < 1) is (some.name == "slower than it")
            assert min(abs(y - some.y[i]) for y in diamonds.y) * 27 > 0.5 * some.width * 27 + 3
    assert set(seen) == set(names)
    for row in rows:
        assert seen[f"{row.sync} + {row.balancer}"] == pytest.approx([row.speedup, row.speedup_low, row.speedup_high])
        assert diamonds.x[names.index(f"{row.sync} + {row.balancer}")] == row.speedup_best_collective
    assert figure.layout.shapes[0].x0 == 1
    best = max((r for r in rows if r.sync == "on-demand"), key=lambda r: r.speedup)
    assert f"{best.speedup:.2f}" in figure.layout.title.text
    assert f"{best.speedup_best_collective:.2f}" in figure.layout.title.text


def test_rows_that_compare_with_nothing_are_left_out_of_speedups(rows):
    alone = [replace(rows[0], speedup=None, speedup_low=None, speedup_high=None, speedup_best_collective=None)]
    figure = plots.speedups(alone)
    assert not len(figure.data[0].x)
    assert figure.layout.title.text.endswith("?")


def test_sweep_draws_a_curve_in_order_of_the_limit(rows):
    figure = plots.sweep([(200, rows), (100, rows)])
    mini = named(figure)["on-demand + lb-mini"]
    expected = next(r.speedup for r in rows if (r.balancer, r.sync) == ("lb-mini", "on-demand"))
    assert mini.x == (100, 200)
    assert mini.y == (expected, expected)
    assert list(figure.layout.xaxis.ticktext) == ["100", "200"]


def test_the_ceiling_is_drawn_where_it_is_known(rows):
    figure = ceiling([(200, rows), (100, rows)], 80e9)
    mini = named(figure)["on-demand + lb-mini"]
    needed = next(r.memory_bytes for r in rows if (r.balancer, r.sync) == ("lb-mini", "on-demand"))
    assert mini.x == (100, 200)
    assert mini.y == (needed / 1e9, needed / 1e9)
    assert [line.y0 for line in figure.layout.shapes] == [80]
    assert not ceiling([(100, rows)], None).layout.shapes


@pytest.mark.parametrize("counts", [None, [1, 2, 3, 0, 1]])
def test_lengths_count_every_sample_once(counts):
    lengths = np.array([3, 10, 10, 500, 70_000])
    trace = Trace("t", lengths, None if counts is None else np.array(counts))
    figure = plots.lengths(trace)
    shape = figure.data[0]
    assert sum(shape.y[:-1]) == pytest.approx(100)
    curves = named(figure)
    assert curves["share of samples"].y[-1] == 100
    assert curves["share of tokens"].y[-1] == pytest.approx(100)
    weights = np.ones(5) if counts is None else np.array(counts)
    under = curves["share of tokens"].y[list(curves["share of tokens"].x).index(10)]
    assert under == pytest.approx(100 * (weights @ (lengths * (lengths <= 10))) / (weights @ lengths))
    assert [a.text.split()[0] for a in figure.layout.annotations] == ["median", "p99", "longest"]


def test_marks_that_fall_together_are_named_once():
    figure = plots.lengths(Trace("capped", np.array([10, 20, 99, 99, 99])))
    assert [a.text.split()[0] for a in figure.layout.annotations] == ["longest"]


@pytest.mark.parametrize("length", [1, 7, 2**31 - 1])
def test_lengths_of_one_sample(length):
    figure = plots.lengths(Trace("one", np.array([length])))
    assert np.isfinite(figure.layout.xaxis.range).all()


def test_names_are_escaped():
    title = plots.lengths(Trace("<b>x</b>", np.array([5, 6]), origin="<i>y</i>")).layout.title
    assert "<b>" not in title.text
    assert "<i>" not in title.subtitle.text


@given(cases())
def test_bars_fill_a_devices_time_and_lie_beside_each_other(case):
    times = analytic.run(case.program, case.durations)
    block = Block(case.program, np.arange(case.counts.shape[0]), case.counts, *times)
    usage = metrics.measure(block)
    for place, makespan in enumerate(usage.makespan):
        found = [bars(block, place, device) for device in range(case.counts.shape[1])]
        for mine in found:
            now = 0.0
            for bar in mine:
                assert bar.start == pytest.approx(now, abs=1e-9)
                now = bar.start + bar.seconds
            assert now == pytest.approx(makespan, abs=1e-9)
        computed = sum(bar.seconds for mine in found for bar in mine if bar.kind in COMPUTE)
        assert computed == pytest.approx(usage.compute[place], abs=1e-9)
        if makespan:
            assert idle(block, place) == pytest.approx(1 - computed / makespan / len(found), abs=1e-9)


def test_one_bar_for_each_pass_of_a_microbatch(timeline):
    block, place = timeline.block_of(1)
    for device in range(timeline.about.devices):
        mine = [(bar.microbatch, bar.kind) for bar in bars(block, place, device) if bar.kind in COMPUTE]
        assert len(mine) == len(set(mine))
        assert {m for m, _ in mine} == set(range(block.counts[place, device]))


def test_gantt_of_two_timelines_on_one_scale(timeline):
    figures = [plots.gantt(timeline, m, until=99) for m in (0, 1)]
    assert figures[0].layout.xaxis.range == figures[1].layout.xaxis.range
    assert {y for trace in figures[0].data for y in trace.y} == {f"device {d}" for d in range(4)}
    assert "minibatch 0" in figures[0].layout.title.subtitle.text
    assert "minibatch 41" in plots.gantt(timeline, 0, number=41).layout.title.subtitle.text


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
    assert f"{len(shown)} of {many} devices are drawn" in figure.layout.title.subtitle.text


def test_agreement_has_a_dot_for_each_minibatch_and_the_line_of_no_error():
    figure = plots.agreement([1.0, 2.0, 4.0], [1.0, 2.5, 4.0], [0.1, 0.2, 0.1])
    dots, line = named(figure)["minibatches"], named(figure)["the same"]
    assert (list(dots.x), list(dots.y)) == ([1.0, 2.5, 4.0], [1.0, 2.0, 4.0])
    assert list(line.x) == list(line.y)
    assert line.x[0] < 1 < 4 < line.x[1]
    assert dots.customdata[1][1] == pytest.approx(-20)
    assert list(dots.error_x.array) == pytest.approx([0.05, 0.25, 0.2])
    assert named(plots.agreement([1.0], [2.0]))["minibatches"].error_x.array is None


def test_a_pair_has_both_on_one_scale_and_each_kind_once_in_the_legend(timeline):
    figure = plots.pair(timeline, timeline, 1, number=41)
    assert {bars.yaxis for bars in figure.data} == {"y", "y2"}
    assert figure.layout.xaxis.range == figure.layout.xaxis2.range
    named = [bars.name for bars in figure.data if bars.showlegend]
    assert sorted(named) == sorted({bars.name for bars in figure.data})
    assert "1.00 times as fast" in figure.layout.title.text
    assert "minibatch 41" in figure.layout.title.subtitle.text


def test_no_axis_has_a_grid_of_another_look(timeline, rows):
    """Panels that were added later, too: white lines would show on a dark page."""
    trace = Trace("x", np.array([10, 20, 30]))
    figures = [plots.pair(timeline, timeline), plots.lengths(trace), plots.idle(rows), plots.sweep([(9, rows)])]
    for figure in figures:
        look = figure.layout.template.layout
        assert (look.xaxis.gridcolor, look.yaxis.gridcolor, look.yaxis.zeroline) == (GRID, GRID, False)

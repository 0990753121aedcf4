"""What readers make of a run with a shared queue: validation, traces, charts and reports."""

import re
from dataclasses import replace

import numpy as np
import pytest

from odcsim import plots, timeline
from odcsim.cli import main
from odcsim.decide.setting import plan
from odcsim.executors.simulation import Simulation, simulate
from odcsim.plots.gantt import bars
from odcsim.results.validation import validate
from odcsim.show.pages import perfetto, validation_page
from odcsim.show.pages.report import write_timelines


@pytest.fixture(scope="module")
def pooled(setting):
    return plan(setting, "pool")


@pytest.fixture(scope="module")
def line(setting, pooled):
    return simulate(pooled, Simulation(setting.cost, "on-demand", "des"))


def relabelled(line):
    """Devices under other numbers: the same run, had others been a moment earlier."""
    blocks = []
    for block in line.blocks:
        order = np.roll(np.arange(block.counts.shape[1]), 1)  # device d is now what order[d] was
        places = np.argsort(order)
        takers = None if block.takers is None else np.where(block.takers < 0, -1, places[block.takers])
        counts, asked, had = block.counts[:, order], block.asked[:, :, order], block.had[:, :, order]
        blocks.append(replace(block, counts=counts, asked=asked, had=had, takers=takers))
    return replace(line, blocks=tuple(blocks))


def test_a_prediction_of_itself_has_no_errors(line, pooled):
    found = validate(line, [line, line])
    assert (found.makespan.worst, found.finish.worst, found.idle_error) == (0, 0, 0)
    assert (found.queued, found.same_taker) == (sum(len(s.queue) for s in pooled.schedules), 1.0)


def test_who_took_an_entry_is_no_error_and_is_told(line):
    """What devices run in the end is chance where they share a queue, and the plan where they share none."""
    found = validate(line, [line, relabelled(line)])
    assert (found.makespan.worst, found.finish.worst, found.idle_error) == (0, 0, pytest.approx(0, abs=1e-9))
    assert found.same_taker == 0.5
    assert found.as_json()["queue_same_taker"] == 0.5
    [told] = validation_page.queues(found)
    assert told.startswith(f"queues: 50% of {found.queued} entries were run by the predicted device")


def test_without_a_queue_devices_are_compared_one_by_one(timeline):
    found = validate(timeline, [relabelled(timeline)])
    assert found.makespan.worst == 0
    assert found.finish.worst > 0.01
    assert (found.queued, found.same_taker, validation_page.queues(found)) == (0, None, [])


def test_a_run_of_another_assignment_compares_by_the_command(setting, pooled, line, tmp_path, capsys):
    slow = replace(setting.cost, cluster=replace(setting.cost.cluster, slow=((0, 1.3),)))
    other = simulate(pooled, Simulation(slow, "on-demand", "des"))
    for name, each in (("p", line), ("m", other)):
        timeline.write(each, tmp_path / f"{name}.npz")
    assert main(["validate", str(tmp_path / "p.npz"), str(tmp_path / "m.npz")]) in (0, None)
    assert re.search(r"^queues: \d+% of \d+ entries were run by the predicted device", capsys.readouterr().out, re.M)
    assert validate(line, [other]).same_taker < 1
    page = tmp_path / "page.html"
    validation_page.write_validation(validate(line, [other]), page)
    assert "entries were run by the predicted device" in page.read_text()


def test_a_trace_shows_entries_where_their_taker_ran_them(line, pooled):
    for number, schedule in enumerate(pooled.schedules):
        block, place = line.block_of(number)
        events = [e for e in perfetto.events(line, [number]) if e.get("cat") == "queue entry"]
        shown = {(e["pid"], *map(int, re.findall(r"\d+", e["name"]))): e for e in events}
        takers = block.takers[place, : len(schedule.queue)].tolist()
        assert sorted((entry, device) for device, _, entry in shown) == list(enumerate(takers))
        for (device, microbatch, _), event in shown.items():
            of = [i for i, s in enumerate(block.program.steps) if s.microbatch == microbatch and s.lane == "compute"]
            assert event["ts"] == pytest.approx(block.asked[of[0], place, device] * 1e6, abs=2e-3)
            end = event["ts"] + event["dur"]
            assert end == pytest.approx(block.had[of[-1], place, device] * 1e6, abs=2e-3)
            assert microbatch >= len(schedule.devices[device])


def test_a_chart_outlines_what_came_from_the_queue(line):
    block, place = line.block_of(0)
    for device in range(line.about.devices):
        entries = block.taken(place, device)
        drawn = {(bar.microbatch, bar.entry) for bar in bars(block, place, device) if bar.entry >= 0}
        assert drawn == set(entries.items())
    figure = plots.gantt(line, 0)
    assert "outlined: taken from the shared queue" in figure.layout.title.subtitle.text
    shown = 0
    for trace in figure.data:
        named = ["queue entry" in told for told in trace.customdata]
        if trace.name in ("forward", "backward", "head and loss"):
            assert [width > 0 for width in trace.marker.line.width] == named
            shown += sum(named)
    assert shown == 2 * (block.takers[place] >= 0).sum()  # this profile has no head


def test_a_chart_without_a_queue_says_nothing_of_one(timeline):
    figure = plots.gantt(timeline, 0)
    assert "queue" not in figure.layout.title.subtitle.text
    assert not any("queue" in told for trace in figure.data for told in trace.customdata)


def test_a_report_tells_who_ran_how_many(line, timeline, tmp_path):
    write_timelines([line], tmp_path / "with.html")
    text = (tmp_path / "with.html").read_text()
    number = int(re.search(r"Minibatch (\d+)<", text)[1])
    block, place = line.block_of(number)
    counts = [int((block.takers[place] == device).sum()) for device in range(line.about.devices)]
    assert "entries of the shared queue" in text
    assert f"<td>{', '.join(map(str, counts))}</td>" in text
    write_timelines([timeline], tmp_path / "without.html")
    assert "shared queue" not in (tmp_path / "without.html").read_text()

"""The small picture: well-formed, without a script, small with many devices, its bars as wide as their seconds."""

import re
from collections import defaultdict
from dataclasses import replace
from xml.etree.ElementTree import fromstring

import pytest

from odcsim.decide.asking import ask
from odcsim.decide.setting import plan
from odcsim.executors.simulation import Simulation, simulate
from odcsim.plots.gantt import bars
from odcsim.plots.style import COLOURS, HATCHED
from odcsim.plots.svg import LEFT, RIGHT, WIDTH, svg

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def both(setting, timeline):
    return [simulate(plan(setting, "lb-micro"), Simulation(setting.cost, "collective", "analytic")), timeline]


def drawn(text):
    """Seconds of each kind, as wide as they are drawn on the scale of the longer minibatch."""
    wide = defaultdict(float)
    for path in fromstring(text).findall(f"{SVG}path"):
        fill = path.get("fill")
        for begin, end in re.findall(r"M([\d.]+) \d+H([\d.]+)", path.get("d")):
            assert LEFT <= float(begin) <= float(end) <= WIDTH - RIGHT + 0.1
            wide[fill] += float(end) - float(begin)
    return wide


def test_bars_are_as_wide_as_their_seconds(both):
    wide, expected = drawn(svg(both, 1)), defaultdict(float)
    blocks = [t.block_of(1) for t in both]
    longest = max(block.had[:, place].max() for block, place in blocks)
    for block, place in blocks:
        for device in range(block.had.shape[2]):
            for bar in bars(block, place, device):
                fill = f"url(#{bar.kind})" if bar.kind in HATCHED else COLOURS[bar.kind]
                expected[fill] += bar.seconds * (WIDTH - LEFT - RIGHT) / longest
    assert {"url(#wait_inside)", COLOURS["forward"]} <= set(wide)
    for fill in wide:
        assert wide[fill] == pytest.approx(expected[fill], abs=8)


def test_it_is_read_aloud_in_the_dark_and_runs_nothing(both):
    text = svg(both, 1)
    root = fromstring(text)
    assert root.get("role") == "img"
    said = root.find(f"{SVG}title").text
    assert said.startswith("Minibatch 1: collective + lb-micro: ")
    assert "; on-demand + lb-mini: " in said
    assert "prefers-color-scheme: dark" in root.find(f"{SVG}style").text
    assert not re.search(r"<script|href=|\son\w+=|<foreignObject", text)
    assert svg(both, 1) == text


def test_names_are_only_words(timeline):
    evil = replace(timeline, about=replace(timeline.about, balancer="<script>alert(1)</script>&\"'"))
    root = fromstring(svg([evil], 0))
    assert not root.findall(f".//{SVG}script")
    assert "<script>alert(1)</script>" in root.find(f"{SVG}title").text


def test_many_devices_stay_small():
    setting = ask("longalign", "qwen3-8b", gpu="h100", devices=128, minibatch=4, minibatches=1)
    text = svg([simulate(plan(setting, "native"), Simulation(setting.cost, "collective", "analytic"))] * 2, 0)
    assert len(text) < 200_000
    assert "(16 of 128 devices drawn)" in text

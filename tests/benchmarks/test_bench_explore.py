"""How soon the explorer answers a change: table and chart together, of a question that nobody has asked before.

    pytest tests/benchmarks/test_bench_explore.py --benchmark-only --benchmark-timer=time.process_time -o addopts=""

Each figure also as a ratio to a bare Python loop in the same run (`extra_info`), so that it says something on any
machine.
"""

import time

import pytest

from odcsim.show.explore.controls import STOPS, PageQuestion
from odcsim.show.explore.reply import chart, reply

ROOM = (0, 1.1, 2.0)
LOOP = 100_000


def answered(asked: PageQuestion) -> int:
    return len(reply(asked).table[1]) + len(chart(asked)["data"])


def bare_loop() -> float:
    """Processor seconds."""
    start, now = time.process_time(), 0.0
    for _ in range(LOOP):
        now = now + 1.0 if now >= 0 else 0.0
    return time.process_time() - start


@pytest.mark.parametrize("minibatches", [8, 50])
@pytest.mark.parametrize("devices", [8, 64])
def test_a_change(benchmark, devices, minibatches):
    """Every stop of the minibatch's slider at three limits; one question before them, which loads what all need."""
    answered(PageQuestion(devices=4, minibatches=4))
    asked = [
        PageQuestion(devices=devices, minibatch=m, room=r, minibatches=minibatches)
        for r in ROOM
        for m in STOPS["minibatch"]
    ]
    left = iter(asked)
    found = benchmark.pedantic(answered, setup=lambda: ((next(left),), {}), rounds=len(asked))
    assert found > 10
    if benchmark.disabled:
        return
    bare = min(bare_loop() for _ in range(5))
    benchmark.extra_info["times a bare Python loop, at the median"] = round(benchmark.stats["median"] / bare, 1)

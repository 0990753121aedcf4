"""What a search of whole runs takes: a thousand ways to run in less than a minute on two cores.

pytest tests/benchmarks/test_bench_advice.py --benchmark-only -o addopts=""
"""

from odcsim.decide.advice.offers import advise
from odcsim.decide.advice.wish import Wish
from odcsim.question import Question
from odcsim.reading import load

SECONDS = 60


def test_a_thousand_ways(benchmark):
    trace = load("lognormal:median=1500,sigma=0.9,max=8192")
    asked = Question(trace=trace, model="qwen3-8b", global_batch=128, epochs=3, minibatches=96)
    wish = Wish(asked, ("h100", "a100", "h200", "b200"), (8, 16, 32, 64))
    advice = benchmark.pedantic(advise, (wish,), rounds=1)
    assert advice.ways >= 1000
    assert len(advice.offers) == 16
    benchmark.extra_info["ways"] = advice.ways
    assert benchmark.disabled or benchmark.stats["min"] <= SECONDS * advice.ways / 1000

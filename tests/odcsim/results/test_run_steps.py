"""Steps of a run come to what metrics says of all of them."""

import pytest

from odcsim.results import metrics
from odcsim.results.steps import steps


def test_steps_add_up_to_the_run(timeline):
    lines, usage = list(steps(timeline, "mine")), metrics.usage(timeline)
    assert [line["step"] for line in lines] == list(range(len(timeline.samples)))
    assert {line["run"] for line in lines} == {"mine"}
    seconds = [line["seconds"] for line in lines]
    assert lines[-1]["elapsed"] == pytest.approx(sum(seconds))
    assert sum(seconds) == pytest.approx(usage.makespan.sum())
    lost = sum(line["idle"] * line["seconds"] for line in lines)
    assert lost / sum(seconds) == pytest.approx(usage.idle())
    for line, tokens in zip(lines, timeline.tokens, strict=True):
        assert line["tokens_per_second"] * line["seconds"] == pytest.approx(tokens)
        assert sum(line[part] for part in metrics.PARTS) == pytest.approx(line["idle"])

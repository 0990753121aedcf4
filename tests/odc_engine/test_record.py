"""A recorder matches what happens to a program's steps."""

import time

import numpy as np
import pytest

from odc_engine.record import MinibatchRecorder
from odcsim.program import program

MICROBATCH = "gather 0,embed 0,gather 1,forward 1,head 0,gather 1,backward 1,push 1,embed backward 0,push 0"


def perform(recorder, microbatches):
    """Everything a device with one layer does, one after the other."""
    for m in range(microbatches):
        recorder.open_microbatch(m)
        for step in MICROBATCH.split(","):
            kind, _, unit = step.rpartition(" ")
            (transfer if kind in ("gather", "push") else compute)(recorder, kind, int(unit))
    for kind in ("meeting", "optimizer", "publish", "meeting"):
        with recorder.span(kind):
            time.sleep(1e-5)


def compute(recorder, phase, unit):
    recorder.begin(phase, unit)
    recorder.end(phase, unit)


def transfer(recorder, kind, unit):
    number, asked = recorder.given(kind, unit), time.perf_counter()
    recorder.done(number, asked, time.perf_counter())


@pytest.mark.parametrize("present", [0, 1, 2, 3])
def test_each_step_is_filled_once_and_in_order(present):
    """Steps of microbatches that a device does not have pass in no time, when all before them are done."""
    steps = program(1, 3, "on-demand", "none")
    recorder, start = MinibatchRecorder(steps), time.perf_counter()
    perform(recorder, present)
    asked, had = recorder.times(start)
    assert np.isfinite(asked).all()
    assert np.isfinite(had).all()
    before = steps.previous_in_lane()
    for i, step in enumerate(steps.steps):
        needs = [*step.after, *([before[i]] if before[i] >= 0 else [])]
        assert all(asked[i] >= had[n] for n in needs)
        if step.microbatch >= present:
            assert asked[i] == had[i] == max((had[n] for n in needs), default=0.0)
    ran = [i for i, step in enumerate(steps.steps) if step.microbatch < present and step.kind != "overhead"]
    assert len({asked[i] for i in ran}) == len(ran)


def test_what_no_program_has_is_left_out_and_spoils_no_step():
    """Deferred sync reduces nothing in the first microbatch; a stray transfer or phase is nobody's step."""
    recorder = MinibatchRecorder(program(1, 2, "deferred", "none"))
    transfer(recorder, "push", 1)
    with recorder.span("publish"):
        pass
    compute(recorder, "forward", 7)
    assert np.isnan(recorder.asked).all()
    assert np.isnan(recorder.had).all()
    numbers = [recorder.given("gather", 1) for _ in range(3)]  # a layer's second one is the backward's
    assert recorder.program.steps[numbers[0]].after < recorder.program.steps[numbers[1]].after
    assert numbers[2] == -1

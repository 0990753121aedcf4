"""Samples split over devices are simulated only."""

import pytest

from odc_engine.job import job_of
from odcsim.errors import InputError
from odcsim.schedule import Header, Schedule, ScheduleFile


def test_the_engine_refuses_split_samples_by_name():
    plain = Schedule((8, 9), (((0,),), ((1,),)))
    split = Schedule((8, 9), (((0,), (1,)), ((0,),)), gangs=(2, 1), split_overhead=0.05)
    header = Header("split", "nano", "", max_tokens=64, devices=2, seed=0)
    with pytest.raises(InputError, match=r"minibatch 1: samples split over several devices \(1 of them\)") as caught:
        job_of(ScheduleFile(header, (plain, split)), sync="on-demand")
    assert "use another balancer than split" in str(caught.value)
    assert job_of(ScheduleFile(header, (plain,)), sync="on-demand").schedules == (plain,)

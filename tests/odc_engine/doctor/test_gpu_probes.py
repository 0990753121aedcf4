"""The probes that hold or do not, as tests: `pytest -m gpu`."""

import pytest

from odc_engine.doctor.probes.asking import ask
from odc_engine.doctor.probes.base import ABSENT, OK
from odc_engine.doctor.probes.every import HOLDING
from odc_engine.doctor.probes.selftest import words


@pytest.mark.gpu
@pytest.mark.parametrize("probe", HOLDING, ids=lambda probe: probe.name)
def test_a_gpu_passes(probe, tmp_path):
    result = ask(probe, tmp_path)
    if result.answer.status == ABSENT:
        pytest.skip(result.answer.found)
    assert result.answer.status == OK, "\n".join([result.answer.found, *words(result)])

"""Logs of training steps: their tokens are of whole steps, and no lengths of samples."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from odcsim.errors import InputError
from odcsim.neighbours.logs import VERL_MEANS
from odcsim.reading.roles import STEP, Roles, first_of
from odcsim.reading.table import Table

# What only a log of steps has beside its tokens.
BESIDE = (
    "seconds time step_time time_per_step iteration_time duration elapsed lr learning_rate grad_norm epoch throughput "
    "tokens_per_second tokens_per_sec tps tflops mfu memory"
).split()
FIX = "give a row per sample; 'odcsim fit' takes a log with the lengths and seconds of each microbatch"


def refuse(table: Table, roles: Roles, where: str) -> None:
    """A row for each step, of which a log tells more than tokens."""
    beside = first_of(table.names, BESIDE)
    if roles.step is None or beside is None or roles.count or roles.quantile:
        return
    steps = table.labels(roles.step)
    if len(steps) > 1 and len(np.unique(steps)) == len(steps):
        problem = f"'{' + '.join(roles.parts)}' has a row for each step, beside '{beside}': tokens of whole steps"
        raise InputError(problem, where=where, fix=FIX)


def refuse_means(first: Mapping[str, Any], where: str) -> None:
    """verl's own log: means of each step."""
    data = first.get("data")
    if isinstance(data, Mapping) and first_of(list(first), STEP) and any(key in data for key in VERL_MEANS):
        fix = "give the folder of trainer.rollout_data_dir with --tokenizer"
        raise InputError("is verl's log of steps, which holds means and no lengths", where=where, fix=fix)

"""Whose logs are known, each by its own keys; the plain ones are those that people write by hand."""

from collections.abc import Collection

from odcsim.neighbours import hf_trainer, torchtitan, verl
from odcsim.neighbours.logged import Logged, key_of

BY_HAND = Logged(
    "a log of steps",
    step=("step", "global_step", "iteration", "iter"),
    seconds=("seconds", "step_seconds", "seconds_per_step", "step_time", "time_per_step", "iteration_time"),
    tokens=("tokens", "step_tokens", "tokens_per_step"),
    rate=("tokens_per_second", "tokens_per_sec", "tokens/s"),
    seen=("tokens_seen", "total_tokens", "consumed_tokens"),
    clock=("elapsed", "elapsed_seconds"),
)
LOGS = (verl.LOGS, torchtitan.LOGS, hf_trainer.LOGS)


def logged_by(names: Collection[str]) -> Logged:
    """Whose log has these names: of those with a key of their own, which nobody writes by hand, the one of most."""
    own = (one for one in LOGS if key_of(one.keys - BY_HAND.keys, names) is not None)
    return max((*own, BY_HAND), key=lambda one: one.known(names))

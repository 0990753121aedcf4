"""Metrics that a trainer gathers after every microbatch, gathered once per minibatch instead.

Devices with unlike numbers of microbatches would wait for each other for ever there. So inside a minibatch each gather
gives back what this device has (one_process.py), and what has come together is exchanged where all have just met.
"""

from collections import defaultdict
from typing import Any

from odc_engine.trainers.exchange import all_told


class NotedMetrics:
    """What a trainer of TRL notes of each microbatch: a list for each name, and the tokens that it has seen."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._lists: dict[str, list[float]] = trainer._metrics["train"]
        self._known = {name: len(values) for name, values in self._lists.items()}
        self._tokens: int = trainer._total_train_tokens
        self._sums: defaultdict[str, float] = defaultdict(float)
        self._weights: defaultdict[str, float] = defaultdict(float)

    def weigh(self, weight: float) -> None:
        """What the latest microbatch has added, at what it counts for."""
        for name, values in self._lists.items():
            if name == "num_tokens":  # it is made of the tokens seen
                continue
            for value in values[self._known.get(name, 0) :]:
                self._sums[name] += weight * value
                self._weights[name] += weight
            del values[self._known.get(name, 0) :]

    def combine(self) -> None:
        """One value for the minibatch, the same on all devices: the mean over everybody's microbatches."""
        own = (dict(self._sums), dict(self._weights), self._trainer._total_train_tokens - self._tokens)
        every = all_told(own)
        for name in sorted({name for sums, _, _ in every for name in sums}):
            weight = sum(weights.get(name, 0.0) for _, weights, _ in every)
            if weight:
                self._lists[name].append(sum(sums.get(name, 0.0) for sums, _, _ in every) / weight)
        if seen := sum(tokens for _, _, tokens in every):  # else the trainer has told them before
            self._trainer._total_train_tokens = self._tokens + seen
            self._lists["num_tokens"] = [self._trainer._total_train_tokens]


def noted_by(trainer: Any) -> NotedMetrics | None:
    """Nothing where the trainer is not of that kind, or alone."""
    noting = hasattr(trainer, "_metrics") and hasattr(trainer, "_total_train_tokens")
    return NotedMetrics(trainer) if noting and trainer.args.world_size > 1 else None

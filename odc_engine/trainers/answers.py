"""Answers that a trainer has generated, each as long as it is, to be laid side by side in other microbatches."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Row = dict[str, Any]  # of each name, what one answer has; or what all of a batch have, one beneath the other


@dataclass(frozen=True, slots=True)
class AnswerSize:
    """Tokens of an answer and of its prompt."""

    prompt: int
    completion: int

    @property
    def total(self) -> int:
        return self.prompt + self.completion


def sizes_of(row: Row) -> AnswerSize:
    return AnswerSize(len(row["prompt_ids"]), len(row["completion_ids"]))


def unpadded(answers: Row) -> list[Row]:
    """Each answer by itself, on the host, without what made it as long as those beside it."""
    host = {name: value.cpu() for name, value in answers.items() if isinstance(value, Tensor) and value.dim()}
    return [_unpadded({name: value[i] for name, value in host.items()}) for i in range(len(host["prompt_ids"]))]


def _unpadded(row: Row) -> Row:
    """At least a token of each, since a model wants one."""
    width = len(row["completion_ids"])
    prompt, completion = (max(int(row[f"{name}_mask"].sum()), 1) for name in ("prompt", "completion"))
    return {name: _cut(name, value, width, prompt, completion).clone() for name, value in row.items()}


def _cut(name: str, value: Tensor, width: int, prompt: int, completion: int) -> Tensor:
    if name.startswith("prompt_"):
        return value[len(value) - prompt :]
    return value[:completion] if value.dim() and len(value) == width else value


def padded(rows: Sequence[Row], fill: int) -> Row:
    """A batch of them: prompts end where answers begin."""
    return {name: _stacked(name, [row[name] for row in rows], fill) for name in rows[0]}


def _stacked(name: str, values: list[Tensor], fill: int) -> Tensor:
    if not values[0].dim():
        return torch.stack(values)
    longest = max(len(value) for value in values)
    batch = values[0].new_full((len(values), longest), fill if name.endswith("_ids") else 0)
    for into, value in zip(batch, values, strict=True):
        into[slice(longest - len(value), None) if name.startswith("prompt_") else slice(len(value))] = value
    return batch


def parts_within(places: Sequence[int], sizes: Sequence[AnswerSize], limit: int) -> list[list[int]]:
    """The same answers in microbatches within the limit, padding included, those of like length together."""
    parts: list[list[int]] = []
    for place in sorted(places, key=lambda i: (-sizes[i].completion, -sizes[i].prompt, i)):
        beside = [sizes[i] for i in [*parts[-1], place]] if parts else []
        tokens = len(beside) * (
            max((s.prompt for s in beside), default=0) + max((s.completion for s in beside), default=0)
        )
        if beside and tokens <= limit:
            parts[-1].append(place)
        else:
            parts.append([place])
    return parts

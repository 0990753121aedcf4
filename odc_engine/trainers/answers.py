"""Answers that a trainer has generated, each as long as it is, to be laid side by side in other microbatches."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from odc_engine.trainers.images import IMAGES, SEEN, TYPES, Patches, end_to_end, tiles_of, without_images
from odcsim.errors import InputError

Row = dict[str, Any]  # of each name, what one answer has; or what all of a batch have, one beneath the other


@dataclass(frozen=True, slots=True)
class AnswerSize:
    """Tokens of an answer and of its prompt."""

    prompt: int
    completion: int

    @property
    def total(self) -> int:
        return self.prompt + self.completion


@dataclass(frozen=True, slots=True, eq=False)
class Tokens:
    """Of one answer a value for each token: of its prompt, of what was generated, or of both."""

    prompt: Tensor
    completion: Tensor


def sizes_of(row: Row) -> AnswerSize:
    return AnswerSize(len(row["prompt_ids"].prompt), len(row["completion_ids"].completion))


def shared(answers: Row) -> Row:
    """What is one value for all."""
    return {name: value for name, value in answers.items() if isinstance(value, Tensor) and not value.dim()}


def facts_of(answers: Row) -> dict[str, str]:
    """What all devices have to have alike: names, and what is one value for all."""
    one = {name: str(value.item()) for name, value in shared(answers).items()}
    return {name: one.get(name, "") for name, value in answers.items() if value is not None and name not in SEEN}


def unpadded(answers: Row) -> list[Row]:
    """Each answer by itself, on the host, without what made it as long as those beside it."""
    one = shared(answers)
    each = {name: _host(value) for name, value in answers.items() if value is not None and name not in one}
    return [_unpadded({name: values[i] for name, values in each.items()}) for i in range(len(each["prompt_ids"]))]


def _host(values: Any) -> Any:
    return values.cpu() if isinstance(values, Tensor) else values


def _unpadded(row: Row) -> Row:
    """At least a token of each, since a model wants one."""
    widths = AnswerSize(len(row["prompt_ids"]), len(row["completion_ids"]))
    prompt, completion = (max(int(row[f"{name}_mask"].sum()), 1) for name in ("prompt", "completion"))
    return {name: _own(name, value, widths, AnswerSize(prompt, completion)) for name, value in row.items()}


def _own(name: str, value: Any, widths: AnswerSize, size: AnswerSize) -> Any:
    """Memory of its own, too, since a slice is sent with all that it is a slice of."""
    if isinstance(value, Patches):
        return Patches(value.rows.cpu().clone())
    if not isinstance(value, Tensor) or not value.dim() or name in IMAGES:
        return value.clone() if isinstance(value, Tensor) else value
    if name.startswith("prompt_") and len(value) == widths.prompt:
        return Tokens(value[widths.prompt - size.prompt :].clone(), value[:0].clone())
    if len(value) == widths.total:
        began, middle = widths.prompt - size.prompt, widths.prompt
        return Tokens(value[began:middle].clone(), value[middle : middle + size.completion].clone())
    if len(value) == widths.completion:
        return Tokens(value[:0].clone(), value[: size.completion].clone())
    return value.clone()


def padded(rows: Sequence[Row], fill: int) -> Row:
    """A batch of them: prompts end where answers begin."""
    full = _completed(rows)
    return {name: _together(name, [row[name] for row in full], fill) for name in full[0]}


def _completed(rows: Sequence[Row]) -> list[Row]:
    """The same names in all: an answer without images has no rows of them, and a batch of such has no images at all."""
    seen = any(row.get("num_images") for row in rows)
    own = [row if seen else without_images(row) for row in rows]
    every = {name: value for row in reversed(own) for name, value in row.items()}
    return [one | {name: _none(name, every[name], one) for name in every if name not in one} for one in own]


def _none(name: str, beside: Any, row: Row) -> Any:
    """Of an answer whose batch had no images, where another's had."""
    size = sizes_of(row)
    if isinstance(beside, Tokens):
        return Tokens(beside.prompt.new_zeros(size.prompt), beside.completion.new_zeros(size.completion))
    if isinstance(beside, Patches):
        return Patches(beside.rows[:0])
    if isinstance(beside, Tensor):
        return torch.zeros_like(beside)
    return {"num_tiles": tiles_of(row)}.get(name, 0)


def _together(name: str, values: list[Any], fill: int) -> Any:
    if isinstance(values[0], Tokens):
        own = fill if name.endswith("_ids") and name not in TYPES else 0
        sides = [value.prompt for value in values], [value.completion for value in values]
        return torch.cat([_beside(side, own, end) for side, end in zip(sides, ("left", "right"), strict=True)], 1)
    if isinstance(values[0], Patches):
        return end_to_end(values)
    if not isinstance(values[0], Tensor):
        return values
    if name in IMAGES:
        return end_to_end([Patches(value[None]) for value in values])
    if len({value.shape for value in values}) > 1:
        fix = "make it as wide as completion_ids, or as prompt_ids and call it 'prompt_...'"
        raise InputError(f"'{name}', whose rows are of unlike shape from answer to answer", fix=fix)
    return torch.stack(values)


def _beside(values: Sequence[Tensor], fill: int, side: str) -> Tensor:
    return pad_sequence([*values], batch_first=True, padding_value=fill, padding_side=side)


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

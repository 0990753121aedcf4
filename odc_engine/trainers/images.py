"""Images of answers. TRL lays those of a whole batch end to end: a row for each patch, each tile or each image, as a
model wants it. Apart, each answer has the rows of its own; together again, those of a microbatch lie end to end.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from torch import Tensor

IMAGES = (
    "pixel_values",
    "image_grid_thw",
    "image_position_ids",
    "pixel_attention_mask",
    "spatial_shapes",
    "image_sizes",
)
COUNTS = ("num_images", "num_tiles")
TYPES = ("token_type_ids", "mm_token_type_ids")  # of the tokens of a prompt and of its answer, side by side
SEEN = {*IMAGES, *COUNTS, *TYPES}  # what a batch has only if one of its prompts has an image


@dataclass(frozen=True, slots=True, eq=False)
class Patches:
    """What one answer's images have in a tensor: as many rows as they are patches, tiles or images."""

    rows: Tensor


def apart(answers: dict[str, Any]) -> dict[str, Any]:
    """Everything as a sequence with an item for each answer, in which TRL can shuffle and cut."""
    by_answer = "pixel_attention_mask" in answers and "spatial_shapes" not in answers
    split = answers if by_answer else import_module("trl.trainer.utils").split_pixel_values_by_grid(answers)
    return {
        name: value if value is answers[name] else [Patches(rows) for rows in value] for name, value in split.items()
    }


def end_to_end(parts: Sequence[Patches]) -> Tensor:
    """One beneath the other. What was padded to the largest beside it is, now, to the largest of all."""
    rows = [part.rows for part in parts]
    shape = [max(sizes) for sizes in zip(*(one.shape[1:] for one in rows), strict=True)]
    whole = rows[0].new_zeros(sum(map(len, rows)), *shape)
    begin = 0
    for one in rows:
        whole[(slice(begin, begin + len(one)), *map(slice, one.shape[1:]))] = one
        begin += len(one)
    return whole


def without_images(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in {*IMAGES, *COUNTS}}


def tiles_of(answer: dict[str, Any]) -> int:
    """Of an answer from a batch in which each image is one tile, so that nobody counted them."""
    own = answer.get("pixel_values")
    return len(own.rows) if isinstance(own, Patches) else 0

"""Read the lengths of samples from a model's batch, without waiting for a GPU."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

Holding = Callable[[], tuple[tuple[int, ...], int]]  # lengths of samples, and tokens that are computed with padding
BORDERS = ("cu_seq_lens_q", "cu_seqlens_q", "cu_seq_lens", "cu_seqlens")  # where packed samples begin and end
IGNORED = -100


def holding(batch: Mapping[str, Any]) -> Holding:
    """Return a call that gives the lengths later, when the GPU has copied them. On a CPU they are known at once."""
    given = {name: batch.get(name) for name in ("attention_mask", "position_ids", "labels", "seq_lengths", *BORDERS)}
    kept = {name: _copied(value) for name, value in given.items() if value is not None}
    rows, width = _shape(batch)
    if any(isinstance(value, Tensor) and value.is_cuda for value in given.values()):
        return partial(_held, kept, rows, width)
    known = _held(kept, rows, width)
    return lambda: known


def _copied(value: Any) -> Any:
    """Copy to the host asynchronously, into pinned memory."""
    if not isinstance(value, Tensor) or not value.is_cuda:
        return value
    here = torch.empty(value.shape, dtype=value.dtype, device="cpu", pin_memory=True)
    return here.copy_(value.detach(), non_blocking=True)


def _shape(batch: Mapping[str, Any]) -> tuple[int, int]:
    for name in ("input_ids", "inputs_embeds", "attention_mask", "labels"):
        if isinstance(value := batch.get(name), Tensor) and value.dim():
            return (1, value.shape[0]) if value.dim() == 1 else (value.shape[0], value.shape[1])
    return 0, 0


def _held(kept: Mapping[str, Any], rows: int, width: int) -> tuple[tuple[int, ...], int]:
    for name in BORDERS:
        if isinstance(borders := kept.get(name), Tensor):
            return tuple(n for n in borders.flatten().diff().tolist() if n > 0), rows * width
    if (told := kept.get("seq_lengths")) is not None:
        flat = told.flatten().tolist() if isinstance(told, Tensor) else _flat(told)
        return tuple(int(n) for n in flat if n > 0), rows * width
    if not rows * width:
        return (), 0
    mask, positions = (_flat_rows(kept.get(name), rows, width) for name in ("attention_mask", "position_ids"))
    if mask is None and (labelled := _flat_rows(kept.get("labels"), rows, width)) is not None and positions is None:
        return _labelled(labelled != IGNORED), rows * width
    if positions is None:
        return ((width,) * rows if mask is None else _counted(mask != 0)), rows * width
    real = torch.ones_like(positions, dtype=torch.bool) if mask is None else mask != 0
    return _segments(real, positions), rows * width


def _flat(told: Any) -> list[int]:
    return [n for one in told for n in (_flat(one) if isinstance(one, list | tuple) else [int(one)])]


def _flat_rows(value: Any, rows: int, width: int) -> Tensor | None:
    """Return lengths per row, or None for other forms, such as masks of pairs or 3-D positions."""
    if not isinstance(value, Tensor):
        return None
    value = value[None] if value.dim() == 1 else value
    alike = value.dim() == 2 and value.shape[1] == width and value.shape[0] in (1, rows)
    return value.expand(rows, width) if alike else None


def _labelled(labelled: Tensor) -> tuple[int, ...]:
    """Take the last label as a row's end if nothing else tells it."""
    places = torch.arange(1, labelled.shape[1] + 1, device=labelled.device).expand_as(labelled)
    return tuple(n for n in places.where(labelled, 0).amax(dim=1).tolist() if n)


def _counted(real: Tensor) -> tuple[int, ...]:
    return tuple(n for n in real.sum(dim=1).tolist() if n)


def _segments(real: Tensor, positions: Tensor) -> tuple[int, ...]:
    """Return the tokens of each sample: a row's, or of each part where positions restart inside the row."""
    starts = torch.zeros_like(real)
    starts[:, 0] = True
    starts[:, 1:] = (positions[:, 1:] <= positions[:, :-1]) & real[:, 1:] & real[:, :-1]
    number = starts.flatten().cumsum(0) - 1
    return tuple(n for n in torch.bincount(number[real.flatten()]).tolist() if n)

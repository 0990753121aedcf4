"""Split a microbatch in two, by samples."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from odc_engine.packed import Packed
from odcsim.errors import InputError

WAY_OUT = "shorten samples, use more devices, or give retry() a `halve` of your own"


def halved(batch: Any) -> tuple[Any, Any]:
    """Return two halves of a batch: a tensor's rows, a sequence's entries, those of each value of a dict, or the
    samples of a Packed."""
    if isinstance(batch, Packed):
        return _packed(batch)
    if isinstance(batch, Mapping):
        pairs = {key: halved(value) for key, value in batch.items()}
        if len({_length(value) for value in batch.values()}) > 1:
            raise InputError("a microbatch whose values have unequal numbers of rows ran out of memory", fix=WAY_OUT)
        return tuple({key: pair[i] for key, pair in pairs.items()} for i in (0, 1))  # type: ignore[return-value]
    count = _length(batch)
    if count < 2:
        raise InputError("a microbatch of one sample ran out of memory", fix=WAY_OUT)
    return batch[: count // 2], batch[count // 2 :]


def _length(batch: Any) -> int:
    if isinstance(batch, Tensor):
        return len(batch) if batch.dim() else 0
    if isinstance(batch, Sequence) and not isinstance(batch, str):
        return len(batch)
    raise InputError(f"a microbatch that is a {type(batch).__name__} ran out of memory", fix=WAY_OUT)


def _packed(batch: Packed) -> tuple[Packed, Packed]:
    if len(batch.lengths) < 2:
        raise InputError("a microbatch of one sample ran out of memory", fix=WAY_OUT)
    middle = len(batch.lengths) // 2
    at = sum(batch.lengths[:middle])
    first = Packed(batch.tokens[:at], batch.targets[:at], batch.weights[:at], batch.lengths[:middle])
    return first, Packed(batch.tokens[at:], batch.targets[at:], batch.weights[at:], batch.lengths[middle:])

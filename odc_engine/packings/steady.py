"""Turn off what differs by chance between microbatches, and what hides the size of a gradient."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.nn import functional as F  # noqa: N812
from torch.nn.utils import clip_grad

from odc_engine.packings.recut import put

DROPS = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout")
CLIPS = ("clip_grads_with_norm_", "_clip_grads_with_norm_", "clip_grad_value_")  # norms are still told


@contextmanager
def steady() -> Iterator[None]:
    """Turn off dropout, which draws other numbers in other microbatches, and clipping, which makes gradients equally
    large."""
    with ExitStack() as stack:
        for name in DROPS:
            stack.enter_context(put(F, name, _kept))
        stack.enter_context(put(F, "scaled_dot_product_attention", _attending(F.scaled_dot_product_attention)))
        for owner in (clip_grad, torch.nn.utils):
            for name in CLIPS:
                if hasattr(owner, name):
                    stack.enter_context(put(owner, name, lambda *_, **__: None))
        yield


def _kept(input: Any, *_: Any, **__: Any) -> Any:
    return input


def _attending(attend: Any) -> Any:
    def attending(query: Any, key: Any, value: Any, *args: Any, **how: Any) -> Any:
        names = ("attn_mask", "dropout_p", "is_causal")
        return attend(query, key, value, **how | dict(zip(names, args, strict=False)) | {"dropout_p": 0.0})

    return attending

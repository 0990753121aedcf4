"""Which of torch's kernels for attention the decoder asks for."""

from dataclasses import replace

import pytest
import torch

from odc_engine import pack
from odc_engine.decoder import attention
from odc_engine.decoder.model import Decoder
from odcsim import catalog

GROUPED = replace(catalog.model("nano"), heads=4, kv_heads=2)


def test_heads_are_repeated_where_a_kernel_knows_no_groups(monkeypatch):
    """On a GPU in float32, where torch would keep the scores of all pairs of tokens. The same, but for rounding."""
    model = Decoder(GROUPED, seed=1)
    tokens = torch.arange(19) % GROUPED.vocab
    packed = pack([tokens[:7], tokens[7:]], [torch.ones(7), torch.ones(12)])
    asked, real = [], attention.F.scaled_dot_product_attention

    def seen(queries, keys, values, **how):
        asked.append((queries.shape[1], keys.shape[1], how["enable_gqa"]))
        return real(queries, keys, values, **how)

    monkeypatch.setattr(attention.F, "scaled_dot_product_attention", seen)
    losses = []
    for repeats in (False, True):
        monkeypatch.setattr(attention, "knows_no_groups", lambda _, repeats=repeats: repeats)
        losses.append(model(packed).item())
    assert set(asked) == {(4, 2, True), (4, 4, False)}
    assert losses[1] == pytest.approx(losses[0], rel=1e-6)


@pytest.mark.parametrize(
    ("kind", "dtype", "told"), [("cpu", "float32", False), ("cuda", "float32", True), ("cuda", "bfloat16", False)]
)
def test_only_a_gpu_in_float32_knows_no_groups(kind, dtype, told):
    class Queries:
        is_cuda = kind == "cuda"

    Queries.dtype = getattr(torch, dtype)
    assert attention.knows_no_groups(Queries) is told

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from odcsim import catalog
from odcsim.model import Model

LENGTHS = st.lists(st.integers(1, 200_000), min_size=1, max_size=20)
DENSE = Model("dense", 4, 256, 8, 2, 32, 1024, 5000, False)


def test_parameters_of_a_layer_are_the_sum_of_its_matrices():
    attention = 256 * 256 + 2 * 256 * 64 + 256 * 256
    assert DENSE.attention_parameters == attention
    assert DENSE.layer_parameters == attention + 3 * 256 * 1024
    assert DENSE.parameters == 4 * DENSE.layer_parameters + 2 * 5000 * 256 + 256
    assert replace(DENSE, tied=True).parameters == DENSE.parameters - 5000 * 256


@given(st.integers(1, 300), st.integers(1, 300))
def test_a_window_counts_the_pairs_it_sees(length, window):
    """Twice the visible (query, key) pairs, up to one per token: the diagonal, which the square counts by half."""
    pairs = sum(min(position + 1, window) for position in range(length))
    square = float(replace(DENSE, window=window, window_layers=4).squares([length])[0])
    assert abs(2 * pairs - square) <= length
    assert square <= DENSE.squares([length])[0] == length**2
    assert length > window or square == length**2


@given(LENGTHS, st.integers(0, 4), st.integers(0, 4))
def test_squares_average_over_the_kinds_of_layers(lengths, windows, linear):
    windows = min(windows, 4 - linear)
    mixed = replace(DENSE, window=100, window_layers=windows, linear_layers=linear)
    only = replace(DENSE, window=100, window_layers=4)
    expected = (mixed.full_layers * DENSE.squares(lengths) + windows * only.squares(lengths)) / 4
    np.testing.assert_allclose(mixed.squares(lengths), expected, rtol=1e-12)


def test_backward_is_twice_the_matmuls_and_two_and_a_half_times_attention():
    assert DENSE.layer_forward(1.0, 0.0) == 2 * DENSE.layer_matmul_parameters
    assert DENSE.layer_backward(1.0, 0.0, recompute=False) == 2 * DENSE.layer_forward(1.0, 0.0)
    assert DENSE.layer_backward(0.0, 1.0, recompute=False) == 2.5 * DENSE.layer_forward(0.0, 1.0)
    again = DENSE.layer_backward(7.0, 49.0) - DENSE.layer_backward(7.0, 49.0, recompute=False)
    assert again == DENSE.layer_forward(7.0, 49.0)


def test_flops_per_token_are_near_six_times_the_parameters():
    """The usual rule for training without recompute, short samples and a small embedding."""
    m = catalog.model("llama-3.1-405b")
    layers = m.layer_forward(1.0, 0.0) + m.layer_backward(1.0, 0.0, recompute=False)
    flops = m.layers * layers + m.head_forward(1.0) + m.head_backward(1.0)
    assert flops == pytest.approx(6 * m.parameters, rel=0.01)
    for name in ("qwen2.5-7b", "llama-3.1-70b", "mixtral-8x7b"):
        m = catalog.model(name)
        at = m.even_length  # where attention costs what the matmuls do
        assert m.layer_forward(0.0, at * at) == pytest.approx(m.layer_forward(at, 0.0))


def test_latent_attention_multiplies_scores_and_values_of_different_widths():
    assert DENSE.attention_flops_per_square == 4 * DENSE.head_dim * DENSE.heads / 2  # halved by the causal mask
    latent = replace(DENSE, latent_rank=512, rotary_dim=64, head_dim=192, value_dim=128, kv_heads=8)
    assert latent.attention_flops_per_square == 8 * (192 + 128)
    queries, down = 256 * 8 * 192, 256 * (512 + 64)
    assert latent.attention_parameters == queries + down + 512 * 8 * (128 + 128) + 8 * 128 * 256


def test_a_token_visits_only_its_active_experts():
    """Dense layers before them are averaged in."""
    sparse = replace(DENSE, experts=16, experts_active=2, ffn=128, shared_ffn=64)
    resting = 3 * 256 * 128 * (16 - 2)
    assert sparse.layer_parameters - sparse.layer_matmul_parameters == resting
    assert sparse.active_parameters == sparse.parameters - 4 * resting
    mixed = replace(sparse, dense_layers=1, dense_ffn=1024)
    assert mixed.parameters == pytest.approx((3 * sparse.parameters + DENSE.parameters) / 4, abs=4)


def test_samples_cut_into_chunks_cost_what_their_chunks_would_as_samples():
    whole = replace(DENSE, window=100, window_layers=DENSE.layers, chunked=True)
    assert whole.squares([250, 80, 100]).tolist() == [100**2 + 100**2 + 50**2, 80**2, 100**2]

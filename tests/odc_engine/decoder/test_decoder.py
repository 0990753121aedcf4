"""The decoder against a plain re-implementation in double precision, and what it promises about memory and sizes."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from odc_engine import NO_TARGET, pack
from odc_engine.decoder import attention
from odc_engine.decoder.attention import ROTARY_BASE
from odc_engine.decoder.model import EPSILON, Decoder
from odcsim import catalog
from odcsim.errors import InputError

NANO = catalog.model("nano")
LENGTHS = (7, 1, 12, 5)


def batch(lengths=LENGTHS, vocab=NANO.vocab, seed=0):
    """Random tokens; about a third of them carry no loss, the others count differently."""
    draw = torch.Generator().manual_seed(seed)
    samples = [torch.randint(vocab, (n,), generator=draw) for n in lengths]
    weights = [torch.rand(n, generator=draw, dtype=torch.float64) for n in lengths]
    return pack(samples, [w.where(w > 0.3, 0.0) for w in weights])


def reference(model, packed):
    """Loss and log-probabilities with one T x T mask, complex rotations and all logits at once."""
    shape, weights, total = model.shape, dict(model.named_parameters()), len(packed.tokens)
    sample = torch.cat([torch.full((n,), i) for i, n in enumerate(packed.lengths)])
    position = torch.cat([torch.arange(n) for n in packed.lengths])
    later = torch.arange(total)[None] > torch.arange(total)[:, None]
    hidden_from = later | (sample[None] != sample[:, None])
    half = shape.head_dim // 2
    rate = torch.tensor([ROTARY_BASE ** (-i / half) for i in range(half)], dtype=torch.float64)
    turn = torch.polar(torch.ones(total, half, dtype=torch.float64), position[:, None] * rate)

    def norm(x, name):
        return x / (x.pow(2).mean(-1, keepdim=True) + EPSILON).sqrt() * weights[name]

    def rotate(x):
        turned = torch.complex(x[..., :half], x[..., half:]) * turn[:, None]
        return torch.cat([turned.real, turned.imag], -1)

    x = weights["embedding.weight"][packed.tokens]
    for i in range(shape.layers):
        own = f"layers.{i}."
        qkv = norm(x, own + "attention_norm.weight") @ weights[own + "attention.qkv.weight"].T
        qkv = qkv.view(total, -1, shape.head_dim)
        group = shape.heads // shape.kv_heads
        queries = rotate(qkv[:, : shape.heads])
        keys = rotate(qkv[:, shape.heads : -shape.kv_heads]).repeat_interleave(group, 1)
        values = qkv[:, -shape.kv_heads :].repeat_interleave(group, 1)
        scores = torch.einsum("qhd,khd->hqk", queries, keys) / shape.head_dim**0.5
        seen = torch.einsum("hqk,khd->qhd", scores.masked_fill(hidden_from, -torch.inf).softmax(-1), values)
        x = x + seen.reshape(total, -1) @ weights[own + "attention.out.weight"].T
        gate, up = (norm(x, own + "mlp_norm.weight") @ weights[own + "gate_up.weight"].T).chunk(2, -1)
        x = x + (gate * gate.sigmoid() * up) @ weights[own + "down.weight"].T
    head = weights["embedding.weight" if shape.tied else "head.weight"]
    every = (norm(x, "head.norm.weight") @ head.T).softmax(-1).log()
    picked = every[torch.arange(total), packed.targets.clamp(min=0)] * (packed.targets != NO_TARGET)
    return -(picked * packed.weights).sum(), picked


def double(shape=NANO, **options):
    """A decoder whose norms differ from one and whose projections are large enough for errors to show."""
    model = Decoder(shape, dtype=torch.float64, **options)
    draw = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=draw, dtype=torch.float64), alpha=0.1)
    return model


def difference(ours, theirs):
    return ((ours - theirs).abs().max() / theirs.abs().max()).item()


SHAPES = {
    "nano": NANO,
    "tied": replace(NANO, tied=True),
    "as many key heads": replace(NANO, kv_heads=4),
    "one key head": replace(NANO, kv_heads=1, head_dim=6, hidden=40),
}


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_loss_and_gradients_equal_the_reference(shape, recompute):
    """Of each sample alone, whatever is frozen, and however the loss is scaled."""
    for frozen in ("nothing", "embedding", "head", "layers.0"):
        model, packed = double(SHAPES[shape], recompute=recompute, chunk=4), batch()
        loss, _ = reference(model, packed)
        names, parameters = zip(*model.named_parameters(), strict=True)
        expected = torch.autograd.grad(loss, parameters)
        for name, parameter in zip(names, parameters, strict=True):
            parameter.requires_grad_(not name.startswith(frozen))
        ours = model(packed)
        assert ours.item() == pytest.approx(loss.item(), rel=1e-12)
        ours.backward(retain_graph=True)
        (2 * ours).backward()
        for name, parameter, gradient in zip(names, parameters, expected, strict=True):
            if name.startswith(frozen):
                assert parameter.grad is None
            else:
                assert difference(parameter.grad, 3 * gradient) < 1e-11, (name, frozen)


@pytest.mark.parametrize("chunk", [1, 5, 25, 1024])
def test_log_probs_equal_the_reference(chunk):
    model, packed = double(chunk=chunk), batch()
    found = model.log_probs(packed)
    assert difference(found, reference(model, packed)[1]) < 1e-12
    assert not found.requires_grad
    assert (found[packed.targets == NO_TARGET] == 0).all()
    assert model(packed).item() == pytest.approx(-(found * packed.weights).sum().item(), rel=1e-12)
    with torch.no_grad():
        assert model(packed).item() == pytest.approx(-(found * packed.weights).sum().item(), rel=1e-12)


@pytest.mark.parametrize("shape", ["nano", "tied"])
def test_bf16_comes_close(shape):
    shape, packed = SHAPES[shape], batch()
    fine, coarse = Decoder(shape), Decoder(shape, dtype=torch.bfloat16, chunk=4)
    coarse.load_state_dict(fine.state_dict())
    ours, theirs = coarse(packed), fine(packed)
    assert ours.dtype == torch.float32
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-2)
    ours.backward()
    theirs.backward()
    for (name, a), b in zip(coarse.named_parameters(), fine.parameters(), strict=True):
        assert a.grad.dtype == torch.bfloat16
        assert difference(a.grad.float(), b.grad) < 0.05, name


class Shapes(TorchDispatchMode):
    """Keeps the shape of everything that any operation returns, in backward as well."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.seen.update(tuple(x.shape) for x in tree_leaves(out) if isinstance(x, torch.Tensor))
        return out


@pytest.mark.parametrize("run", [lambda m, p: m(p).backward(), lambda m, p: m.log_probs(p)], ids=["train", "log_probs"])
def test_logits_and_scores_are_never_whole(run):
    shape = replace(NANO, vocab=4099)
    model, packed = Decoder(shape, chunk=16), batch((40, 23), vocab=4099)
    with Shapes() as shapes:
        shapes.seen = set()
        run(model, packed)
    rows = {size[0] for size in shapes.seen if len(size) == 2 and size[1] == 4099}
    assert rows - {shape.hidden} == {16, 63 % 16}  # of the head's weight, transposed, as many rows as the hidden size
    assert not {size for size in shapes.seen if size[-2:] in [(63, 63), (40, 40)]}


def test_models_have_the_parameters_that_odcsim_counts():
    """Those of others lack biases and norms of queries and keys, less than one part in ten thousand."""
    dense = 0
    for shape in map(catalog.model, catalog.model_names()):
        try:
            model = Decoder(replace(shape, layers=1), device="meta")
        except InputError:
            continue
        dense += 1
        layer, root = count(model.layers[0]), count(model) - count(model.layers[0])
        lacking = 0 if shape.name in ("nano", "tiny") else shape.vectors - 2 * shape.hidden
        assert layer == shape.layer_parameters - lacking, shape.name
        assert root == shape.root_parameters, shape.name
        assert shape.layers * layer + root == pytest.approx(shape.parameters, rel=1e-4), shape.name
    assert dense > 10


def count(module):
    return sum(p.numel() for p in module.parameters())


NOT_COMPUTED = {"linear_layers": 1, "latent_rank": 8, "gated": True, "plain_mlp": True, "value_dim": 8}
REFUSED = [replace(NANO, **{name: value}) for name, value in (NOT_COMPUTED | {"head_dim": 7, "kv_heads": 3}).items()]


def test_what_is_not_computed_is_refused():
    for shape in (*map(catalog.model, ("mixtral-8x7b", "gemma-3-1b", "gpt-oss-20b")), *REFUSED):
        with pytest.raises(InputError):
            Decoder(shape)


def test_weights_follow_the_seed_and_leave_torchs_own_generator_alone():
    torch.manual_seed(5)
    first, again, other = (Decoder(NANO, seed=seed).state_dict() for seed in (1, 1, 2))
    drawn = torch.rand(3)
    torch.manual_seed(5)
    assert torch.rand(3).equal(drawn)
    assert all(first[name].equal(again[name]) for name in first)
    assert not any(first[name].equal(other[name]) for name in first if first[name].dim() > 1)
    plain = Decoder(NANO, seed=1, recompute=False, chunk=3).state_dict()
    assert all(first[name].equal(plain[name]) for name in first)


def test_attention_plans_nothing_for_each_length_of_a_sample():
    torch.backends.cuda.enable_cudnn_sdp(True)
    Decoder(NANO)
    assert not torch.backends.cuda.cudnn_sdp_enabled()


def test_heads_are_repeated_where_a_kernel_knows_no_groups(monkeypatch):
    """On a GPU in float32, where torch would keep the scores of all pairs of tokens. The same, but for rounding."""
    asked, losses, real = [], [], attention.F.scaled_dot_product_attention

    def seen(queries, keys, values, **how):
        asked.append((queries.shape[1], keys.shape[1], how["enable_gqa"]))
        return real(queries, keys, values, **how)

    for kind, dtype, told in (("cpu", "float32", False), ("cuda", "float32", True), ("cuda", "bfloat16", False)):
        queries = SimpleNamespace(is_cuda=kind == "cuda", dtype=getattr(torch, dtype))
        assert attention.knows_no_groups(queries) is told
    monkeypatch.setattr(attention.F, "scaled_dot_product_attention", seen)
    for repeats in (False, True):
        monkeypatch.setattr(attention, "knows_no_groups", lambda _, repeats=repeats: repeats)
        losses.append(Decoder(replace(NANO, heads=4, kv_heads=2), seed=1)(batch()).item())
    assert set(asked) == {(4, 2, True), (4, 4, False)}
    assert losses[1] == pytest.approx(losses[0], rel=1e-6)

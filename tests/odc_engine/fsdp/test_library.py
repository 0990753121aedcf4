"""The library in somebody else's training loop: fsdp.py's five lines, on modules that know nothing of it."""

import contextlib
import re

import nets
import pytest
import torch
import work
from torch.distributed.fsdp import fully_shard
from work import Case

from odc_engine import OnDemand
from odc_engine.fsdp import on_demand as fsdp
from odc_engine.runs.verify import BOUND

COUNTS = (3, 0, 2)
MINIBATCHES = 4


def documented(model: str) -> str:
    """The docstring's loop, told which model to shard."""
    block = re.search(r"\n\n((?:    .*\n|\n)+)", fsdp.__doc__).group(1)
    code = "\n".join(line[4:] for line in block.splitlines())
    return code.replace("fully_shard(...)", model)


def test_the_documented_loop_trains(pools):
    """The text of the docstring itself is run, and gives what one process gives by the mean over ranks."""
    reference = Case(COUNTS).fresh()
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
    for minibatch in range(MINIBATCHES):
        for rank, count in enumerate(COUNTS):
            for m in range(count):
                (nets.loss(reference, rank, m, minibatch) / len(COUNTS)).backward()
        optimizer.step()
        optimizer.zero_grad()
    for found in pools(3).run(run_the_docstring):
        assert work.error(found, dict(reference.named_parameters())) <= 1e-4


def run_the_docstring(rank):
    model = Case(COUNTS).fresh()
    names = {
        "model": model,
        "fully_shard": fully_shard,
        "OnDemand": OnDemand,
        "optimizer": None,
        "data": range(MINIBATCHES),
        "my_share": lambda minibatch: [(minibatch, m) for m in range(COUNTS[rank])],
        "loss": lambda model, batch: nets.loss(model, rank, batch[1], batch[0]),
    }
    shard_it = "[fully_shard(layer) for layer in model.layers]; fully_shard(model)"
    made = "; optimizer = torch.optim.SGD(model.parameters(), lr=0.1)"
    exec(documented(shard_it + made), names | {"torch": torch})
    return work.whole_parameters(model)


# transformers


def qwen2():
    """Qwen2 as it comes, two layers of random weights, head tied to the embedding."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(work.SEED)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "vocab_size": 50}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}
    return Qwen2ForCausalLM(Qwen2Config(**sizes, **heads, tie_word_embeddings=True, attn_implementation="eager"))


def qwen2_loss(model, rank, microbatch, minibatch=0):
    tokens = nets.tokens_of(rank, microbatch, minibatch)[None]
    return model(input_ids=tokens, labels=tokens, use_cache=False).loss


QWEN2 = Case((3, 1), model=qwen2, units=("model.layers",), loss=qwen2_loss)


@pytest.mark.slow
@pytest.mark.parametrize("accumulate", ["locked", "slots"])
def test_qwen2_unchanged(pools, accumulate):
    pytest.importorskip("transformers")
    expected = work.reference(QWEN2)
    for found in pools(2).run(work.gradients, QWEN2.but(accumulate=accumulate), timeout=180):
        assert work.error(found, expected) <= BOUND


@pytest.mark.slow
def test_qwen2_trains_as_over_collectives(pools):
    pytest.importorskip("transformers")
    case = QWEN2.but(counts=(2, 2))
    rival = case.but(sync="collective", backend="torch")
    found, expected = (pools(2).run(work.trained, each, 10, timeout=180)[0] for each in (case, rival))
    assert work.error(found, expected) <= 1e-4


def with_tensors_elsewhere(rank, case, elsewhere):
    """As where `torch.set_default_device("cuda")` stands in a program: what is made without a device is not a
    processor's. The loop makes its own there."""
    model = case.fresh()
    optimizer = torch.optim.SGD(work.shard(case, model).parameters(), lr=0.1)
    torch.set_default_device(elsewhere)
    try:
        with contextlib.closing(work.communication(case, model)) as comm:
            for number in range(2):
                for m in range(case.counts[rank]):
                    with torch.device("cpu"):
                        value = case.loss(model, rank, m, number)
                    value.backward()
                comm.settle()
                optimizer.step()
                comm.publish()
    finally:
        torch.set_default_device(None)
    return work.whole_parameters(model)


ELSEWHERE = {
    "on demand": Case(COUNTS),
    "a parameter is skipped": Case(COUNTS, nets.Dropping, accumulate="slots"),
    "collective": Case((2, 2, 2), nets.Dropping, sync="collective"),
    "far": Case(COUNTS, backend="nvshmem", machines=(1, 2), accumulate="slots"),
}


@pytest.mark.parametrize("case", ELSEWHERE.values(), ids=ELSEWHERE)
def test_where_tensors_usually_are_made_is_nothing_to_the_engine(pools, case):
    usual, elsewhere = (pools(3).run(with_tensors_elsewhere, case, device)[0] for device in ("cpu", "meta"))
    assert work.error(elsewhere, usual) <= 1e-4

"""Every GPU with all parameters, as under DDP: what is sent and held, against arithmetic; and who runs it."""

import numpy as np
import pytest

from odcsim import InputError, advise, ask, compare, flags
from odcsim.catalog.estimates import memory
from odcsim.decide import room
from odcsim.program import MEETING
from odcsim.recipe import Recipe

LENGTHS = np.random.default_rng(0).lognormal(6, 0.8, 400).astype(int).clip(16, 4000)
MEETS = ("lb-micro", "collective")


def asked(**words):
    usual = {"model": "qwen2.5-1.5b", "gpu": "h100", "devices": 4, "minibatch": 4, "minibatches": 6}
    return ask(LENGTHS, **usual | words)


def cost(**words):
    return room.under(asked(sharding="none", **words).cost, MEETING)


@pytest.mark.parametrize("devices", [2, 8, 16])
def test_gradients_are_reduced_and_gathered_again_and_parameters_stay(devices):
    one = cost(devices=devices)
    moved, cluster = one.transfers(one_sided=False), one.cluster
    size = 4 * one.model.layer_parameters
    assert moved["push layer"] == pytest.approx(2 * cluster.collective(size, devices))
    assert moved["gather layer"] == moved["gather root"] == 0
    assert moved["optimizer"] == pytest.approx(
        devices * one.by(sharding="full").transfers(one_sided=False)["optimizer"]
    )


def test_of_one_gpu_sharding_is_nothing():
    full, none = (compare(asked(devices=1, sharding=how), among=[MEETS]).rows[0] for how in ("full", "none"))
    assert none.makespan_seconds == pytest.approx(full.makespan_seconds)


@pytest.mark.parametrize("devices", [2, 16])
@pytest.mark.parametrize("optimizer", ["fp32", "8bit"])
def test_states_are_whole_however_many_gpus(devices, optimizer):
    model, moments = asked().cost.model, {"fp32": 8, "8bit": 2}[optimizer]
    recipe = Recipe(sync="collective", sharding="none", optimizer=optimizer)
    need = memory.estimate(model, devices, 4000, recipe, holders=1)
    assert (need.weights + need.moments) / model.parameters == pytest.approx(4 + moments, rel=0.02)
    # Gradients in fp32, and once more in the buckets that are sent.
    assert need.gradients + need.buffers >= (4 + 4) * model.parameters
    alone = memory.estimate(model, 1, 4000, recipe, holders=1)
    assert need.total == pytest.approx(alone.total + need.buffers * 1.2, rel=0.02)


def test_adapters_alone_are_sent_and_slow_links_tell():
    words = {"model": "llama-3.1-8b", "gpu": "rtx4090", "devices": 2, "lora": 16, "quantization": "nf4"}
    full, none = (compare(asked(sharding=how, **words), among=[MEETS]).rows[0] for how in ("full", "none"))
    assert none.makespan_seconds < full.makespan_seconds
    advice = advise(LENGTHS, "llama-3.1-8b", gpus="rtx4090", devices=2, global_batch=8, lora=16, quantization="nf4",
                    price=0.4, minibatches=8)  # fmt: skip
    assert advice.rent.row.recipe.sharding == "none"
    assert advice.rent.row.memory_fits


def test_on_demand_shards_whatever_was_asked_for():
    rows = {row.pair: row for row in compare(asked(sharding="none")).rows}
    full = {row.pair: row for row in compare(asked(sharding="full")).rows}
    apart = ("lb-mini", "on-demand")
    assert rows[apart].recipe.sharding == "full"
    assert rows[apart].makespan_seconds == full[apart].makespan_seconds
    assert rows[apart].memory_bytes == full[apart].memory_bytes
    assert rows[MEETS].recipe.sharding == "none"
    assert rows[MEETS].memory_bytes > full[MEETS].memory_bytes


@pytest.mark.parametrize(
    ("trainer", "said", "unsaid"),
    [
        ("trl", "--multi_gpu", "--use_fsdp"),
        ("accelerate", "--multi_gpu", "--use_fsdp"),
        ("axolotl", "micro_batch_size", "fsdp"),
        ("llamafactory", "--multi_gpu", "--use_fsdp"),
        ("torchtitan", "--parallelism.data_parallel_replicate_degree 4", "data_parallel_shard_degree 4"),
    ],
)
def test_trainers_are_started_without_shards(trainer, said, unsaid):
    kept = {"optimizer": "pure"} if trainer == "axolotl" else {}  # whose weights and moments are in bf16 then
    asked_for = asked(sharding="none", trainer=trainer, model="Qwen/Qwen3-0.6B", minibatch=16, **kept)
    text = flags(trainer, compare(asked_for))
    assert said in str(text)
    assert unsaid not in str(text)


@pytest.mark.parametrize("words", [{"trainer": "verl"}, {"context": 2}])
def test_who_cannot_is_told_what_to_leave_out(words):
    with pytest.raises(InputError) as refused:
        compare(asked(sharding="none", **words))
    assert refused.value.fix

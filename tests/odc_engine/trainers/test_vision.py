"""Models that see, over samples of which few have an image: gradients are those of one process, on ranks that have run
the vision tower and on those that have not."""

from functools import partial

import pytest
from losses import followed
from losses.kind import Kind
from tiny_vision import (
    SEEN,
    TOWER_ALONE,
    Collate,
    Pictures,
    llava,
    llavas_processor,
    qwen,
    qwen3,
    qwens_processor,
    seen_alone,
    told,
)
from trl import SFTConfig, SFTTrainer

pytestmark = pytest.mark.slow

LAYERS = {
    "qwen": "Qwen2_5_VLDecoderLayer,Qwen2_5_VLVisionBlock",
    "qwen3": "Qwen3VLTextDecoderLayer,Qwen3VLVisionBlock",
    "llava": "LlamaDecoderLayer,CLIPEncoderLayer",
}
USUAL = {"remove_unused_columns": False, "train_sampling_strategy": "sequential"}


def dearly(_, dataset, lengths):
    """An image is more than all texts."""
    return [length + 1000.0 * bool(dataset[i]["images"]) for i, length in enumerate(lengths)]


def seeing(model, family, layers, **changed):
    given = {"data": partial(Pictures, family), "collate": Collate(family), "layer": LAYERS[layers]}
    return Kind(**{"model": model, "arguments": USUAL, "limits": (40, 480)} | given | changed)


def tuned(model, family, processor, **more):
    """By TRL, with its own collate function."""
    given = {"trainer": SFTTrainer, "config": SFTConfig, "collate": None, "said": {"costs": dearly}}
    given |= {"data": partial(told, family), "arguments": USUAL | {"bf16": False, "max_length": None}}
    return seeing(model, family, family, **given, more=lambda: {"processing_class": processor(), **more})


ALONE = "adapters in the tower alone"
KINDS = {
    "Qwen2.5-VL": seeing(qwen, "qwen", "qwen"),
    "Qwen3-VL": seeing(qwen3, "qwen", "qwen3"),
    "LLaVA": seeing(llava, "llava", "llava"),
    ALONE: seeing(seen_alone, "qwen", "qwen"),
    "SFTTrainer, Qwen2.5-VL": tuned(qwen, "qwen", qwens_processor),
    "SFTTrainer, LLaVA": tuned(llava, "llava", llavas_processor),
    "SFTTrainer, adapters in the tower alone": tuned(qwen, "qwen", qwens_processor, peft_config=TOWER_ALONE),
}


def stepped(rank, folder, name):
    kind = KINDS[name]
    return [followed.told(rank, folder, kind, limit) for limit in kind.limits]


@pytest.mark.parametrize("name", KINDS)
def test_gradients_are_those_of_one_process_though_one_device_alone_sees(pools, tmp_path, name):
    kind = KINDS[name]
    for ran in zip(*pools(2).run(stepped, tmp_path, name, timeout=300.0), strict=True):
        assert not any(isinstance(step, str) for step in ran), ran
        one, other = ran
        assert followed.apart(one.gradient, followed.in_one_process(tmp_path, kind, ran)) < kind.bound
        assert followed.apart(one.gradient, other.gradient) == 0
        assert sorted(one.places + other.places) == [*range(8)]
        assert not any("lengths" in words for step in ran for words in step.told)
        assert any("depends on no trainable parameter" in words for words in other.told + one.told) == (name == ALONE)
        if kind.said:
            assert [SEEN[0]] in (one.places, other.places)

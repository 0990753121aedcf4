"""Tiny models that see, over the classes, processors and image processors that real ones have; and texts, few of which
have an image. torchvision is not needed: images are prepared by PIL."""

from io import BytesIO
from typing import Any

import numpy as np
import torch
import transformers as hf
from datasets import Dataset, DatasetInfo, Features, Image, List, Value
from datasets.table import InMemoryTable
from peft import LoraConfig, get_peft_model
from PIL import Image as Picture
from tiny_trainers import IGNORED
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor, nn
from torch.utils import data
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

SPECIAL = ["<pad>", "<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>", "<image>"]
WORDS = 50
IDS = {f"{name}_token_id": i for i, name in enumerate(("image", "video", "vision_start", "vision_end"), 1)}
TEXT = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "vocab_size": WORDS}
TEXT |= {"num_attention_heads": 4, "num_key_value_heads": 2, "bos_token_id": None, "eos_token_id": None}
TOWER = {"depth": 2, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "out_hidden_size": 32}
TOWER |= {"patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2}
TOWER_ALONE = LoraConfig(r=4, target_modules=r".*visual\.blocks\..*\.(qkv|proj)")


def _rope(*sections: int, **more: Any) -> dict[str, Any]:
    own = {"rope_type": "default", "mrope_section": sections, "rope_theta": 1e4}
    return {"rope_parameters": own | more}


def qwen() -> nn.Module:
    torch.manual_seed(0)
    tower = TOWER | {"fullatt_block_indexes": [1], "window_size": 56}
    text = TEXT | _rope(1, 1, 2)
    return hf.Qwen2_5_VLForConditionalGeneration(hf.Qwen2_5_VLConfig(vision_config=tower, text_config=text, **IDS))


def qwen3() -> nn.Module:
    """Whose tower reaches into layers of the text model."""
    torch.manual_seed(0)
    tower = TOWER | {"deepstack_visual_indexes": [0], "num_position_embeddings": 16}
    text = TEXT | {"head_dim": 8} | _rope(2, 1, 1, mrope_interleaved=True)
    return hf.Qwen3VLForConditionalGeneration(hf.Qwen3VLConfig(vision_config=tower, text_config=text, **IDS))


def llava() -> nn.Module:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
    tower = {"model_type": "clip_vision_model", "image_size": 28, "patch_size": 14, "projection_dim": 32} | sizes
    text = {"model_type": "llama"} | TEXT
    sized = {"vision_config": tower, "text_config": text, "image_token_index": 5, "image_seq_length": 4}
    return hf.LlavaForConditionalGeneration(hf.LlavaConfig(**sized))


def seen_alone() -> nn.Module:
    """Adapters in the tower, and nowhere else."""
    return get_peft_model(qwen(), TOWER_ALONE)


def _tokenizer() -> hf.PreTrainedTokenizerFast:
    known = {word: i for i, word in enumerate([*SPECIAL, *map(str, range(len(SPECIAL), WORDS))])}
    words = Tokenizer(models.WordLevel(known, unk_token="<pad>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    named = {"pad_token": "<pad>", "eos_token": str(WORDS - 1), "additional_special_tokens": SPECIAL[1:]}
    return hf.PreTrainedTokenizerFast(tokenizer_object=words, **named)


class _WithoutVideos(hf.Qwen2_5_VLProcessor):
    """What prepares videos is made of torchvision."""

    def check_argument_for_proper_class(self, name: str, argument: Any) -> Any:
        return None if name == "video_processor" else super().check_argument_for_proper_class(name, argument)


def qwens_processor() -> hf.ProcessorMixin:
    """An image of 28 x 28 pixels is one token."""
    sizes = {"shortest_edge": 28 * 28, "longest_edge": 28 * 28 * 16}
    return _WithoutVideos(image_processor=Qwen2VLImageProcessorPil(size=sizes), tokenizer=_tokenizer())


def llavas_processor() -> hf.ProcessorMixin:
    """An image of any size is four tokens."""
    images = CLIPImageProcessorPil(size={"shortest_edge": 28}, crop_size={"height": 28, "width": 28})
    how = {"patch_size": 14, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1}
    return hf.LlavaProcessor(image_processor=images, tokenizer=_tokenizer(), image_token="<image>", **how)


MARKS = {"qwen": "<|vision_start|> <|image_pad|> <|vision_end|>", "llava": "<image>"}
PROCESSORS = {"qwen": qwens_processor, "llava": llavas_processor}
COUNT, SEEN = 16, (2, 9, 11)  # samples, and those with an image: one of the first minibatch


class Pictures(data.Dataset):
    """Texts of unlike lengths; those that have an image tell of it behind their first word."""

    def __init__(self, family: str) -> None:
        rng = np.random.default_rng(3)
        self.every = []
        for place, length in enumerate(rng.integers(3, 30, COUNT).tolist()):
            words = [str(word) for word in rng.integers(len(SPECIAL), WORDS - 1, length)]
            sides = 28 * rng.integers(1, 5, 2)
            images = [Picture.fromarray(rng.integers(0, 255, (*sides, 3), dtype=np.uint8))] if place in SEEN else []
            text = " ".join([words[0], *[MARKS[family] for _ in images], *words[1:]])
            self.every.append({"text": text, "images": images})

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, i: int) -> dict[str, Any]:
        return dict(self.every[i])


class Collate:
    """As one writes it for a `Trainer`."""

    def __init__(self, family: str) -> None:
        self.processor = PROCESSORS[family]()

    def __call__(self, samples: list[dict[str, Any]]) -> dict[str, Tensor]:
        images, text = ([one[name] for one in samples] for name in ("images", "text"))
        how = {"padding": True, "padding_side": "right", "return_tensors": "pt"}
        made = self.processor(images=images if any(images) else None, text=text, **how)
        made["labels"] = made["input_ids"].masked_fill(made["attention_mask"] == 0, IGNORED)
        return dict(made)


def told(family: str) -> Any:
    """The same, as TRL wants them."""
    every = Pictures(family).every
    columns = {"text": [one["text"] for one in every], "images": [list(map(_encoded, one["images"])) for one in every]}
    features = Features({"text": Value("string"), "images": List(Image())})
    table = InMemoryTable.from_pydict(columns).cast(features.arrow_schema)
    return Dataset(table, info=DatasetInfo(features=features), fingerprint=family)


def _encoded(image: Any) -> dict[str, Any]:
    image.save(kept := BytesIO(), "PNG")
    return {"bytes": kept.getvalue(), "path": None}

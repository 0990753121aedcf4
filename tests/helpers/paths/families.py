"""Tiny models of transformers' own classes, and what one microbatch of each is made of: text, and images or recordings
in it. Random weights, in fp64: what is compared is who moves which bytes, not how sums round."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

WORDS, MARK, BEHIND = 64, 60, 61  # token MARK stands where an image is
WIDTH = 32
TEXT: dict[str, Any] = {"vocab_size": WORDS, "hidden_size": WIDTH, "intermediate_size": 48, "num_hidden_layers": 2}
TEXT |= {"num_attention_heads": 4, "num_key_value_heads": 2, "pad_token_id": 0, "max_position_embeddings": 256}
PATCHES = {"image_size": 8, "patch_size": 4}
TOWER: dict[str, Any] = {"hidden_size": WIDTH, "num_attention_heads": 4, "num_hidden_layers": 2}
SEED = 5

Batch = dict[str, Tensor]


@dataclass(frozen=True)
class Family:
    """`tower`: the module that only images go through; `units`: names of classes that are FSDP units; `seen`: what a
    batch has of so many images; `marks`: tokens that stand for one."""

    make: Callable[[], nn.Module]
    tower: str
    units: tuple[str, ...]
    seen: Callable[[int, torch.Generator], Batch]
    marks: int

    def fresh(self) -> nn.Module:
        torch.manual_seed(SEED)
        return self.make().double()

    def batch(self, images: int, draw: torch.Generator) -> Batch:
        text = torch.randint(1, MARK - 2, (int(torch.randint(6, 14, (1,), generator=draw)),), generator=draw)
        image = torch.tensor([MARK] * self.marks + [BEHIND])
        ids = torch.cat([text[:2], image.repeat(images), text[2:]])[None]
        seen = self.seen(images, draw) if images else {}
        if "image_grid_thw" in seen:
            seen["mm_token_type_ids"] = (ids == MARK).long()
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids)} | seen


def llava(tower_inner: int = 40, text_inner: int = 48) -> nn.Module:
    from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration

    heads = {"num_key_value_heads": 4, "intermediate_size": text_inner}
    tower = CLIPVisionConfig(**TOWER | {"num_hidden_layers": 3, "intermediate_size": tower_inner}, **PATCHES)
    text = LlamaConfig(**TEXT | heads)
    config = LlavaConfig(vision_config=tower, text_config=text, image_token_index=MARK, image_seq_length=4)
    return LlavaForConditionalGeneration(config)


def gemma3() -> nn.Module:
    from transformers import Gemma3Config, Gemma3ForConditionalGeneration, Gemma3TextConfig, SiglipVisionConfig

    text = Gemma3TextConfig(**TEXT, head_dim=8, query_pre_attn_scalar=8, sliding_window=16)
    tower = SiglipVisionConfig(**TOWER, intermediate_size=40, vision_use_head=False, **PATCHES)
    ends = {"boi_token_index": MARK - 2, "eoi_token_index": MARK - 1, "image_token_index": MARK}
    config = Gemma3Config(text_config=text, vision_config=tower, mm_tokens_per_image=4, **ends)
    return Gemma3ForConditionalGeneration(config)


def internvl() -> nn.Module:
    from transformers import InternVLConfig, InternVLForConditionalGeneration, InternVLVisionConfig, Qwen2Config

    sizes = {"image_size": [16, 16], "patch_size": [4, 4]}
    tower = InternVLVisionConfig(**TOWER, intermediate_size=40, **sizes)
    text = Qwen2Config(**TEXT)
    config = InternVLConfig(vision_config=tower, text_config=text, image_token_id=MARK, image_seq_length=4)
    return InternVLForConditionalGeneration(config)


def qwen2_5_vl() -> nn.Module:
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    sizes = {"depth": 2, "hidden_size": WIDTH, "num_heads": 4, "intermediate_size": 40, "out_hidden_size": WIDTH}
    tower = sizes | {"patch_size": 4, "window_size": 16, "fullatt_block_indexes": [1]}
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]}
    config = Qwen2_5_VLConfig(text_config=TEXT | {"rope_parameters": rope}, vision_config=tower, image_token_id=MARK)
    return Qwen2_5_VLForConditionalGeneration(config)


def qwen3_vl() -> nn.Module:
    from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

    sizes = {"depth": 2, "hidden_size": WIDTH, "num_heads": 4, "intermediate_size": 40, "out_hidden_size": WIDTH}
    tower = sizes | {"patch_size": 4, "num_position_embeddings": 16, "deepstack_visual_indexes": [0]}
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]}
    text = TEXT | {"head_dim": 8, "rope_parameters": rope}
    config = Qwen3VLConfig(text_config=text, vision_config=tower, image_token_id=MARK)
    return Qwen3VLForConditionalGeneration(config)


def qwen2_audio() -> nn.Module:
    from transformers import Qwen2AudioConfig, Qwen2AudioEncoderConfig, Qwen2AudioForConditionalGeneration, Qwen2Config

    sizes = {"d_model": WIDTH, "encoder_layers": 2, "encoder_attention_heads": 4, "encoder_ffn_dim": 40}
    tower = Qwen2AudioEncoderConfig(**sizes, num_mel_bins=8, max_source_positions=16)
    config = Qwen2AudioConfig(audio_config=tower, text_config=Qwen2Config(**TEXT), audio_token_index=MARK)
    return Qwen2AudioForConditionalGeneration(config)


def voxtral() -> nn.Module:
    from transformers import LlamaConfig, VoxtralConfig, VoxtralEncoderConfig, VoxtralForConditionalGeneration

    tower = VoxtralEncoderConfig(**TOWER, intermediate_size=4 * WIDTH, num_mel_bins=8, max_source_positions=16)
    config = VoxtralConfig(audio_config=tower, text_config=LlamaConfig(**TEXT), audio_token_id=MARK)
    return VoxtralForConditionalGeneration(config)


def _pictures(images: int, draw: torch.Generator, side: int = 8) -> Batch:
    return {"pixel_values": _drawn(draw, images, 3, side, side)}


def _patch_rows(images: int, draw: torch.Generator) -> Batch:
    """As Qwen's processors give them: 4 x 4 patches of each image, of which each 2 x 2 come to one token."""
    pixels = _drawn(draw, 16 * images, 3 * 2 * 4 * 4)
    return {"pixel_values": pixels, "image_grid_thw": torch.tensor([[1, 4, 4]] * images)}


def _recordings(images: int, draw: torch.Generator, masked: bool = False) -> Batch:
    mask = {"feature_attention_mask": torch.ones(images, 32, dtype=torch.long)} if masked else {}
    return {"input_features": _drawn(draw, images, 8, 32)} | mask


def _drawn(draw: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=draw, dtype=torch.float64)


CLIP_BLOCKS = ("CLIPEncoderLayer", "LlamaDecoderLayer")
LLAVA = Family(llava, "model.vision_tower", CLIP_BLOCKS, _pictures, 4)
# A block of its tower has as many parameters as one of its language model.
ALIKE = replace(LLAVA, make=partial(llava, tower_inner=32, text_inner=24))
GEMMA3 = Family(gemma3, "model.vision_tower", ("SiglipEncoderLayer", "Gemma3DecoderLayer"), _pictures, 4)
INTERN_BLOCKS = ("InternVLVisionLayer", "Qwen2DecoderLayer")
INTERNVL = Family(internvl, "model.vision_tower", INTERN_BLOCKS, partial(_pictures, side=16), 4)
QWEN2_5_VL = Family(qwen2_5_vl, "model.visual", ("Qwen2_5_VLVisionBlock", "Qwen2_5_VLDecoderLayer"), _patch_rows, 4)
QWEN3_VL = Family(qwen3_vl, "model.visual", ("Qwen3VLVisionBlock", "Qwen3VLTextDecoderLayer"), _patch_rows, 4)
AUDIO_BLOCKS = ("Qwen2AudioEncoderLayer", "Qwen2DecoderLayer")
QWEN2_AUDIO = Family(qwen2_audio, "model.audio_tower", AUDIO_BLOCKS, partial(_recordings, masked=True), 8)
VOXTRAL = Family(voxtral, "model.audio_tower", ("VoxtralEncoderLayer", "LlamaDecoderLayer"), _recordings, 4)

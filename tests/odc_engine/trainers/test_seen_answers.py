"""Answers to images: each goes with its own, however they are dealt, and GRPO learns what it learns stock."""

import inspect
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from datasets import Dataset
from PIL import Image
from tiny_trainers import FSDP, arguments, both, outcome
from tiny_vision import PROCESSORS, llava, qwen
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer

from odc_engine.trainers import OnDemandRollouts, refusals
from odc_engine.trainers.answers import facts_of, padded, unpadded
from odc_engine.trainers.images import apart
from odcsim.errors import InputError

pytestmark = pytest.mark.slow

PAD = 7
PROMPTS, COMPLETIONS, IMAGES = (3, 1, 4, 2), (2, 5, 1, 3), (1, 0, 3, 1)


def batch(layout, seed=0, images=IMAGES):
    """As TRL has it. Every value is another one, so that none can stand for another."""
    draw = np.random.default_rng(seed)
    widths = max(PROMPTS), max(COMPLETIONS)
    sides = [
        torch.tensor([[0] * (widths[0] - n) + [1] * n for n in PROMPTS]),
        torch.tensor([[1] * n + [0] * (widths[1] - n) for n in COMPLETIONS]),
    ]
    made = {
        f"{name}_ids": torch.from_numpy(draw.permutation(mask.numel()).reshape(mask.shape)) * mask + PAD * (1 - mask)
        for name, mask in zip(("prompt", "completion"), sides, strict=True)
    }
    made |= {"prompt_mask": sides[0], "completion_mask": sides[1], "advantages": torch.from_numpy(draw.random(4))}
    return made | (LAYOUTS[layout](draw, [*images]) | {"num_images": [*images]} if any(images) else {})


def numbers(draw, *shape):
    return torch.from_numpy(draw.random(shape)) + 1


def grid(draw, images):
    sizes = torch.from_numpy(draw.integers(1, 4, (sum(images), 3)))
    types = torch.from_numpy(draw.integers(0, 2, (4, max(PROMPTS)))) * batch_mask()
    types = torch.cat([types, torch.zeros(4, max(COMPLETIONS), dtype=types.dtype)], 1)
    return {
        "pixel_values": numbers(draw, int(sizes.prod(1).sum()), 6),
        "image_grid_thw": sizes,
        "mm_token_type_ids": types,
    }


def batch_mask():
    return torch.tensor([[0] * (max(PROMPTS) - n) + [1] * n for n in PROMPTS])


def tiled(draw, images):
    tiles = [2 * count for count in images]
    return {"pixel_values": numbers(draw, sum(tiles), 3, 2, 2), "num_tiles": tiles}


def shaped(draw, images):
    tiles = [3 * count for count in images]
    masks = {"pixel_attention_mask": numbers(draw, sum(tiles), 5), "spatial_shapes": numbers(draw, sum(tiles), 2)}
    return {"pixel_values": numbers(draw, sum(tiles), 5, 6), "num_tiles": tiles} | masks


LAYOUTS = {
    "a row for each patch": grid,
    "a row for each image": lambda draw, images: {
        "pixel_values": numbers(draw, sum(images), 3, 2, 2), "image_sizes": numbers(draw, sum(images), 2)
    },
    "a row for each image, with places": lambda draw, images: {
        "pixel_values": numbers(draw, sum(images), 5, 6), "image_position_ids": numbers(draw, sum(images), 5, 2)
    },
    "a row for each tile": tiled,
    "a row for each tile, with shapes": shaped,
    "a row for each answer": lambda draw, images: {
        "pixel_values": numbers(draw, 4, max(images), 3, 2, 2),
        "pixel_attention_mask": numbers(draw, 4, max(images), 2, 2),
    },
}  # fmt: skip


def given(answers):
    """What TRL gives a model of each answer, in the order of answers."""
    found = []

    def model(input_ids, attention_mask, labels, fused_lm_head, **seen):
        del labels, fused_lm_head
        kept = attention_mask[0].bool()
        rows = {name: value[0][kept] if "type_ids" in name else value for name, value in seen.items()}
        found.append({"input_ids": input_ids[0][kept]} | rows)
        return SimpleNamespace(log_probs=torch.zeros_like(input_ids))

    own = SimpleNamespace(accelerator=SimpleNamespace(autocast=nullcontext))
    sides = [torch.cat([answers[f"prompt_{name}"], answers[f"completion_{name}"]], 1) for name in ("ids", "mask")]
    others = {name: v for name, v in answers.items() if not name.startswith(("prompt_", "completion_", "advantages"))}
    inspect.unwrap(GRPOTrainer._get_per_token_logps_and_entropies)(own, model, *sides, 1, batch_size=1, **others)
    return found


def same(one, other):
    """No image, or rows of none, are the same."""
    names = {name for seen in (one, other) for name, value in seen.items() if value.numel()}
    return all(name in one and name in other and torch.equal(one[name], other[name]) for name in names)


CUTS = ([[0, 1, 2, 3]], [[2, 0], [3, 1]], [[1], [3, 2, 0]], [[0], [1], [2], [3]])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_model_sees_the_same_of_each_answer_however_they_are_dealt(layout):
    answers = batch(layout)
    expected, rows = given(answers), unpadded(apart(answers))
    for cut in CUTS:
        for part in cut:
            for place, found in zip(part, given(padded([rows[i] for i in part], PAD)), strict=True):
                if IMAGES[place] or layout != "a row for each answer":  # there, padding is what is seen of no image
                    assert same(found, expected[place]), (cut, place)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_answers_of_a_device_without_images_may_lie_beside_them(layout):
    seen, blind = batch(layout), batch(layout, 1, (0, 0, 0, 0))
    rows = [unpadded(apart(answers)) for answers in (seen, blind)]
    found = given(padded([rows[1][1], rows[0][2], rows[1][3], rows[1][0]], PAD))
    assert same(found[1], given(seen)[2])
    assert all(torch.equal(found[i]["input_ids"], given(blind)[place]["input_ids"]) for i, place in ((0, 1), (2, 3)))
    assert facts_of(apart(seen)) == facts_of(apart(blind))


def test_images_of_unlike_sizes_lie_as_if_padded_together():
    rows = [unpadded(apart(batch("a row for each image", seed)))[0] for seed in (0, 1)]
    rows[1]["pixel_values"].rows.resize_(1, 3, 1, 4)
    whole = padded(rows, PAD)["pixel_values"]
    assert whole.shape == (2, 3, 2, 4)
    assert torch.equal(whole[1, :, :1], rows[1]["pixel_values"].rows[0])
    assert not whole[1, :, 1:].any()


STRANGE = [{"patches": torch.ones(6, 2)}, {"more": {}}]


@pytest.mark.parametrize("more", STRANGE, ids=["rows", "a dict"])
def test_what_has_no_row_for_each_answer_is_refused(more):
    with pytest.raises(InputError):
        refusals.check_answers(apart(batch("a row for each patch") | more))


def test_rows_of_unlike_shape_are_refused():
    rows = [unpadded(batch("a row for each tile") | {"scores": torch.ones(4, width)})[0] for width in (6, 7)]
    with pytest.raises(InputError):
        padded(rows, PAD)


@pytest.mark.parametrize("other", [{}, {"scale": "0.5"}])
def test_what_is_not_alike_on_all_ranks_is_refused(other):
    refusals.check_alike([{"scale": "0.25"}] * 2)
    with pytest.raises(InputError):
        refusals.check_alike([{"scale": "0.25"}, other])


TEMPLATE = (
    "{% for message in messages %}{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}{% if part['type'] == 'image' %}MARK {% else %}{{ part['text'] }} {% endif %}"
    "{% endfor %}{% endif %}{% endfor %}"
)
FAMILIES = {
    "qwen": (qwen, "<|vision_start|> <|image_pad|> <|vision_end|>", "Qwen2_5_VLDecoderLayer,Qwen2_5_VLVisionBlock"),
    "llava": (llava, "<image>", "LlamaDecoderLayer"),
}


def processor(family):
    own = PROCESSORS[family]()
    own.chat_template = TEMPLATE.replace("MARK", FAMILIES[family][1])
    own.tokenizer.padding_side = "left"
    return own


def prompts(count):
    draw = np.random.default_rng(3)
    rows = []
    for place in range(count):
        sides = [28 * draw.integers(1, 4, 2) for _ in range(1 + place % 2)]
        images = [Image.fromarray(draw.integers(0, 255, (*side, 3), dtype=np.uint8)) for side in sides]
        text = " ".join(map(str, draw.integers(6, 49, draw.integers(3, 10))))
        rows.append({"prompt": [{"role": "user", "content": text}], "images": images})
    return Dataset.from_list(rows)


def reward(completions, **_):
    return [float(len(set(one[0]["content"].split()))) for one in completions]


def rewarded(rank, folder, family, trainer, config):
    """What a step makes of a model, and of which answers, as TRL has made them."""
    model, _, layers = FAMILIES[family]
    usual = {"learning_rate": RATE, "optim": "sgd", "bf16": False, "max_steps": 1, "num_generations": 2, "beta": 0.0}
    fsdp = {"fsdp_config": FSDP | {"transformer_layer_cls_to_wrap": layers}, "lr_scheduler_type": "constant"}
    own = arguments(rank, folder, config, **usual | fsdp | {"max_completion_length": 12})
    data = {"train_dataset": prompts(8), "processing_class": processor(family)}
    kind = type("OnDemand", (OnDemandRollouts, trainer), {"max_tokens": 64})
    made, answers = kind(model=model(), reward_funcs=reward, args=own, **data), []
    generate = made._generate_and_score_completions
    made._generate_and_score_completions = lambda inputs: answers.append(generate(inputs)) or answers[0]
    made.train()
    return outcome(made), answers[0]


RATE = 0.1
MODES = {"qwen": (GRPOTrainer, GRPOConfig), "llava": (RLOOTrainer, RLOOConfig)}
SEEN = ("pixel_values", "image_grid_thw", "mm_token_type_ids")


def loss_of(model, answers):
    """The sum over answers of what each one's tokens count."""
    ids, mask = (torch.cat([answers[f"prompt_{name}"], answers[f"completion_{name}"]], 1) for name in ("ids", "mask"))
    seen = {name: answers[name] for name in SEEN if name in answers}
    tokens = answers["completion_ids"]
    logits = model(input_ids=ids, attention_mask=mask, **seen).logits[:, -tokens.shape[1] - 1 : -1]
    logps = logits.log_softmax(-1).gather(2, tokens[..., None])[..., 0] * answers["completion_mask"]
    return -(logps.sum(1) * answers["advantages"]).sum()


@pytest.mark.parametrize("family", MODES)
def test_a_step_is_that_of_one_process(pools, tmp_path, family):
    steps = both(pools, rewarded, tmp_path, family, *MODES[family])
    every = [answers for _, answers in steps]
    counted = sum(len(one["advantages"]) if family == "llava" else int(one["completion_mask"].sum()) for one in every)
    model = FAMILIES[family][0]()
    (sum(loss_of(model, answers) for answers in every) / counted).backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item()
    assert norm > 0.1
    expected = {name: p.detach() - (0 if p.grad is None else RATE * p.grad) for name, p in model.named_parameters()}
    for trained, _ in steps:
        assert trained.column("grad_norm") == pytest.approx([norm], rel=1e-4)
        assert max((own - expected[name]).abs().max().item() for name, own in trained.weights.items()) < 1e-6

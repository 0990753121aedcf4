"""Answers to images: each goes with its own, however they are dealt, and GRPO learns what it learns stock."""

import inspect
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from datasets import Dataset
from PIL import Image
from tiny_mixed import mixed, reward
from tiny_trainers import FSDP, arguments, both, outcome
from tiny_vision import PROCESSORS, llava, qwen
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer

from odc_engine.trainers import refusals
from odc_engine.trainers.answers import facts_of, padded, unpadded
from odc_engine.trainers.images import apart
from odcsim.errors import InputError

pytestmark = pytest.mark.slow

PAD = 7
PROMPTS, COMPLETIONS, IMAGES = (3, 1, 4, 2), (2, 5, 1, 3), (1, 0, 3, 1)


ASKED = torch.tensor([[0] * (max(PROMPTS) - n) + [1] * n for n in PROMPTS])
ANSWERED = torch.tensor([[1] * n + [0] * (max(COMPLETIONS) - n) for n in COMPLETIONS])


def batch(layout, seed=0, images=IMAGES):
    """As TRL has it. Every value is another one, so that none can stand for another."""
    draw = np.random.default_rng(seed)
    made = {"prompt_mask": ASKED, "completion_mask": ANSWERED, "advantages": torch.from_numpy(draw.random(4))}
    for name, mask in (("prompt", ASKED), ("completion", ANSWERED)):
        ids = torch.from_numpy(draw.permutation(mask.numel()).reshape(mask.shape))
        made[f"{name}_ids"] = ids * mask + PAD * (1 - mask)
    return made | (LAYOUTS[layout](draw, [*images]) | {"num_images": [*images]} if any(images) else {})


def numbers(draw, *shape):
    return torch.from_numpy(draw.random(shape)) + 1


def patches(draw, images):
    sizes = torch.from_numpy(draw.integers(1, 4, (sum(images), 3)))
    types = torch.from_numpy(draw.integers(0, 2, ASKED.shape)) * ASKED
    seen = {"pixel_values": numbers(draw, int(sizes.prod(1).sum()), 6), "image_grid_thw": sizes}
    return seen | {"mm_token_type_ids": torch.cat([types, torch.zeros_like(ANSWERED)], 1)}


def rows(tiles=1, **shapes):
    """A row of each image, or of each of its tiles."""

    def layout(draw, images):
        own = [tiles * count for count in images]
        made = {name: numbers(draw, sum(own), *shape) for name, shape in shapes.items()}
        return made | ({"num_tiles": own} if tiles > 1 else {})

    return layout


def answers_rows(draw, images):
    shapes = {"pixel_values": (3, 2, 2), "pixel_attention_mask": (2, 2)}
    return {name: numbers(draw, 4, max(images), *shape) for name, shape in shapes.items()}


LAYOUTS = {
    "a row for each patch": patches,
    "a row for each image": rows(pixel_values=(3, 2, 2), image_sizes=(2,)),
    "a row for each image, with places": rows(pixel_values=(5, 6), image_position_ids=(5, 2)),
    "a row for each tile": rows(2, pixel_values=(3, 2, 2)),
    "a row for each tile, with shapes": rows(3, pixel_values=(5, 6), pixel_attention_mask=(5,), spatial_shapes=(2,)),
    "a row for each answer": answers_rows,
}


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
    expected, each = given(answers), unpadded(apart(answers))
    for cut in CUTS:
        for part in cut:
            for place, found in zip(part, given(padded([each[i] for i in part], PAD)), strict=True):
                if IMAGES[place] or layout != "a row for each answer":  # there, padding is what is seen of no image
                    assert same(found, expected[place]), (cut, place)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_answers_of_a_device_without_images_may_lie_beside_them(layout):
    seen, blind = batch(layout), batch(layout, 1, (0, 0, 0, 0))
    one, other = (unpadded(apart(answers)) for answers in (seen, blind))
    found = given(padded([other[1], one[2], other[3], other[0]], PAD))
    assert same(found[1], given(seen)[2])
    assert all(torch.equal(found[i]["input_ids"], given(blind)[place]["input_ids"]) for i, place in ((0, 1), (2, 3)))
    assert facts_of(apart(seen)) == facts_of(apart(blind))


def test_images_of_unlike_sizes_lie_as_if_padded_together():
    one, other = (unpadded(apart(batch("a row for each image", seed)))[0] for seed in (0, 1))
    other["pixel_values"].rows.resize_(1, 3, 1, 4)
    whole = padded([one, other], PAD)["pixel_values"]
    assert whole.shape == (2, 3, 2, 4)
    assert torch.equal(whole[1, :, :1], other["pixel_values"].rows[0])
    assert not whole[1, :, 1:].any()


def test_what_has_no_row_for_each_answer_or_rows_of_unlike_shape_or_is_not_alike_on_all_ranks_is_refused():
    for more in ({"patches": torch.ones(6, 2)}, {"more": {}}):
        with pytest.raises(InputError):
            refusals.check_answers(apart(batch("a row for each patch") | more))
    unlike = [unpadded(batch("a row for each tile") | {"scores": torch.ones(4, width)})[0] for width in (6, 7)]
    with pytest.raises(InputError):
        padded(unlike, PAD)
    refusals.check_alike([{"scale": "0.25"}] * 2)
    for other in ({}, {"scale": "0.5"}):
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


def rewards(completions, **_):
    return reward([one[0]["content"] for one in completions])


def rewarded(rank, folder, family, trainer, config):
    """What a step makes of a model, and of which answers, as TRL has made them."""
    model, _, layers = FAMILIES[family]
    usual = {"learning_rate": RATE, "optim": "sgd", "bf16": False, "max_steps": 1, "num_generations": 2, "beta": 0.0}
    fsdp = {"fsdp_config": FSDP | {"transformer_layer_cls_to_wrap": layers}, "lr_scheduler_type": "constant"}
    own = arguments(rank, folder, config, **usual | fsdp | {"max_completion_length": 12})
    data = {"train_dataset": prompts(8), "processing_class": processor(family)}
    kind = mixed("answers", trainer)
    made, answers = kind(model=model(), reward_funcs=rewards, args=own, **data), []
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

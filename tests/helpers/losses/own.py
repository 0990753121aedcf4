# ruff: noqa: ARG002 - arguments that a Trainer gives, whether a loss wants them or not
"""Losses of one's own, as people write them in `compute_loss`, `compute_loss_func` and `training_step`."""

from typing import Any

import torch
from tiny_trainers import llama
from torch import Tensor, nn
from torch.nn import functional
from transformers import Trainer

from losses import nets
from losses.kind import Kind, of_bert
from losses.samples import IGNORED, Samples, named, spoken

CLASSES = named(lambda _, rng: int(rng.integers(3)))
ALL_KEYS = {"remove_unused_columns": False}
WEIGHTS = torch.tensor([1.0, 2.0, 0.5])


def each_token(logits: Tensor, labels: Tensor) -> Tensor:
    """The loss of every token that the one before it has to tell; 0 where nothing is counted."""
    flat = logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
    return functional.cross_entropy(*flat, ignore_index=IGNORED, reduction="none").view(len(labels), -1)


class Own(Trainer):
    """`compute_loss` that is `loss_of` a model's answers."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        loss = self.loss_of(outputs.logits, labels, inputs, num_items_in_batch)
        return (loss, outputs) if return_outputs else loss

    def loss_of(self, logits: Tensor, labels: Tensor, inputs: Any, items: Any) -> Tensor:
        raise NotImplementedError


class Added(Trainer):
    """`compute_loss` that adds `more` to what it is without."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        loss = loss + self.more(model, outputs.logits, inputs, num_items_in_batch)
        return (loss, outputs) if return_outputs else loss

    def more(self, model: nn.Module, logits: Tensor, inputs: Any, items: Any) -> Tensor:
        raise NotImplementedError


class OverTokens(Own):
    def loss_of(self, logits, labels, inputs, items):
        return each_token(logits, labels).sum() / (labels[:, 1:] != IGNORED).sum()


class OverSamples(Own):
    def loss_of(self, logits, labels, inputs, items):
        return (each_token(logits, labels).sum(1) / (labels[:, 1:] != IGNORED).sum(1)).mean()


class OverAllTokens(Own):
    """Also over those that no label counts."""

    def loss_of(self, logits, labels, inputs, items):
        return each_token(logits, labels).sum() / inputs["attention_mask"].sum()


class Summed(Own):
    def loss_of(self, logits, labels, inputs, items):
        return each_token(logits, labels).sum()


class Divided(Own):
    """As `Trainer` wants it."""

    def loss_of(self, logits, labels, inputs, items):
        return each_token(logits, labels).sum() / items


class WeightedSamples(Own):
    """A weight comes with each sample."""

    def loss_of(self, logits, labels, inputs, items):
        return (self.weights * each_token(logits, labels).sum(1)).mean()

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        self.weights = inputs.pop("weight")
        return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)


class OverWeights(WeightedSamples):
    def loss_of(self, logits, labels, inputs, items):
        return (self.weights * each_token(logits, labels).sum(1)).sum() / self.weights.sum()


class TwoMeans(Own):
    def loss_of(self, logits, labels, inputs, items):
        each, counted = each_token(logits, labels), labels[:, 1:] != IGNORED
        return each.sum() / counted.sum() + (each.sum(1) / counted.sum(1)).mean()


class Penalized(Added):
    """A penalty on weights, gathered for it."""

    def more(self, model, logits, inputs, items):
        return 1e-2 * sum(whole(p).pow(2).sum() for p in model.parameters())


class PenalizedParts(Added):
    """A penalty on this device's part of the weights."""

    def more(self, model, logits, inputs, items):
        parts = [p.to_local() if hasattr(p, "to_local") else p for p in model.parameters()]
        return 1e-2 * sum(part.pow(2).sum() for part in parts)


def whole(parameter: Tensor) -> Tensor:
    return parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter


class PenalizedMean(Added):
    """A penalty that is the same in every batch: of the one token that all samples begin with."""

    def more(self, model, logits, inputs, items):
        return 0.1 * logits[:, 0].pow(2).mean()


class Distilled(Own):
    """From a teacher that is never trained."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.teacher = llama().requires_grad_(requires_grad=False)
        self.teacher.get_output_embeddings().weight.data *= 20  # that it knows something

    def loss_of(self, logits, labels, inputs, items):
        with torch.no_grad():
            taught = self.teacher(**inputs).logits
        counted = labels != IGNORED
        own, its = functional.log_softmax(logits[counted], -1), functional.log_softmax(taught[counted], -1)
        return functional.kl_div(own, its, reduction="batchmean", log_target=True)


def far(logits: Tensor, inputs: Any) -> Tensor:
    """PaLM's z-loss, of each token that is counted."""
    return 1e-2 * logits[:, :-1].logsumexp(-1).pow(2)[inputs["labels"][:, 1:] != IGNORED]


class ZLoss(Added):
    def more(self, model, logits, inputs, items):
        return far(logits, inputs).mean()


class ZLossOfItems(Added):
    def more(self, model, logits, inputs, items):
        return far(logits, inputs).sum() / items


class TimesProcesses(Divided):
    """As recipes have it, since FSDP divides by the number of processes."""

    def loss_of(self, *given):
        return super().loss_of(*given) * self.accelerator.num_processes


class TimesWorldSize(Divided):
    def loss_of(self, *given):
        return super().loss_of(*given) * self.args.world_size


class PerBatch(OverTokens):
    """What TrainingArguments' page says of such a loss."""

    loss_is_scaled_for_ga = False


class Scaled(Divided):
    loss_is_scaled_for_ga = True


class Focal(Own):
    def loss_of(self, logits, labels, inputs, items):
        chance = functional.softmax(logits, -1).gather(1, labels[:, None])[:, 0]
        return (-((1 - chance) ** 2) * chance.log()).mean()


class WeightedClasses(Own):
    """A mean over the weights of labels, which is how torch has it."""

    def loss_of(self, logits, labels, inputs, items):
        return functional.cross_entropy(logits, labels, weight=WEIGHTS)


class WeightedClassesOverSamples(Own):
    def loss_of(self, logits, labels, inputs, items):
        return functional.cross_entropy(logits, labels, weight=WEIGHTS, reduction="sum") / len(labels)


class OneBackward(Trainer):
    def training_step(self, model, inputs, num_items_in_batch=None):
        model.train()
        inputs = self._prepare_inputs(inputs)
        loss = self.compute_loss(model, inputs, num_items_in_batch=num_items_in_batch)
        self.accelerator.backward(loss)
        return loss.detach()


class TwoBackwards(Trainer):
    """Two parts of a loss, one after the other."""

    def training_step(self, model, inputs, num_items_in_batch=None):
        model.train()
        inputs = self._prepare_inputs(inputs)
        loss, outputs = self.compute_loss(model, inputs, True, num_items_in_batch=num_items_in_batch)
        self.accelerator.backward(loss, retain_graph=True)
        far = 1e-3 * outputs.logits[inputs["labels"] != IGNORED].pow(2).sum() / num_items_in_batch
        self.accelerator.backward(far)
        return (loss + far).detach()


class Draws(Own):
    """Noise on logits, as one regularizes."""

    def loss_of(self, logits, labels, inputs, items):
        return each_token(logits + 0.1 * torch.randn_like(logits), labels).sum() / items


class Counting(Own):
    """Keeps a running mean of its losses and the number of them, here and in a buffer of the model."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.calls, self.noted, self.running = 0, {"losses": []}, torch.zeros(())
        self.model.register_buffer("seen", torch.zeros(()))

    def loss_of(self, logits, labels, inputs, items):
        self.calls += 1
        loss = each_token(logits, labels).sum() / items
        self.noted["losses"].append(loss.item())
        self.running = 0.9 * self.running + 0.1 * loss.detach()
        self.model.seen += 1
        return loss


def counts(trainer: Counting) -> tuple[int, int, int]:
    return trainer.calls, len(trainer.noted["losses"]), int(trainer.model.seen)


def by_items(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
    return each_token(outputs.logits, labels).sum() / num_items_in_batch


def without_items(outputs: Any, labels: Tensor, **_: Any) -> Tensor:
    return each_token(outputs.logits, labels).sum() / (labels[:, 1:] != IGNORED).sum()


def mean_of_classes(outputs: Any, labels: Tensor, **_: Any) -> Tensor:
    return functional.cross_entropy(outputs.logits, labels)


def weighted() -> Samples:
    data = spoken()
    for place, sample in enumerate(data.every):
        sample["weight"] = 1.0 + place % 3
    return data


def begun() -> Samples:
    """All samples begin with the same token."""
    data = spoken()
    for sample in data.every:
        sample["input_ids"] = [7, *sample["input_ids"][1:]]
    return data


def told_nothing() -> nn.Module:
    """As some fifty models of transformers are."""
    model = llama()
    model.accepts_loss_kwargs = False
    return model


EVERY = {
    "`compute_loss` returns a mean over tokens": Kind(OverTokens, limits=(64, 120, 480)),
    "`compute_loss` returns a mean over samples of means over tokens": Kind(OverSamples, limits=(64, 120, 480)),
    "`compute_loss` divides by all tokens, prompts included": Kind(OverAllTokens),
    "`compute_loss` returns a sum": Kind(Summed),
    "`compute_loss` divides by `num_items_in_batch`": Kind(Divided),
    "the same, times `self.accelerator.num_processes`": Kind(TimesProcesses),
    "the same, times `self.args.world_size`": Kind(TimesWorldSize),
    "`compute_loss` returns a mean, and `loss_is_scaled_for_ga = False`": Kind(PerBatch, limits=(64, 120, 480)),
    "`compute_loss` divides by `num_items_in_batch`, and `loss_is_scaled_for_ga = True`": Kind(Scaled),
    "`compute_loss_func` with `num_items_in_batch`": Kind(more=lambda: {"compute_loss_func": by_items}),
    "`compute_loss_func` that returns a mean over tokens": Kind(more=lambda: {"compute_loss_func": without_items}),
    "`compute_loss_func` that returns a mean over samples": of_bert(
        nets.bert, CLASSES, more=lambda: {"compute_loss_func": mean_of_classes}
    ),
    "a model whose `accepts_loss_kwargs` is `False`": Kind(model=told_nothing, limits=(64, 120, 480)),
    "`super().compute_loss`, and a penalty that is the same in every batch": Kind(PenalizedMean, data=begun),
    "`super().compute_loss`, and a penalty on weights by `full_tensor()`": Kind(Penalized),
    "`super().compute_loss`, and a penalty on weights by `to_local()`": Kind(PenalizedParts),
    "`super().compute_loss`, and a mean over tokens (z-loss)": Kind(ZLoss),
    "`super().compute_loss`, and a sum that is divided by `num_items_in_batch`": Kind(ZLossOfItems),
    "a mean over tokens and a mean over samples": Kind(TwoMeans),
    "focal loss, a mean over samples": of_bert(nets.bert, CLASSES, trainer=Focal),
    "class weights: `cross_entropy(..., weight=...)`, a mean over weights": of_bert(
        nets.bert, CLASSES, trainer=WeightedClasses
    ),
    "class weights, summed and divided by the number of samples": of_bert(
        nets.bert, CLASSES, trainer=WeightedClassesOverSamples
    ),
    "sample weights, a mean over samples": Kind(WeightedSamples, data=weighted, arguments=ALL_KEYS),
    "sample weights, divided by the sum of weights": Kind(OverWeights, data=weighted, arguments=ALL_KEYS),
    "distillation from a frozen teacher, a mean over tokens": Kind(Distilled),
    "a loss with random noise": Kind(Draws),
    "a loss that counts its calls, with a buffer": Kind(Counting, seen=counts, limits=(64,)),
    "`training_step` with `self.accelerator.backward`": Kind(OneBackward),
    "`training_step` with two calls of `self.accelerator.backward`": Kind(TwoBackwards),
}

# ruff: noqa: ARG002 - arguments that a Trainer gives, whether a loss wants them or not
"""Losses for which it matters which samples are in a batch together, and what meets other processes."""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from transformers import Trainer

from losses import nets
from losses.kind import Kind, of_bert
from losses.own import CLASSES, Own, each_token
from losses.samples import IGNORED


class Contrastive(Own):
    """Each sample is told from all others of its batch."""

    def loss_of(self, logits, labels, inputs, items):
        states = functional.normalize((logits * inputs["attention_mask"][..., None]).sum(1), dim=-1)
        alike = states @ functional.normalize(states.roll(1, -1), dim=-1).T
        return functional.cross_entropy(alike / 0.1, torch.arange(len(states)))


class Hardest(Own):
    """The worst sample of a batch alone."""

    def loss_of(self, logits, labels, inputs, items):
        return each_token(logits, labels).mean(1).max()


class Squared(Own):
    def loss_of(self, logits, labels, inputs, items):
        return (each_token(logits, labels).sum() / (labels[:, 1:] != IGNORED).sum()) ** 2


class Gathered(Own):
    def loss_of(self, logits, labels, inputs, items):
        loss = each_token(logits, labels).sum() / items
        self.means = self.accelerator.gather(loss.detach()).mean()
        return loss


class Reduced(Own):
    def loss_of(self, logits, labels, inputs, items):
        counted = self.accelerator.reduce((labels[:, 1:] != IGNORED).sum().float(), reduction="sum")
        return each_token(logits, labels).sum() / counted


class Nested(Trainer):
    """`gather_for_metrics` of this trainer's own, for what it logs."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        self.log_later = self.accelerator.gather_for_metrics(outputs.logits.detach().mean()).mean()
        return (loss, outputs) if return_outputs else loss


class AllReduced(Own):
    def loss_of(self, logits, labels, inputs, items):
        counted = (labels[:, 1:] != IGNORED).sum().float()
        dist.all_reduce(counted)
        return each_token(logits, labels).sum() / counted


class Barrier(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        dist.barrier()
        return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)


class Objects(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        told = [None] * dist.get_world_size()
        dist.all_gather_object(told, len(inputs["input_ids"]))
        return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)


class AsksTorch(Own):
    def loss_of(self, logits, labels, inputs, items):
        return each_token(logits, labels).sum() / items * dist.get_world_size()


class ByHand(Trainer):
    def training_step(self, model, inputs, num_items_in_batch=None):
        model.train()
        inputs = self._prepare_inputs(inputs)
        loss = self.compute_loss(model, inputs, num_items_in_batch=num_items_in_batch)
        loss.backward()
        return loss.detach()


class Normed(nn.Module):
    """A head that is normed over its batch."""

    def __init__(self, head: nn.Linear) -> None:
        super().__init__()
        self.norm, self.head = nn.BatchNorm1d(head.in_features), head

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(x))


def batch_normed() -> nn.Module:
    model = nets.of_bert()
    model.classifier = Normed(model.classifier)
    return model


EVERY = {
    "negatives of the same batch (contrastive)": Kind(Contrastive),
    "the worst sample of a batch": Kind(Hardest),
    "a mean, squared": Kind(Squared),
    "batch norm in a head": of_bert(batch_normed, CLASSES),
    "`self.accelerator.gather` in a loss": Kind(Gathered),
    "`self.accelerator.reduce` of what it divides by": Kind(Reduced),
    "`self.accelerator.gather_for_metrics` in a loss": Kind(Nested),
    "`dist.all_reduce` of what it divides by": Kind(AllReduced),
    "`dist.barrier` in a loss": Kind(Barrier),
    "`dist.all_gather_object` in a loss": Kind(Objects),
    "times `dist.get_world_size()`": Kind(AsksTorch),
    "`training_step` with `loss.backward()`": Kind(ByHand),
}

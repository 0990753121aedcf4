"""What models of transformers take for their loss."""

from tiny_trainers import adapted, llama

from losses import nets
from losses.kind import Kind, of_bert, of_llama
from losses.samples import IGNORED, all_as_long, masked_anew, named, numbered, spans, tags

classes = named(lambda _, rng: int(rng.integers(3)))
values = named(lambda _, rng: float(rng.normal()))
pairs_of_values = named(lambda _, rng: rng.normal(size=3).tolist())
many_labels = named(lambda _, rng: rng.integers(0, 2, 3).astype(float).tolist())


def one_label_all_ignored():
    """Of one sample in three nothing counts."""
    data = named(tags)()
    for sample in data.every[::3]:
        sample["labels"] = [IGNORED] * len(sample["labels"])
    return data


EVERY = {
    "a causal language model, unchanged": Kind(limits=(64, 120, 480)),
    "the same, where some samples have no token in the loss": Kind(data=one_label_all_ignored),
    "the same, with `label_smoothing_factor`": Kind(arguments={"label_smoothing_factor": 0.1}),
    "the same, in bf16": Kind(arguments={"bf16": True}, bound=2e-2),
    "`LlamaForSequenceClassification`": of_llama(nets.classifying, classes, limits=(64, 120, 480)),
    "`LlamaForTokenClassification`": of_llama(nets.tagging, named(tags), limits=(64, 120, 480)),
    "`BertForSequenceClassification`": of_bert(nets.bert, classes, limits=(64, 120, 480)),
    "the same, with dropout": of_bert(nets.dropping, classes),
    "`BertForSequenceClassification`, regression of one value": of_bert(nets.one_value, values),
    "`BertForSequenceClassification`, regression of several values": of_bert(nets.values, pairs_of_values),
    "`BertForSequenceClassification`, several labels of a sample": of_bert(nets.many_labels, many_labels),
    "`BertForMaskedLM`, masked at random by its collator": of_bert(
        nets.masked, numbered, collate=masked_anew(), as_run=True
    ),
    "`BertForQuestionAnswering`, samples as long as the longest beside them": of_bert(nets.asked, spans),
    "`BertForQuestionAnswering`, all samples equally long": of_bert(nets.asked, spans, collate=all_as_long),
    "a classifier with `label_smoothing_factor`": of_bert(
        nets.bert, classes, arguments={"label_smoothing_factor": 0.1}
    ),
    "a Mixture of Experts with its router's loss": Kind(model=nets.experts, layer="Qwen3MoeDecoderLayer"),
    "the same, and `mean_over = 'labels'`": Kind(
        model=nets.experts, layer="Qwen3MoeDecoderLayer", said={"mean_over": "labels"}, declared=True
    ),
    "adapters of PEFT": Kind(model=adapted),
    "tied embeddings": Kind(model=lambda: llama(tie_word_embeddings=True)),
}

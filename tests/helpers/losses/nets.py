"""Models of transformers, as small as they get."""

from functools import partial

import torch
from torch import Tensor, nn
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    LlamaConfig,
    LlamaForSequenceClassification,
    LlamaForTokenClassification,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

SIZES = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "vocab_size": 50, "num_attention_heads": 2}
LLAMA = SIZES | {"num_key_value_heads": 1, "max_position_embeddings": 64, "attn_implementation": "eager"}
BERT = SIZES | {"max_position_embeddings": 64, "attn_implementation": "eager"}
STILL = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def of_llama(kind: type = LlamaForSequenceClassification, **changed: object) -> nn.Module:
    torch.manual_seed(0)
    return kind(LlamaConfig(**LLAMA | {"pad_token_id": 0, "num_labels": 3} | changed))


def of_bert(kind: type = BertForSequenceClassification, **changed: object) -> nn.Module:
    torch.manual_seed(0)
    return kind(BertConfig(**BERT | STILL | {"num_labels": 3} | changed))


classifying, bert = of_llama, of_bert
tagging = partial(of_llama, LlamaForTokenClassification, classifier_dropout=0.0)
one_value = partial(of_bert, num_labels=1)
values = partial(of_bert, problem_type="regression")
many_labels = partial(of_bert, problem_type="multi_label_classification")
masked = partial(of_bert, BertForMaskedLM, tie_word_embeddings=False)
asked = partial(of_bert, BertForQuestionAnswering, num_labels=2)


class ByPlace(nn.Dropout):
    """Draws, but where gradients are taken: so that those of several cuts can be compared."""

    def forward(self, x: Tensor) -> Tensor:
        if not torch.is_grad_enabled() or not self.training or not self.p:
            return super().forward(x)
        kept = torch.sin(torch.arange(x.shape[-1]) * 1.7) > -0.7
        return x * kept / (1 - self.p)


def dropping() -> nn.Module:
    model = of_bert()
    model.dropout = ByPlace(0.2)
    return model


def experts() -> nn.Module:
    torch.manual_seed(0)
    router = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "head_dim": 8}
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(**LLAMA | router | {"output_router_logits": True}))

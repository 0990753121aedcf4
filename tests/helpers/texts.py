"""A small tokenizer, trained where it is needed, as `save_pretrained` would lay it down."""

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}{% generation %}{{ m.content }}"
    "<|im_end|>{% endgeneration %}{% else %}{{ m.content }}<|im_end|>{% endif %}{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
UNMARKED = CHATML.replace("{% generation %}", "").replace("{% endgeneration %}", "")
MARKS = ["<|im_start|>", "<|im_end|>", "<s>"]


def tokenizer_in(folder: Path, template=CHATML, *, bos: bool = False, **config) -> Path:
    """Bytes and a few hundred merges of this repository's own words."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=700, special_tokens=MARKS, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([Path(__file__).read_text(encoding="utf-8"), *WORDS * 3], trainer)
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
        )
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    written = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", "bos_token": "<s>", **config}
    written |= {"chat_template": template} if template else {}
    (folder / "tokenizer_config.json").write_text(json.dumps(written))
    return folder


WORDS = [
    "What does an uneven length cost, and who waits for whom?",
    "A device that is done waits for the one with the longest sample.",
    "Ein Gerät wartet. 長い文は遅い。 🙂 émigré naïve \u00a0 end",
    "def f(x):\n    return x ** 2  # squared\n\n\n",
    "",
]

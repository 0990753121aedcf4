"""Texts and conversations become lengths: a tokenizer, its chat template, and what was counted once."""

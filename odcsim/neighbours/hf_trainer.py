"""Hugging Face's Trainer, and TRL's trainers on it: what they log."""

from odcsim.neighbours.logged import Logged

# transformers 5.23: `train_runtime` is in every row where tokens are counted (--include_num_input_tokens_seen), else in
# the last one alone; it counts evaluation. `num_input_tokens_seen` counts padding unless it is told `non_padding`.
# TRL 1.16: `num_tokens` by the attention mask, since the run began; `step_time` of GRPO alone.
LOGS = Logged(
    "Hugging Face's Trainer",
    step=("global_step", "step"),
    seconds=("step_time",),
    seen=("num_tokens", "num_input_tokens_seen"),
    clock=("train_runtime",),
    apart=("eval_runtime",),
    padded=("num_input_tokens_seen",),
    way=("native", "deferred"),
)

"""LLaMA-Factory: supervised fine-tuning."""

from odcsim.neighbours.neighbour import GITHUB, LAST, ChosenRow, Neighbour, Settings, optimizer


def settings(row: ChosenRow) -> Settings:
    settings: Settings = {
        "cutoff_len": row.max_tokens,
        "packing": True,
        "neat_packing": True,
        "per_device_train_batch_size": 1,
        "gradient_accumulation_steps": row.packs,
        "disable_gradient_checkpointing": row.recompute == "none",
    }
    if row.rank:
        settings |= {"finetuning_type": "lora", "lora_rank": row.rank}
    return settings | optimizer("optim", row)


LLAMA_FACTORY = Neighbour(
    "llamafactory",
    "yaml",
    f"{GITHUB}/hiyouga/LLaMA-Factory at 072bfe2, src/llamafactory/hparams",
    settings,
    LAST,
    "greedy knapsacks into packs",
    frozenset({"rank", "moments"}),
)

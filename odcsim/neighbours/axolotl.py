"""axolotl: supervised fine-tuning."""

from odcsim.neighbours.neighbour import GITHUB, LAST, ChosenRow, Neighbour, Settings, optimizer


def settings(row: ChosenRow) -> Settings:
    settings: Settings = {
        "sequence_len": row.max_tokens,
        "sample_packing": True,
        "micro_batch_size": 1,
        "gradient_accumulation_steps": row.packs,
        "gradient_checkpointing": row.recompute != "none",
        "fsdp_version": 2,
        "fsdp_config": {
            "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "reshard_after_forward": True,
            "offload_params": row.on_host,
        },
    }
    if row.hybrid:
        settings |= {"dp_shard_size": row.per_node, "dp_replicate_size": row.nodes}
    if row.rank:
        settings |= {"adapter": "lora", "lora_r": row.rank}
    return settings | optimizer("optimizer", row)


AXOLOTL = Neighbour(
    "axolotl",
    "yaml",
    f"{GITHUB}/axolotl-ai-cloud/axolotl, src/axolotl/utils/schemas, read 2026-11-22",
    settings,
    LAST,
    "first fit decreasing into packs",
    frozenset({"hybrid", "on_host", "rank", "moments"}),
)

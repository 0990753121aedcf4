"""On-demand communication for a model that FSDP2 shards, through its public hooks."""

"""On-demand communication for models sharded by FSDP2, through FSDP2's public hooks."""

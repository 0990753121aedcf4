"""FSDP2's own collectives over NCCL."""

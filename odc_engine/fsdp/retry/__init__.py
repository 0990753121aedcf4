"""Retry a microbatch that ran out of memory, in halves."""

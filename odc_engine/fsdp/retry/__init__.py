"""A microbatch that runs out of memory, in halves."""

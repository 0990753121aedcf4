"""Programs and durations become spans: simulators, and the entry point that chooses between them."""

"""Watch a training run: write lengths and seconds of each microbatch as JSON lines, and print how much ranks wait."""

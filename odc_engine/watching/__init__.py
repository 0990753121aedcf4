"""Watch a training run: write lengths and seconds of every microbatch as JSON lines, and print how much time ranks
wait."""

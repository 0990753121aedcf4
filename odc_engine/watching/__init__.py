"""What a run that trains anyway loses: lengths and seconds of every microbatch as lines of JSON, and a word on it."""

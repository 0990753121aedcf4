"""What a chosen row is called in trainers that others wrote: their flags and config lines."""

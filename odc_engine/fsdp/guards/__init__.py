"""Guards: each detects one mistake that would make gradients wrong, and refuses it."""

"""One device's run: its share of every minibatch, computed, moved and recorded."""

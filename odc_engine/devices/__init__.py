"""One rank's run: its share of every minibatch, computed, communicated and recorded."""

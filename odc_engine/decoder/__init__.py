"""The load: a model of its own on packed samples, which tells a listener what it does."""

"""The engine's workload: a decoder on packed samples, which reports what it is doing to a listener."""

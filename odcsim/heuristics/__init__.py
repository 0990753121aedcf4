"""The parts that balancers are made of: sums made alike, microbatches packed, plans traded until they hold."""

"""A script's first minibatch, cut in other ways and run by other numbers of processes: gradients must not change."""

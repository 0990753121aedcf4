"""Run a script's first minibatch in other microbatches and on other numbers of processes: gradients must not change."""

"""GPUs of one node, a process for each, that map each other's memory."""

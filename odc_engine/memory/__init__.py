"""A rank's arena: the memory that peers read (gather) and add to (push)."""

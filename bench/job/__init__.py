"""Where the time of a training step went, which rank or link it was, and what would help."""

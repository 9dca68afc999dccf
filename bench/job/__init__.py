"""Explain where the time of a training step went, which rank or link caused a delay, and which changes would help."""

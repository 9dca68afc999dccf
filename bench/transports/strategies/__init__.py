"""Strategies of training, one file each: which ranks hold what, and what they exchange in a step."""

"""Run the first contact with new GPUs: measure the most valuable figures first, and keep everything in one folder."""

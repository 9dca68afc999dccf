"""The first contact with new GPUs: measure the most valuable things first and keep everything in one folder."""
